"""Experiment 5, iterative against closed form: accuracy and time of NUDGE-IM-(alpha, t) and of NUDGE-M, in one run.

    NUDGEVEC_DATA=... python experiments/iterative_closed.py

writes docs/results/iterative.md and iterative.png. Accuracies are kept, and times are taken anew, on an idle machine;
with ``--kept`` the table is drawn again from the times of the last run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from methods import settings_of, tune
from methods.protocol import Settings
from runs import METRICS, Options, keep, options, problem, result
from tables import GRID, INK, LINE, average, markdown, mean, panels, save, write

CLOSED = "NUDGE-M"
# The paper's three settings, all of which can move 0.1 at most; and one that can move as far as NUDGE-M does here.
ITERATIVE = {
    "NUDGE-IM-(1e-4, 1e3)": {"rate": 1e-4, "iterations": 1000},
    "NUDGE-IM-(1e-3, 1e2)": {"rate": 1e-3, "iterations": 100},
    "NUDGE-IM-(1e-2, 10)": {"rate": 1e-2, "iterations": 10},
    "NUDGE-IM-(1e-2, 1e3)": {"rate": 1e-2, "iterations": 1000},
}
HEAD = [
    "# Iterative against closed form",
    "",
    "Made by `python experiments/iterative_closed.py`. Averages over the data sets, test queries of the random",
    "splits, x 100. Seconds are those of the first split, summed over the data sets, all methods in one run, and as",
    "a ratio to NUDGE-M. The first three settings are the paper's; they move a document by alpha t = 0.1 at most.",
    "The fourth is ours and reaches 10.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    figure, axes = panels(len(chosen.models))
    for axis, model in zip(axes, chosen.models, strict=True):
        metric = settings_of("NUDGE-IM")["metric"]
        rows = {row: {"metric": metric, **values} for row, values in ITERATIVE.items()} | {CLOSED: None}
        cells, scores, ratios = [], [], []
        seconds = _times(chosen, model, rows)
        for row, settings in rows.items():
            runs = [
                [result(chosen, name, model, row.split("-(")[0], seed, settings) for seed in chosen.seeds]
                for name in chosen.data
            ]
            means = {short: average([mean(each, short) for each in runs]) for short in METRICS}
            per_set = [f"{mean(each, 'NDCG@10').value:.1f}" for each in runs]
            ratios.append(seconds[row] / seconds[CLOSED])
            scores.append(means["NDCG@10"].value)
            shown = (f"{means[short].value:.1f}" for short in METRICS)
            cells.append([row, *shown, *per_set, f"{seconds[row]:.2f}", f"{ratios[-1]:.1f}"])
        head = ["method", *METRICS, *(f"NDCG@10 {name}" for name in chosen.data), "seconds", "ratio"]
        lines += ["", f"## {model}", "", *markdown(head, cells)]
        _draw(axis, list(rows), ratios, scores)
        axis.set_title(model, fontsize=11, loc="left")
    axes[0].set_ylabel("NDCG@10 x 100")
    save(figure, chosen.target / "iterative.png")
    write(chosen.target / "iterative.md", [*lines, "", "![](iterative.png)"])


def _draw(axis: Any, rows: list[str], ratios: list[float], scores: list[float]) -> None:
    axis.plot(ratios[:-1], scores[:-1], "o", color=INK, markersize=5)
    axis.plot(ratios[-1:], scores[-1:], "D", color=LINE, markersize=7)
    for row, ratio, score in zip(rows, ratios, scores, strict=True):
        label = row.removeprefix("NUDGE-")
        axis.annotate(label, (ratio, score), (0, 8), textcoords="offset points", ha="center", fontsize=8, color=INK)
    axis.set(xscale="log", xlim=(0.4, 6 * max(ratios)), xlabel=f"time of a fit, {CLOSED} = 1")
    axis.margins(y=0.15)
    axis.grid(color=GRID, linewidth=0.5)


def _times(chosen: Options, model: str, rows: dict[str, Settings | None]) -> dict[str, float]:
    """Seconds of every row, taken now and kept, or those of the last run."""
    path = chosen.cache / "iterative_closed" / f"{model}.json"
    if not chosen.kept:
        seconds = {row: _seconds(chosen, model, row, settings) for row, settings in rows.items()}
        keep(path, {"data": chosen.data, "seconds": seconds})
    told = json.loads(path.read_text()) if path.is_file() else {"data": []}
    if told["data"] != list(chosen.data):
        raise SystemExit(f"No times of {', '.join(chosen.data)} with {model} are kept: run without --kept.")
    return told["seconds"]


def _seconds(chosen: Options, model: str, row: str, settings: Settings | None) -> float:
    """Time of one fit on each data set; the best of three for the closed form, which takes milliseconds."""
    total = 0.0
    for name in chosen.data:
        task, _ = problem(name, model, chosen.seeds[0], chosen.device)
        times = []
        for _ in range(3 if row == CLOSED else 1):
            began = time.perf_counter()
            tune(row.split("-(")[0], task, settings)
            times.append(time.perf_counter() - began)
        total += min(times)
    return total


if __name__ == "__main__":
    main()
