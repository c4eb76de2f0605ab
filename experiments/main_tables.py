"""Experiment 1, the main tables: R@1, R@10 and NDCG@10 of every method, per data set and averaged.

    NUDGEVEC_DATA=... python experiments/main_tables.py

writes docs/results/main.md and main-MODEL.png. Runs of PTFT are made by gpu.py and shown where they are there.
"""

from __future__ import annotations

from collections.abc import Sequence

import corpora
from methods import NONE, settings_of
from runs import METRICS, Options, data_set, options, random_split, result
from tables import Mean, average, bars, change, markdown, mean, write

# The lines "for NDCG@10" choose for the metric that is reported. That is the library's own default, with its guard.
ROWS = {
    "NUDGE-M": ("NUDGE-M", None),
    "NUDGE-N": ("NUDGE-N", None),
    "NUDGE-N for NDCG@10": ("NUDGE-N", {"metric": "ndcg@10", "guard": 1.0}),
    "Adapter": ("Adapter", None),
    "Adapter for NDCG@10": ("Adapter", {"metric": "ndcg@10"}),
    "Adapter-L": ("Adapter-L", None),
    "PTFT": ("PTFT", None),
    "PTFT-L": ("PTFT-L", None),
    NONE: (NONE, None),
}
OURS = "NUDGE-N"
Means = dict[str, dict[str, Mean]]
"""Row -> metric -> mean; a method that was not run has no row."""
HEAD = [
    "# Main tables",
    "",
    "Made by `python experiments/main_tables.py` (PTFT: `python experiments/gpu.py` before it). Test queries of the",
    "paper's 0.7/0.1/0.2 split, the random splits together; R@1 and R@10 are capped recall, as in the paper; all",
    "figures x 100. In brackets the 95% bootstrap interval of the mean change of NDCG@10 over the queries; it does",
    "not hold what another split or another start of training would change. All methods choose by R@1 of the",
    "validation queries, the paper's validation metric, but for the lines that say otherwise. Settings:",
    "`experiments/config`. The last column is how far NUDGE-N is ahead, query by query (paired). Averages are over",
    "data sets; a method that was not run on all of them has none.",
]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = options(__doc__, arguments)
    lines = list(HEAD)
    for model in chosen.models:
        figure = f"main-{model}.png"
        means = {name: _means(chosen, name, model) for name in chosen.data}
        lines += ["", f"## {model}", "", f"![]({figure})", "", _where_ptft_ran(means, model)]
        rows = [row for row in ROWS if any(row in found for found in means.values())]
        for name in chosen.data:
            lines += ["", f"### {name}, {model}", "", _described(chosen, name, model), "", *_table(means[name], rows)]
        together = _averaged(means, chosen.data)
        lines += ["", f"### Average of {len(chosen.data)} data sets, {model}", "", *_table(together, rows)]
        with_all = [name for name in chosen.data if all(row in means[name] for row in rows)]
        if 1 < len(with_all) < len(chosen.data):
            title = f"Average of {' and '.join(with_all)}, on which every method was run, {model}"
            lines += ["", f"### {title}", "", *_table(_averaged(means, with_all), rows)]
        gains = {
            title: {
                row: found[row]["NDCG@10"] - found[NONE]["NDCG@10"] if row in found else None
                for row in rows
                if row != NONE
            }
            for title, found in {"average": together, **means}.items()
        }
        bars(chosen.target / figure, gains, "change of NDCG@10 x 100")
    write(chosen.target / "main.md", lines)


def _where_ptft_ran(means: dict[str, Means], model: str) -> str:
    if corpora.MODELS[model] == "static":
        return f"No PTFT: {model} is a table of word vectors, not a transformer that could be fine-tuned."
    run = {name: "PTFT" in found for name, found in means.items()}
    there, missing = (" and ".join(name for name in run if run[name] == wanted) for wanted in (True, False))
    told = f"PTFT was run on {there or 'none of these data sets'}"
    return f"{told}; not on {missing} (`gpu.py --data` would)." if there and missing else f"{told}."


def _means(chosen: Options, name: str, model: str) -> Means:
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


def _averaged(means: dict[str, Means], names: Sequence[str]) -> Means:
    """The mean over data sets, of the methods that were run on all of them."""
    everywhere = [row for row in ROWS if all(row in means[name] for name in names)]
    return {
        row: {metric: average([means[name][row][metric] for name in names]) for metric in METRICS} for row in everywhere
    }


def _table(found: Means, rows: Sequence[str]) -> list[str]:
    cells = []
    for row in rows:
        if row not in found:
            cells.append([row, *["not run" for _ in METRICS], "", ""])
            continue
        score, plain, ours = (found[each]["NDCG@10"] for each in (row, NONE, OURS))
        gain, lead = "" if row == NONE else change(score, plain), "" if row == OURS else change(ours, score)
        cells.append([row, *(f"{found[row][metric].value:.1f}" for metric in METRICS), gain, lead])
    return markdown(["method", *METRICS, "change of NDCG@10", f"{OURS} less this"], cells)


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
