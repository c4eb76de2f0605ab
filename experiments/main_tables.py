"""Experiment 1, the main tables: R@1, R@10 and NDCG@10 of every method, per data set and averaged.

    NUDGEVEC_DATA=... python experiments/main_tables.py

writes docs/results/main.md and main-MODEL.png. Runs of PTFT are made by gpu.py and shown where they are there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from methods import NONE, settings_of
from runs import METRICS, Options, data_set, options, random_split, result
from tables import Mean, average, bars, change, markdown, mean, write

# "for NDCG@10" is the library's own default: the step is chosen for the metric that is reported, with its guard.
OURS = {"metric": "ndcg@10", "guard": 1.0}
ROWS = {
    "NUDGE-M": ("NUDGE-M", None),
    "NUDGE-N": ("NUDGE-N", None),
    "NUDGE-N for NDCG@10": ("NUDGE-N", OURS),
    "Adapter": ("Adapter", None),
    "Adapter-L": ("Adapter-L", None),
    "PTFT": ("PTFT", None),
    "PTFT-L": ("PTFT-L", None),
    NONE: (NONE, None),
}
HEAD = [
    "# Main tables",
    "",
    "Made by `python experiments/main_tables.py` (PTFT: `python experiments/gpu.py` before it). Test queries of the",
    "paper's 0.7/0.1/0.2 split, the random splits together; R@1 and R@10 are capped recall, as in the paper; all",
    "figures x 100. In brackets the 95% bootstrap interval of the mean change of NDCG@10 over the queries. All",
    "methods choose by R@1 of the validation queries, the paper's validation metric, but for the line that says",
    "otherwise. Settings: `experiments/config`. Averages are over data sets; a method that was not run on all of",
    "them has none.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    for model in chosen.models:
        figure = f"main-{model}.png"
        means = {name: _means(chosen, name, model) for name in chosen.data}
        lines += ["", f"## {model}", "", f"![]({figure})"]
        for name in chosen.data:
            lines += ["", f"### {name}, {model}", "", _described(chosen, name, model), "", *_table(means[name])]
        everywhere = [row for row in ROWS if all(row in means[name] for name in chosen.data)]
        averages = {row: _averaged([means[name][row] for name in chosen.data]) for row in everywhere}
        lines += ["", f"### Average of {len(chosen.data)} data sets, {model}", "", *_table(averages)]
        panel = {"average": averages, **means}
        gains = {
            title: {row: each["NDCG@10"] - rows[NONE]["NDCG@10"] for row, each in rows.items() if row != NONE}
            for title, rows in panel.items()
        }
        rows = [row for row in ROWS if any(row in gain for gain in gains.values())]
        blank = Mean(0.0, np.zeros(1))
        bars(
            chosen.target / figure,
            {title: {row: gain.get(row, blank) for row in rows} for title, gain in gains.items()},
            "change of NDCG@10 x 100",
        )
    write(chosen.target / "main.md", lines)


def _means(chosen: Options, name: str, model: str) -> dict[str, dict[str, Mean]]:
    found = {}
    asked = [result(chosen, name, model, NONE, seed)["tests"]["test"]["query"] for seed in chosen.seeds]
    for row, (method, changed) in ROWS.items():
        settings = {**settings_of(method), **changed} if changed else None
        results = [result(chosen, name, model, method, seed, settings) for seed in chosen.seeds]
        if all(each is not None for each in results):
            if [each["tests"]["test"]["query"] for each in results] != asked:
                raise SystemExit(f"{name}, {model}: {method} was tested on other queries than no fine-tuning.")
            found[row] = {metric: mean(results, metric) for metric in METRICS}
    return found


def _averaged(means: list[dict[str, Mean]]) -> dict[str, Mean]:
    return {metric: average([each[metric] for each in means]) for metric in METRICS}


def _table(rows: dict[str, dict[str, Mean]]) -> list[str]:
    before = rows[NONE]["NDCG@10"]
    cells = []
    for row, means in rows.items():
        last = "" if row == NONE else change(means["NDCG@10"], before)
        cells.append([row, *(f"{means[metric].value:.1f}" for metric in METRICS), last])
    return markdown(["method", *METRICS, "change of NDCG@10"], cells)


def _described(chosen: Options, name: str, model: str) -> str:
    """Sizes, and how much of what is asked in the test was answered in training."""
    data = data_set(name, model)
    shares = []
    for seed in chosen.seeds:
        split = random_split(data, seed)
        trained = {row for number in split.train for row in data.labels[number]}
        asked = [row for number in split.tests["test"] for row in data.labels[number]]
        shares.append(sum(row in trained for row in asked) / len(asked))
    return (
        f"{len(data.documents):,} documents, {len(data.queries):,} queries; {100 * sum(shares) / len(shares):.0f}% "
        "of the answers of test queries also answer a training query."
    )


if __name__ == "__main__":
    main()
