"""Means with bootstrap intervals, Markdown tables and figures of a common style."""

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
    """Mean of a metric x 100, with its bootstrap distribution."""

    value: float
    resampled: np.ndarray
    """Means of bootstrap resamples of the queries."""

    @property
    def interval(self) -> tuple[float, float]:
        """95% bootstrap interval."""
        low, high = np.quantile(self.resampled, [0.025, 0.975])
        return float(low), float(high)

    def __sub__(self, other: Mean) -> Mean:
        return Mean(self.value - other.value, self.resampled - other.resampled)


def mean(runs: Iterable[dict[str, Any]], metric: str, test: str = "test") -> Mean:
    """Average a metric over the test queries of several splits.

    A query that is tested in several splits is resampled as one unit. The resamples depend only on the queries:
    methods share them, so that differences between methods are paired, and data sets have independent ones.
    """
    results = [run["tests"][test] for run in runs]
    query = np.concatenate([result["query"] for result in results])
    value = 100 * np.concatenate([result[metric] for result in results])
    distinct, position = np.unique(query, return_inverse=True)
    total, count = np.bincount(position, value), np.bincount(position).astype(np.float64)
    random = np.random.default_rng(distinct)
    resampled = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 100):
        sample = random.integers(0, len(total), (100, len(total)))
        resampled[start : start + 100] = total[sample].sum(axis=1) / count[sample].sum(axis=1)
    return Mean(float(value.mean()), resampled)


def average(means: Sequence[Mean]) -> Mean:
    """Average over data sets with equal weights."""
    values, resampled = [item.value for item in means], [item.resampled for item in means]
    return Mean(float(np.mean(values)), np.mean(resampled, axis=0))


def format_change(after: Mean, before: Mean) -> str:
    """Format the change of a metric and its 95% interval."""
    difference = after - before
    low, high = difference.interval
    return f"{difference.value:+.1f} ({low:+.1f} to {high:+.1f})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Format a Markdown table as a list of lines."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(str(cell) for cell in line)} |" for line in lines]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write a text file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def panels(count: int, columns: int = 2, width: float = 4.2, height: float = 3.0) -> tuple[Any, list[Any]]:
    """Create a figure with ``count`` axes in a grid of at most ``columns`` columns."""
    columns = min(columns, count)
    rows = -(-count // columns)
    size = max(5.0, width * columns), height * rows
    figure, grid = _pyplot().subplots(rows, columns, figsize=size, dpi=140, layout="constrained", squeeze=False)
    for unused in grid.ravel()[count:]:
        unused.set_visible(False)
    axes = list(grid.ravel()[:count])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def bar_chart(path: Path, groups: dict[str, dict[str, Mean | None]], label: str, columns: int = 3) -> None:
    """Draw one panel per group with one bar and interval per method; None marks a method that was not run."""
    bar_count = max(map(len, groups.values()))
    figure, axes = panels(len(groups), columns, width=3.2, height=1.1 + 0.26 * bar_count)
    for index, (axis, (title, means)) in enumerate(zip(axes, groups.items(), strict=True)):
        for line, (name, bar) in enumerate(means.items()):
            if bar is None:
                axis.text(0, line, " not run", va="center", fontsize=8, color=INK)
                continue
            low, high = bar.interval
            error = [[max(0.0, bar.value - low)], [max(0.0, high - bar.value)]]
            axis.barh(line, bar.value, color=LINE if name.upper().startswith("NUDGE") else "#b9bec7", height=0.7)
            axis.errorbar(bar.value, line, xerr=error, fmt="none", ecolor=INK, linewidth=1)
        axis.set_yticks(range(len(means)), means if index % columns == 0 else [""] * len(means))
        axis.set_ylim(len(means) - 0.5, -0.5)
        axis.axvline(0, color=INK, linewidth=0.8)
        axis.set_title(title, fontsize=11, loc="left")
    figure.supxlabel(label, fontsize=10)
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    """Save and close a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    _pyplot().close(figure)


@functools.cache
def _pyplot() -> Any:
    """Import pyplot on first use: ``gpu.py`` draws nothing and runs without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
