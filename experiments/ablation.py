"""Experiment 4, the ablation (N, M+N, M, NU, none) and the normalisation study (N, IN, M+N, IM+R).

    NUDGEVEC_DATA=... python experiments/ablation.py

writes docs/results/ablation.md and ablation-MODEL.png.
"""

from __future__ import annotations

from collections.abc import Sequence

from methods import NONE
from runs import options, result
from tables import average, bars, change, markdown, mean, write

STUDIES = {
    "Ablation": ("NUDGE-N", "NUDGE-M+N", "NUDGE-M", "NUDGE-NU", NONE),
    "Normalisation": ("NUDGE-N", "NUDGE-IN", "NUDGE-M+N", "NUDGE-IM+R"),
}
HEAD = [
    "# Ablation and normalisation study",
    "",
    "Made by `python experiments/ablation.py`. NDCG@10 x 100 on the test queries of the random splits together, and",
    "the change against no fine-tuning with its 95% bootstrap interval. Steps are chosen by R@1 of the validation",
    "queries.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    methods = list(dict.fromkeys(method for study in STUDIES.values() for method in study))
    for model in chosen.models:
        means = {
            method: [
                mean([result(chosen, name, model, method, seed) for seed in chosen.seeds], "NDCG@10")
                for name in chosen.data
            ]
            for method in methods
        }
        columns = ("average", *chosen.data)
        table = {method: [average(each), *each] for method, each in means.items()}
        lines += ["", f"## {model}", "", f"![](ablation-{model}.png)"]
        for study, rows in STUDIES.items():
            cells = [
                [
                    method,
                    *(
                        f"{value.value:.1f}" if method == NONE else f"{value.value:.1f}, {change(value, before)}"
                        for value, before in zip(table[method], table[NONE], strict=True)
                    ),
                ]
                for method in rows
            ]
            lines += ["", f"### {study}", "", *markdown(["method", *columns], cells)]
        panel = {
            column: {method: table[method][place] - table[NONE][place] for method in methods if method != NONE}
            for place, column in enumerate(columns)
        }
        bars(chosen.target / f"ablation-{model}.png", panel, "change of NDCG@10 x 100")
    write(chosen.target / "ablation.md", lines)


if __name__ == "__main__":
    main()
