"""Experiment 7, gamma against accuracy: the exact validation curve with the published grid's 25 points on it.

    NUDGEVEC_DATA=... python experiments/gamma.py

writes docs/results/gamma.md and gamma-MODEL.png.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runs import data_set, options, random_split
from tables import GRID, INK, LINE, MARK, markdown, panels, save, write

from nudgevec import NudgeN, evaluate

PUBLISHED_GRID = 0.02 * np.arange(25)
METRICS = ("capped_recall@1", "ndcg@10")
HEAD = [
    "# gamma against accuracy",
    "",
    "Made by `python experiments/gamma.py`. NUDGE-N, mean of the random splits, x 100. *Exact* is the best point of",
    "the whole curve, *grid* the best of the 25 points 0, 0.02, ..., 0.48 of the published package; both are chosen",
    "on the validation queries for the metric of the line, without a guard, and then measured on the test queries.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    head = ["data set", "metric", "gamma exact", "gamma grid", "plateaus", "validation none"]
    head += ["exact", "grid", "test none", "exact", "grid"]
    for model in chosen.models:
        rows = []
        figure, axes = panels(len(chosen.data))
        for axis, name in zip(axes, chosen.data, strict=True):
            for metric in METRICS:
                found = [_compared(data_set(name, model), seed, metric) for seed in chosen.seeds]
                gammas = [", ".join(f"{each[kind]:.3f}" for each in found) for kind in ("gamma", "grid gamma")]
                means = [np.mean([each["scores"][place] for each in found]) for place in range(6)]
                plateaus = round(np.mean([len(each["curve"].values) for each in found]))
                rows.append([name, metric, *gammas, f"{plateaus:,}", *(f"{100 * value:.1f}" for value in means)])
            _draw(axis, name, found[0])
        figure.supxlabel("gamma", fontsize=10)
        figure.supylabel("validation NDCG@10 x 100", fontsize=10)
        axes[0].legend(frameon=False, fontsize=9, loc="lower center")
        save(figure, chosen.target / f"gamma-{model}.png")
        lines += ["", f"## {model}", "", f"The figure: split {chosen.seeds[0]}, {METRICS[-1]}.", ""]
        lines += [f"![](gamma-{model}.png)", "", *markdown(head, rows)]
    write(chosen.target / "gamma.md", lines)


def _compared(data: Any, seed: int, metric: str) -> dict[str, Any]:
    split = random_split(data, seed)
    train, validation, test = (data.part(each) for each in (split.train, split.validation, split.tests["test"]))
    tuner = NudgeN(metric, guard=0).fit(data.documents, train, validation)
    assert tuner.curve_ is not None
    on_grid = tuner.curve_(PUBLISHED_GRID)
    grid_gamma = float(PUBLISHED_GRID[np.argmax(on_grid)])
    tests = []
    for gamma in (0.0, tuner.gamma_, grid_gamma):
        moved = NudgeN(metric, gamma=gamma).fit(data.documents, train).transform(data.documents)
        tests.append(evaluate(moved, *test, metric, similarity="cosine", resamples=1)[metric].mean)
    scores = [tuner.curve_.at_zero, tuner.curve_(tuner.gamma_), float(on_grid.max()), *tests]
    return {"gamma": tuner.gamma_, "grid gamma": grid_gamma, "curve": tuner.curve_, "scores": scores}


def _draw(axis: Any, name: str, found: dict[str, Any]) -> None:
    curve = found["curve"]
    axis.axhline(100 * curve.at_zero, color=GRID, zorder=0)
    axis.stairs(100 * curve.values, curve.edges, baseline=None, color=LINE, linewidth=1.1, label="exact")
    axis.plot(PUBLISHED_GRID, 100 * curve(PUBLISHED_GRID), "o", color=INK, markersize=2.5, label="published grid")
    axis.plot(found["gamma"], 100 * curve(found["gamma"]), "D", color=MARK, markersize=6, label="chosen")
    end = max(1.0, 1.2 * found["gamma"])
    seen = 100 * curve(np.linspace(0, end, 1000))
    room = 0.05 * (seen.max() - seen.min())
    axis.set(xlim=(-0.02 * end, end), ylim=(seen.min() - room, seen.max() + room))
    axis.set_title(name, fontsize=11, loc="left")


if __name__ == "__main__":
    main()
