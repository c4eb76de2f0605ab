"""Does the guard against chance gains do harm? Test quality with the guard at 0 (off), 1 (default) and 2.

Small validation sets are where chance matters, so each split is also run with only a few validation
queries.

    NUDGEVEC_DATA=... python experiments/guard.py [docs/results/guard.md]
"""

from __future__ import annotations

import sys
from pathlib import Path

import corpora
import numpy as np

from nudgevec import NudgeM, NudgeN, evaluate

SEEDS = range(5)
GUARDS = (0.0, 1.0, 2.0)
SIZES = (10, 30, 100, 1000)
METRICS = ("ndcg@10", "capped_recall@1")


def main(target: Path) -> None:
    lines = [
        "# The guard against chance gains",
        "",
        "`python experiments/guard.py`: change of NDCG@10 x 100 on the test queries when the step is taken only",
        "if the validation gain exceeds 0 (no guard), 1 (the default) or 2 standard deviations of chance. Each",
        f"figure is the mean of {len(SEEDS)} random splits; in brackets, in how many of them documents moved at all.",
        "",
        "| data set | method | step chosen for | validation queries | guard 0 | guard 1 | guard 2 |",
        "|---|---|---|---|---|---|---|",
    ]
    by_size: dict[int, list[list[float]]] = {size: [] for size in SIZES}
    for name in corpora.names():
        data = corpora.load(name)
        for method in (NudgeN, NudgeM):
            for metric in METRICS:
                for size in SIZES:
                    cells, means, used = [], [], 0
                    for guard in GUARDS:
                        changes, moved = [], 0
                        for seed in SEEDS:
                            train, validation, test = data.split(seed)
                            few = tuple(part[:size] for part in validation)
                            used = len(few[1])
                            tuner = method(metric, guard=guard).fit(data.documents, train, few)
                            moved += tuner.gamma_ > 0
                            changes.append(_change(data, tuner, test))
                        means.append(float(np.mean(changes)))
                        cells.append(f"{np.mean(changes):+.2f} ({moved})")
                    lines.append(f"| {name} | {tuner.method} | {metric} | {used} | {' | '.join(cells)} |")
                    by_size[size].append(means)
                    print(lines[-1], flush=True)
                    if used < size:
                        break
    lines += ["", "Mean over the lines above, by the number of validation queries:", ""]
    lines += ["| validation queries | guard 0 | guard 1 | guard 2 |", "|---|---|---|---|"]
    for size, rows in by_size.items():
        cells = [f"{value:+.2f}" for value in np.mean(rows, axis=0)]
        lines.append(f"| {'' if size < SIZES[-1] else 'up to '}{size} | {' | '.join(cells)} |")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")


def _change(data: corpora.DataSet, tuner: NudgeN, test) -> float:
    if len(tuner.patch_) == 0:
        return 0.0
    versions = data.documents, tuner.transform(data.documents)
    kinds = {"metrics": ["ndcg@10"], "similarity": tuner.similarity, "resamples": 1}
    before, after = (evaluate(each, *test, **kinds)["ndcg@10"].mean for each in versions)
    return 100 * (after - before)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/guard.md"))
