"""Test quality before and after, per data set and method, over several random splits.

NUDGEVEC_DATA=... python experiments/quality.py [docs/results/quality.md]
"""

from __future__ import annotations

import sys
from pathlib import Path

import corpora
import numpy as np

from nudgevec import NudgeM, NudgeMN, NudgeN, NudgeNU, evaluate

SEEDS = (0, 1, 2)


def main(target: Path) -> None:
    lines = [
        "# Quality on unseen queries",
        "",
        f"`python experiments/quality.py`: NDCG@10 x 100 on the test queries, vectors of {corpora.MODEL}, the",
        f"paper's 0.7/0.1/0.2 split over all queries of a set. Each line is over the test queries of {len(SEEDS)}",
        "random splits together; the interval is the 95% bootstrap interval of the mean change. The step was chosen on",
        "the validation queries for NDCG@10.",
        "",
        "| data set | documents | queries | method | before | after | change | 95% interval | better / worse | gamma |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in corpora.names():
        data = corpora.load(name)
        for method in (NudgeN, NudgeM, NudgeMN, NudgeNU):
            scores, gammas = [], []
            for seed in SEEDS:
                train, validation, test = data.split(seed)
                tuner = method().fit(data.documents, train, validation)
                versions = data.documents, tuner.transform(data.documents)
                kinds = {"metrics": "ndcg@10", "similarity": tuner.similarity, "resamples": 1}
                scores.append([evaluate(each, *test, **kinds)["ndcg@10"].per_query for each in versions])
                gammas.append(tuner.gamma_)
            before, after = 100 * np.concatenate(scores, axis=1)
            change = after - before
            draws = np.random.default_rng(0).integers(0, len(change), (1000, len(change)))
            low, high = np.quantile(change[draws].mean(axis=1), [0.025, 0.975])
            lines.append(
                f"| {name} | {len(data.documents)} | {len(data.queries)} | NUDGE-{tuner.method} "
                f"| {before.mean():.1f} | {after.mean():.1f} | {change.mean():+.1f} | {low:+.1f} to {high:+.1f} "
                f"| {(change > 1e-9).sum()} / {(change < -1e-9).sum()} "
                f"| {', '.join(f'{gamma:.3f}' for gamma in gammas)} |"
            )
            print(lines[-1], flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/quality.md"))
