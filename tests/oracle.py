"""The slow, obvious version: move the documents by the paper's formulas, score, rank, average.

Written from the paper and the metric definitions alone, in extended precision, one query and one
document at a time. It shares no code with the library.
"""

from __future__ import annotations

import math

import numpy as np

WIDE = np.longdouble
TIE = 1e-12


def pull(queries, labels, documents):
    """G_j for every document, and whether any of its labels is negative."""
    total = np.zeros(documents.shape, WIDE)
    mass = np.zeros(len(documents), WIDE)
    negative = np.zeros(len(documents), bool)
    for query, entry in zip(queries.astype(WIDE), labels, strict=True):
        for row, weight in entry.items():
            total[row] += WIDE(weight) * query
            mass[row] += abs(weight) * np.sqrt((query * query).sum())
            negative[row] |= weight < 0
    return total, mass, negative


def move_n(documents, queries, labels, gamma):
    """The paper's Delta^N: two branches in gamma, on unit documents."""
    total, mass, negative = pull(queries, labels, documents)
    moved = documents.astype(WIDE)
    for j in range(len(moved)):
        moved[j] = moved[j] / np.sqrt((moved[j] * moved[j]).sum())
        size = np.sqrt((total[j] * total[j]).sum())
        if size <= 1e-12 * mass[j]:
            continue
        target = total[j] / size
        cosine = (target * moved[j]).sum()
        if cosine < -1e-12 and not negative[j]:
            continue
        tangent = target - cosine * moved[j]
        length = np.sqrt((tangent * tangent).sum())
        if length <= 1e-6:
            continue
        if cosine >= 1 - WIDE(gamma) / 2:
            moved[j] = target
        else:
            g = WIDE(gamma)
            moved[j] = moved[j] + np.sqrt(g * (4 - g)) / 2 * (tangent / length) - g / 2 * moved[j]
    return moved


def move_m(documents, queries, labels, gamma):
    """The paper's Delta^M: gamma G / |G|."""
    total, mass, _ = pull(queries, labels, documents)
    moved = documents.astype(WIDE)
    for j in range(len(moved)):
        size = np.sqrt((total[j] * total[j]).sum())
        if size > 1e-12 * mass[j]:
            moved[j] = moved[j] + WIDE(gamma) * total[j] / size
    return moved


def ranks(documents, query, tie, wanted):
    """Pessimistic ranks of some documents: one plus the number of others that score at least as high."""
    query = query.astype(WIDE)
    query = query / np.sqrt((query * query).sum())
    scores = (documents * query).sum(axis=1)
    return {y: 1 + sum(scores[j] >= scores[y] - tie for j in range(len(scores)) if j != y) for y in wanted}


def metric_of(name, k, rank, entry):
    """One query's metric from the ranks of all documents."""
    relevant = {row: weight for row, weight in entry.items() if weight > 0}
    hits = [row for row in relevant if rank[row] <= k]
    if name == "recall":
        return len(hits) / len(relevant)
    if name == "capped_recall":
        return len(hits) / min(len(relevant), k)
    if name == "success":
        return float(bool(hits))
    if name == "mrr":
        return max((1 / rank[row] for row in hits), default=0.0)
    gained = sum(relevant[row] / math.log2(rank[row] + 1) for row in hits)
    best = sorted(relevant.values(), reverse=True)[:k]
    return gained / sum(weight / math.log2(place + 2) for place, weight in enumerate(best))


def value(moved, queries, labels, metric, tie=TIE):
    """Mean metric over the queries that have a relevant label."""
    name, _, k = metric.partition("@")
    scores = [
        metric_of(name, int(k), ranks(moved, query, tie, entry), entry)
        for query, entry in zip(queries, labels, strict=True)
        if any(weight > 0 for weight in entry.values())
    ]
    return sum(scores) / len(scores)
