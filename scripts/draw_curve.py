"""Draw the exact validation curve of the emoji demo for the README (``make docs``)."""

from __future__ import annotations

import sys

import matplotlib
import numpy as np

from nudgevec import NudgeN, demo

matplotlib.use("Agg")
import matplotlib.pyplot as plt

INK, LINE, MARK, GRID = "#22252b", "#2f6fb7", "#d1495b", "#d9dce1"


def main(target: str) -> None:
    """Write the figure to ``target``."""
    search = demo.load()
    tuner = NudgeN(metric="ndcg@10").fit(search.documents, search.part(search.train), search.part(search.validation))
    curve, choice = tuner.curve_, tuner.choice_
    figure, axes = plt.subplots(figsize=(8, 3.6), dpi=160, layout="constrained")
    axes.stairs(100 * curve.values, curve.edges, baseline=None, color=LINE, linewidth=1.3)
    grid = 0.02 * np.arange(25)
    values = [100 * curve(gamma) for gamma in grid]
    axes.plot(grid, values, "o", color=INK, markersize=3, label="the published package's 25-point grid")
    label = f"chosen: gamma {tuner.gamma_:.3f}, NDCG@10 {100 * choice.after:.1f}"
    axes.plot([tuner.gamma_], [100 * choice.after], "D", color=MARK, markersize=7, label=label)
    axes.axhline(100 * choice.before, color=GRID, zorder=0)
    axes.text(0.995, 100 * choice.before, "before ", va="bottom", ha="right", color=INK, fontsize=9)
    axes.set(
        xlim=(-0.01, 1), ylim=(28.5, 35.3), xlabel="gamma: how far documents may move", ylabel="validation NDCG@10"
    )
    axes.set_title(f"The exact curve: {len(curve.values):,} plateaus, every gamma at once", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="lower center")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(target)


if __name__ == "__main__":
    main(sys.argv[1])
