"""Test quality before and after, per data set and method, over several random splits.

NUDGEVEC_DATA=... python experiments/quality.py [docs/results/quality.md]
"""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import numpy as np

from nudgevec import NudgeM, NudgeMN, NudgeN, NudgeNU, compare, evaluate

SEEDS = (0, 1, 2)


def main(target: Path) -> None:
    lines = [
        "# Quality on unseen queries",
        "",
        f"`python experiments/quality.py`: NDCG@10 x 100 on the test queries, vectors of {datasets.MODEL}, the",
        f"paper's 0.7/0.1/0.2 split over all queries of a set, mean of {len(SEEDS)} random splits. The interval is",
        "the 95% bootstrap interval of the change on the test queries of the first split; better / worse counts",
        "queries of that split too. The step was chosen on the validation queries for NDCG@10.",
        "",
        "| data set | documents | queries | method | before | after | change | 95% interval | better / worse | gamma |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in datasets.names():
        data = datasets.load(name)
        for method in (NudgeN, NudgeM, NudgeMN, NudgeNU):
            totals, gammas = [], []
            for seed in SEEDS:
                train, validation, test = data.split(seed)
                tuner = method().fit(data.documents, train, validation)
                versions = data.documents, tuner.transform(data.documents)
                before, after = (evaluate(each, *test, ["ndcg@10"], similarity=tuner.similarity) for each in versions)
                totals.append(compare(before, after))
                gammas.append(tuner.gamma_)
            first = totals[0]
            lines.append(
                f"| {name} | {len(data.documents)} | {len(data.queries)} | NUDGE-{tuner.method} "
                f"| {_mean(total.before for total in totals):.1f} | {_mean(total.after for total in totals):.1f} "
                f"| {_mean(total.change for total in totals):+.1f} | {100 * first.low:+.1f} to {100 * first.high:+.1f} "
                f"| {first.wins} / {first.losses} | {', '.join(f'{gamma:.3f}' for gamma in gammas)} |"
            )
            print(lines[-1], flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def _mean(values) -> float:
    return 100 * float(np.mean(list(values)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/quality.md"))
