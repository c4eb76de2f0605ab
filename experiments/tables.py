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

    A query that was tested in several splits is one query: resampling takes or leaves it as a whole. Every method sees
    the same draws, so that differences are paired.
    """
    parts = [each["tests"][test] for each in results]
    query = np.concatenate([part["query"] for part in parts])
    value = 100 * np.concatenate([part[metric] for part in parts])
    _, place = np.unique(query, return_inverse=True)
    total, count = np.bincount(place, value), np.bincount(place).astype(np.float64)
    random = np.random.default_rng(0)
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


def panels(count: int, columns: int | None = None, width: float = 3.4, height: float = 3.0) -> tuple[Any, list[Any]]:
    """Axes in the style of the README's figure, in one row or in rows of so many columns."""
    columns = columns or count
    rows = -(-count // columns)
    size = max(5.0, width * columns), height * rows
    figure, axes = _pyplot().subplots(rows, columns, figsize=size, dpi=140, layout="constrained", squeeze=False)
    axes = list(axes.ravel()[:count])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bars(path: Path, panel: dict[str, dict[str, Mean]], label: str, columns: int | None = None) -> None:
    """One panel per key, one horizontal bar per method, with its interval."""
    columns = columns or len(panel)
    figure, axes = panels(len(panel), columns)
    for place, (each, (title, means)) in enumerate(zip(axes, panel.items(), strict=True)):
        names = list(means)[::-1]
        values = [means[name].value for name in names]
        low, high = np.array([means[name].interval for name in names]).T
        each.barh(names, values, color=[LINE if name.startswith("NUDGE") else GRID for name in names], height=0.7)
        reach = np.maximum(0, [values - low, high - values])
        each.errorbar(values, names, xerr=reach, fmt="none", ecolor=INK, linewidth=1)
        each.axvline(0, color=INK, linewidth=0.8)
        each.set_title(title, fontsize=10, loc="left")
        each.set_xlabel(label, fontsize=9)
        each.tick_params(labelsize=8)
        if place % columns:
            each.set_yticklabels([])
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
