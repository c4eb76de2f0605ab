"""From runs to what is shown: means with intervals, Markdown, and the common look of the figures."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

INK, LINE, MARK, GRID = "#22252b", "#2f6fb7", "#d1495b", "#d9dce1"
COLOURS = (LINE, MARK, "#3a8f5c", "#b8860b", "#7a5ba6", "#4aa3a2", "#8a8f98", INK)
RESAMPLES = 2000


@dataclass(frozen=True)
class Mean:
    """A mean over queries and splits x 100, with means of resampled queries."""

    value: float
    drawn: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        low, high = np.quantile(self.drawn, [0.025, 0.975])
        return float(low), float(high)

    def __sub__(self, other: Mean) -> Mean:
        return Mean(self.value - other.value, self.drawn - other.drawn)


def mean(results: Iterable[dict[str, Any]], metric: str, test: str = "test") -> Mean:
    """The mean of a metric over the test queries of several splits.

    A query that was tested in several splits is one query: resampling takes or leaves it as a whole. The draws depend
    on the queries alone: every method sees the same ones, so that differences are paired, and every data set others.
    """
    parts = [each["tests"][test] for each in results]
    query = np.concatenate([part["query"] for part in parts])
    value = 100 * np.concatenate([part[metric] for part in parts])
    distinct, place = np.unique(query, return_inverse=True)
    total, count = np.bincount(place, value), np.bincount(place).astype(np.float64)
    random = np.random.default_rng(distinct)
    drawn = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 100):
        chosen = random.integers(0, len(total), (100, len(total)))
        drawn[start : start + 100] = total[chosen].sum(axis=1) / count[chosen].sum(axis=1)
    return Mean(float(value.mean()), drawn)


def average(means: Sequence[Mean]) -> Mean:
    """The mean over data sets, each of which counts the same."""
    return Mean(float(np.mean([each.value for each in means])), np.mean([each.drawn for each in means], axis=0))


def change(after: Mean, before: Mean) -> str:
    """The change and its 95% interval."""
    difference = after - before
    low, high = difference.interval
    return f"{difference.value:+.1f} ({low:+.1f} to {high:+.1f})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]


def write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def panels(count: int, columns: int = 2, width: float = 4.2, height: float = 3.0) -> tuple[Any, list[Any]]:
    """Axes in the style of the README's figure, in rows of so many columns: narrow enough to be read on a page."""
    columns = min(columns, count)
    rows = -(-count // columns)
    size = max(5.0, width * columns), height * rows
    figure, axes = _pyplot().subplots(rows, columns, figsize=size, dpi=140, layout="constrained", squeeze=False)
    for spare in axes.ravel()[count:]:
        spare.set_visible(False)
    axes = list(axes.ravel()[:count])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
    return figure, axes


def bars(path: Path, panel: dict[str, dict[str, Mean | None]], label: str, columns: int = 3) -> None:
    """One panel per key, one horizontal bar per method, with its interval; None is a method that was not run."""
    count = max(map(len, panel.values()))
    figure, axes = panels(len(panel), columns, width=3.2, height=1.1 + 0.26 * count)
    for place, (each, (title, means)) in enumerate(zip(axes, panel.items(), strict=True)):
        for line, (name, found) in enumerate(means.items()):
            if found is None:
                each.text(0, line, " not run", va="center", fontsize=8, color=INK)
                continue
            low, high = found.interval
            reach = [[max(0.0, found.value - low)], [max(0.0, high - found.value)]]
            each.barh(line, found.value, color=LINE if name.startswith("NUDGE") else "#b9bec7", height=0.7)
            each.errorbar(found.value, line, xerr=reach, fmt="none", ecolor=INK, linewidth=1)
        each.set_yticks(range(len(means)), means if place % columns == 0 else [""] * len(means))
        each.set_ylim(len(means) - 0.5, -0.5)
        each.axvline(0, color=INK, linewidth=0.8)
        each.set_title(title, fontsize=11, loc="left")
    figure.supxlabel(label, fontsize=10)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    _pyplot().close(figure)


@functools.cache
def _pyplot() -> Any:
    """Imported when something is drawn: the GPU part measures and draws nothing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
