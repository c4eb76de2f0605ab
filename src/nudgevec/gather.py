"""Gathering the pull: what the training queries ask of each labelled document.

The pull on document j is ``G_j = sum_i w_ij q_i`` over the training queries i. It is a sparse product,
summed in float64. The pull on a document depends on its own labels only, down to the last bit, so it
can be recomputed for a few documents and still equal a computation from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Floats, Ints, rows_of
from nudgevec.errors import LabelError
from nudgevec.labels import Labels
from nudgevec.parallel import everywhere
from nudgevec.queries import Queries

# Documents with more labels than this are summed one by one, the others many at a time.
_FEW = 64
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Pull:
    """The labelled documents of the training set and what pulls them."""

    rows: Ints
    total: Floats
    mass: Floats
    """Sum of |w| |q|, roughly: how long the pull would be if nothing in it cancelled."""
    labels: Ints
    pushed: npt.NDArray[np.bool_]
    """True where at least one label has a negative weight."""


def gather(labels: Labels, queries: Queries) -> Pull:
    """Sum the weighted training queries of every labelled document."""
    # Labels come sorted by query, which stays the order within a document.
    order = np.argsort(labels.row, kind="stable")
    query, row, weight = labels.query[order], labels.row[order], labels.weight[order]
    first = np.flatnonzero(np.diff(row, prepend=-1))
    rows, count = row[first], np.diff(np.append(first, len(row)))

    vectors = queries.vectors
    total = np.empty((len(rows), vectors.shape[1]))
    # Most-labelled first: the documents that have a t-th label are then a prefix for every t.
    by_count = np.argsort(-count, kind="stable")
    heavy = int(np.count_nonzero(count > _FEW))
    for document in by_count[:heavy]:
        total[document] = 0.0
        for start in range(first[document], first[document] + count[document], _CHUNK):
            part = slice(start, min(start + _CHUNK, first[document] + count[document]))
            total[document] += np.einsum("i,ij->j", weight[part], rows_of(vectors, query[part]).astype(np.float64))
    light = by_count[heavy:]
    finite = [bool(np.isfinite(total[by_count[:heavy]]).all())]

    def add_up(part: slice) -> None:
        some = light[part]
        sums = np.zeros((len(some), vectors.shape[1]))
        for turn in range(int(count[some[0]])):
            having = int(np.searchsorted(-count[some], -turn))
            label = first[some[:having]] + turn
            sums[:having] += weight[label, None] * rows_of(vectors, query[label])
        total[some] = sums
        finite.append(bool(np.isfinite(sums).all()))

    everywhere(add_up, len(light))

    document_of = np.repeat(np.arange(len(rows)), count)
    mass = np.bincount(document_of, np.abs(weight) * queries.length[query], minlength=len(rows)).astype(np.float64)
    if not (np.isfinite(mass).all() and all(finite)):
        raise LabelError("training queries: labels times query vectors are too large to add up; scale them down")
    pushed = np.bincount(document_of, weight < 0, minlength=len(rows)) > 0
    return Pull(rows, total, mass, count, pushed)
