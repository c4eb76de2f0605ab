"""Time and memory of Nudge: `python benchmarks/maps.py [--documents N] [--engine cpu|torch] [--side SIDE]`.

Queries scatter around their random documents after one linear map of all.
Prints one line of a Markdown table. Threads are those of the process: use taskset for fewer cores.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

import nudgevec


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def problem(n_documents, n_queries, dim, seed=0):
    """Documents, labelled training and validation queries (a tenth), and 2,000 test queries."""
    random = np.random.default_rng(seed)
    documents = np.empty((n_documents, dim), np.float32)
    for begin in range(0, n_documents, 1 << 16):
        part = documents[begin : begin + (1 << 16)]
        part[:] = unit(random.standard_normal(part.shape, np.float32))
    labelled = random.choice(n_documents, min(n_documents, n_queries), replace=False)
    turn = np.linspace(0, 2, dim, dtype=np.float32)
    rows = labelled[random.integers(0, len(labelled), n_queries + 2000)]
    queries = unit(documents[rows] * turn + 4.5 / dim**0.5 * random.standard_normal((len(rows), dim), np.float32))
    splits = np.split(np.arange(len(rows)), [n_queries - n_queries // 10, n_queries])
    return documents, *((queries[split], rows[split].tolist()) for split in splits)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--side", default="auto")
    asked = parser.parse_args()
    small = problem(2000, 500, asked.dim)
    nudgevec.Nudge(side="queries", guard=0, engine=asked.engine).fit(*small[:3])
    documents, train, validation, test = problem(asked.documents, asked.queries, asked.dim)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    tuner = nudgevec.Nudge(side=asked.side, guard=0, engine=asked.engine).fit(documents, train, validation)
    seconds = time.perf_counter() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    tuned = tuner.transform(documents)
    scores = [
        nudgevec.evaluate(vectors, queries, test[1], "ndcg@10", engine=asked.engine)["ndcg@10"].mean
        for vectors, queries in ((documents, test[0]), (tuned, tuner.adapt(test[0])))
    ]
    print(
        f"| {asked.engine} | {asked.documents:,} x {asked.dim} | {asked.queries:,} | {tuner.side_} | {seconds:.1f} | "
        f"{growth:.0f} | {100 * scores[0]:.1f} -> {100 * scores[1]:.1f} | {tuner.sigma_:g} | {tuner.gamma_:.3f} |"
    )


if __name__ == "__main__":
    main()
