"""Reference implementation: move the documents by the formulas of the paper, score, rank and average.

It follows the paper and the metric definitions in extended precision, one query and one document at a time, and shares
no code with the library.
"""

from __future__ import annotations

import math

import numpy as np

WIDE = np.longdouble
TIE = 1e-12


def pull(queries, labels, documents):
    """Compute the pull of every document.

    Returns
    -------
    total : array of shape (n, d)
        The pull G_j.
    mass : array of shape (n,)
        Sum of the norms of the weighted queries, the scale of rounding errors in G_j.
    negative : array of bool of shape (n,)
        Whether a label of the document is negative.
    """
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
    """Move the normalised documents by Delta^N of the paper, which has two cases in gamma."""
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
        if length <= (1e-6 if cosine >= 0 else 1e-3):
            continue
        if cosine >= 1 - WIDE(gamma) / 2:
            moved[j] = target
        else:
            g = WIDE(gamma)
            moved[j] = moved[j] + np.sqrt(g * (4 - g)) / 2 * (tangent / length) - g / 2 * moved[j]
    return moved


def move_m(documents, queries, labels, gamma):
    """Move the documents by Delta^M of the paper, gamma G / |G|."""
    total, mass, _ = pull(queries, labels, documents)
    moved = documents.astype(WIDE)
    for j in range(len(moved)):
        size = np.sqrt((total[j] * total[j]).sum())
        if size > 1e-12 * mass[j]:
            moved[j] = moved[j] + WIDE(gamma) * total[j] / size
    return moved


def ranks(documents, query, tie, rows):
    """Rank the documents ``rows``; one plus the number of other documents with a score at least as high."""
    query = query.astype(WIDE)
    query = query / np.sqrt((query * query).sum())
    scores = (documents * query).sum(axis=1)
    return {y: 1 + sum(scores[j] >= scores[y] - tie for j in range(len(scores)) if j != y) for y in rows}


def metric_of(name, k, rank, entry):
    """Compute the metric of one query from the ranks of its labelled documents."""
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
    gain = sum(relevant[row] / math.log2(rank[row] + 1) for row in hits)
    ideal = sorted(relevant.values(), reverse=True)[:k]
    return gain / sum(weight / math.log2(position + 2) for position, weight in enumerate(ideal))


def value(moved, queries, labels, metric, tie=TIE):
    """Average the metric over the queries that have a relevant document."""
    name, _, k = metric.partition("@")
    scores = [
        metric_of(name, int(k), ranks(moved, query, tie, entry), entry)
        for query, entry in zip(queries, labels, strict=True)
        if any(weight > 0 for weight in entry.values())
    ]
    return sum(scores) / len(scores)
