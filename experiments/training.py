"""Experiment 6, training and validation accuracy over training, for Adapter, PTFT and NUDGE-IM.

    NUDGEVEC_DATA=... python experiments/training.py

writes docs/results/training.md and training-MODEL.png. Settings are those that the main tables chose on the first
split, but nothing stops early. PTFT is shown where gpu.py has run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runs import Options, options, result
from tables import GRID, LINE, MARK, markdown, panels, save, write

METHODS = {"NUDGE-IM": LINE, "Adapter": MARK, "PTFT": "#3a8f5c"}
HEAD = [
    "# Accuracy over training",
    "",
    "Made by `python experiments/training.py`, first split. R@1 x 100 of the training and of the validation queries,",
    "before training, where validation is best, and at the end. Settings are those chosen on the validation queries;",
    "nothing stops early, so that the whole way is seen. PTFT is measured among its validation candidates, as in the",
    "paper, which makes its training figures too high where these are few (SciFact).",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    for model in chosen.models:
        rows = []
        figure, axes = panels(len(chosen.data))
        for axis, name in zip(axes, chosen.data, strict=True):
            for method, colour in METHODS.items():
                run = watched(chosen, name, model, method)
                if run is None:
                    continue
                history = run["facts"]["history"]
                _draw(axis, method, colour, history)
                best = max(history, key=lambda line: line["validation"])
                points = {"before": history[0], f"best (step {best['step']})": best, "end": history[-1]}
                for place, line in points.items():
                    rows.append([name, method, place, *(f"{100 * line[part]:.1f}" for part in ("train", "validation"))])
            axis.set_title(name, fontsize=11, loc="left")
            axis.grid(color=GRID, linewidth=0.5)
        figure.supxlabel("share of training", fontsize=10)
        figure.supylabel("R@1 x 100", fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        place = {"loc": "outside upper center", "ncols": len(labels) // 2}
        figure.legend(handles, labels, frameon=False, fontsize=9, **place)
        save(figure, chosen.target / f"training-{model}.png")
        head = ["data set", "method", "when", "training R@1", "validation R@1"]
        lines += ["", f"## {model}", "", f"![](training-{model}.png)", "", *markdown(head, rows)]
    write(chosen.target / "training.md", lines)


def watched(chosen: Options, name: str, model: str, method: str) -> dict[str, Any] | None:
    """A run with the settings that were chosen, which looks at the training queries too."""
    tuned = result(chosen, name, model, method, chosen.seeds[0])
    if tuned is None:
        return None
    settings = {**tuned["facts"]["chosen"]["settings"], "watch": True}
    if "stop_drop" in settings:
        settings["stop_drop"] = 1.0
    return result(chosen, name, model, method, chosen.seeds[0], settings)


def _draw(axis: Any, method: str, colour: str, history: list[dict[str, Any]]) -> None:
    share = [line["step"] / history[-1]["step"] for line in history]
    for part, style in (("train", "--"), ("validation", "-")):
        label = f"{method}, {'training' if part == 'train' else 'validation'}"
        axis.plot(share, [100 * line[part] for line in history], style, color=colour, linewidth=1.2, label=label)


if __name__ == "__main__":
    main()
