"""Experiment 3, distribution shift: K-means with two clusters on the queries, train on one, test on both.

    NUDGEVEC_DATA=... python experiments/shift.py

writes docs/results/shift.md and shift-MODEL.png.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from corpora import DataSet
from methods import NONE
from runs import METRICS, Options, Split, options, result
from tables import Mean, average, bars, change, markdown, mean, write

METHODS = ("NUDGE-M", "NUDGE-N", "Adapter", NONE)
TESTS = ("in", "out")
HEAD = [
    "# Distribution shift",
    "",
    "Made by `python experiments/shift.py`. K-means puts the queries of a data set into two clusters. The larger",
    "one, C1, is split 0.7/0.1/0.2; training and validation queries come from it. In-distribution (in) is its test",
    "part, out-of-distribution (out) is all of C2. The seeds are those of the clusters and of the split; x 100,",
    "with the 95% bootstrap interval of the change of NDCG@10.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    for model in chosen.models:
        means = {name: _means(chosen, name, model) for name in chosen.data}
        together = {
            method: {key: average([means[name][method][key] for name in chosen.data]) for key in means[name][method]}
            for name in chosen.data[:1]
            for method in METHODS
        }
        lines += ["", f"## {model}", "", f"![](shift-{model}.png)"]
        for title, rows in {"Average": together, **means}.items():
            lines += ["", f"### {title}, {model}", "", *_table(rows)]
        panel = {
            title: {
                f"{method}, {test}": rows[method][test, "NDCG@10"] - rows[NONE][test, "NDCG@10"]
                for test in TESTS
                for method in METHODS
                if method != NONE
            }
            for title, rows in {"average": together, **means}.items()
        }
        bars(chosen.target / f"shift-{model}.png", panel, "change of NDCG@10 x 100")
    write(chosen.target / "shift.md", lines)


def shifted(data: DataSet, seed: int) -> Split:
    """Learn from the larger of two clusters of queries."""
    cluster = two_means(data.queries, seed)
    larger = int(np.bincount(cluster, minlength=2).argmax())
    train, validation, test = data.deal(seed, among=np.flatnonzero(cluster == larger))
    return Split(train, validation, {"in": test, "out": np.flatnonzero(cluster != larger)})


def two_means(points: np.ndarray, seed: int, starts: int = 10, rounds: int = 100) -> np.ndarray:
    """The cluster (0 or 1) of each point: Lloyd's algorithm, the best of several random starts."""
    random = np.random.default_rng(seed)
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(starts):
        centres = points[random.choice(len(points), 2, replace=False)]
        cluster = np.full(len(points), -1)
        for _ in range(rounds):
            distance = ((points[:, None] - centres) ** 2).sum(axis=2)
            nearer = distance.argmin(axis=1)
            if (nearer == cluster).all() or len(np.unique(nearer)) < 2:
                break
            cluster = nearer
            centres = np.stack([points[cluster == each].mean(axis=0) for each in (0, 1)])
        spread = float(distance.min(axis=1).sum())
        if spread < least and len(np.unique(cluster)) == 2:
            best, least = cluster, spread
    return best


def _means(chosen: Options, name: str, model: str) -> dict[str, dict[tuple[str, str], Mean]]:
    found = {}
    for method in METHODS:
        results = [result(chosen, name, model, method, seed, split=shifted) for seed in chosen.seeds]
        found[method] = {(test, metric): mean(results, metric, test) for test in TESTS for metric in METRICS}
    return found


def _table(rows: dict[str, dict[tuple[str, str], Mean]]) -> list[str]:
    cells = []
    for method, means in rows.items():
        line = [method]
        for test in TESTS:
            line += [f"{means[test, metric].value:.1f}" for metric in METRICS]
            line.append("" if method == NONE else change(means[test, "NDCG@10"], rows[NONE][test, "NDCG@10"]))
        cells.append(line)
    short = [f"{kind} {metric}" for kind in TESTS for metric in (*METRICS, "change")]
    return markdown(["method", *short], cells)


if __name__ == "__main__":
    main()
