"""The pull on a document: the weighted sum of the training queries that are labelled with it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arrays import Array, Floats, Ints, Mask
from nudgevec.core.compiling import compiled
from nudgevec.core.exact import compilable, norm
from nudgevec.errors import LabelError
from nudgevec.labels import Labels

# Sums of larger numbers could overflow.
_LARGEST_MASS = 1e307


class Pull(NamedTuple):
    """What pulls each labelled document."""

    rows: Ints
    """The labelled documents, ascending."""
    total: Floats
    """The pull G_j = sum_i w_ij q_i, (m, d)."""
    mass: Floats
    """sum_i |w_ij| |q_i|: the length of the pull if nothing in it cancelled."""
    labels: Ints
    """How many labels each document has."""
    negative: Mask
    """True where at least one label has a negative weight."""


def sum_pulls(labels: Labels, queries: Array) -> Pull:
    """Sum the weighted training queries of every labelled document, in float64.

    The pull on a document depends on its own labels only, down to the last bit.
    """
    # Labels come sorted by query; a stable sort keeps that order within a document.
    order = np.argsort(labels.row, kind="stable")
    rows, first = np.unique(labels.row[order], return_index=True)
    start = np.append(first, len(order))
    weight = labels.weight[order]
    total, mass = _sums(compilable(queries), labels.query[order], weight, start)
    if not mass.max(initial=0.0) < _LARGEST_MASS:
        raise LabelError("training queries: labels times query vectors are too large to add up; scale them down")
    negative = np.minimum.reduceat(weight, first) < 0 if len(first) else np.empty(0, np.bool_)
    return Pull(rows, total, mass, np.diff(start), negative)


@compiled()
def _sums(queries, query, weight, start):
    m = len(start) - 1
    total, mass = np.zeros((m, queries.shape[1])), np.empty(m)
    for j in range(m):
        mass[j] = _sum(queries, query[start[j] : start[j + 1]], weight[start[j] : start[j + 1]], total[j])
    return total, mass


@compiled()
def _sum(queries, query, weight, total):
    """Add the weighted queries to ``total``; return the sum of their lengths."""
    mass = 0.0
    for label in range(len(query)):
        vector = queries[query[label]]
        mass += abs(weight[label]) * norm(vector)
        for i in range(len(vector)):
            total[i] += weight[label] * np.float64(vector[i])
    return mass
