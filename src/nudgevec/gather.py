"""Gathering the pull: what the training queries ask of each labelled document.

The pull on document j is ``G_j = sum_i w_ij q_i`` over the training queries i. It is a sparse product,
summed in float64. The pull on a document depends on its own labels only, down to the last bit, so it
can be recomputed for a few documents and still equal a computation from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Floats, Ints
from nudgevec.errors import LabelError
from nudgevec.labels import Labels
from nudgevec.parallel import everywhere, slices
from nudgevec.queries import Queries
from nudgevec.scratch import wide_rows

# Vectors added up at a time, in bytes of float64, and labels of one document at most.
_AT_A_TIME = 1 << 21
_CHUNK = 1 << 9


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
    dim = vectors.shape[1]
    total = np.empty((len(rows), dim))
    finite = [True]
    # Documents with equally many labels are added up together.
    by_count = np.argsort(count, kind="stable")
    pieces = list(_runs(count[by_count], max(1, _AT_A_TIME // (8 * dim))))

    def add_up(part: slice) -> None:
        for piece in pieces[part]:
            some = by_count[piece]
            sums = np.zeros((len(some), dim))
            for turn in slices(int(count[some[0]]), _CHUNK):
                label = first[some, None] + np.arange(turn.start, turn.stop)
                asked = wide_rows("queries", vectors, query[label.ravel()])
                sums += np.einsum("ij,ijd->id", weight[label], asked.reshape(*label.shape, dim))
            total[some] = sums
            finite.append(bool(np.isfinite(sums).all()))

    everywhere(add_up, len(pieces), 1)

    document_of = np.repeat(np.arange(len(rows)), count)
    mass = np.bincount(document_of, np.abs(weight) * queries.length[query], minlength=len(rows)).astype(np.float64)
    if not (np.isfinite(mass).all() and all(finite)):
        raise LabelError("training queries: labels times query vectors are too large to add up; scale them down")
    pushed = np.bincount(document_of, weight < 0, minlength=len(rows)) > 0
    return Pull(rows, total, mass, count, pushed)


def _runs(count: Ints, most: int) -> Iterator[slice]:
    """Stretches of documents with equal counts (which come sorted), with ``most`` labels at most where they have more
    than one document."""
    edges = np.flatnonzero(np.diff(count, prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(edges):
        for part in slices(end - begin, max(1, most // int(count[begin]))):
            yield slice(begin + part.start, begin + part.stop)
