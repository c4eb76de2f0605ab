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

from nudgevec.errors import LabelError
from nudgevec.labels import Labels
from nudgevec.parallel import everywhere, slices
from nudgevec.queries import Queries
from nudgevec.rows import Floats, Ints
from nudgevec.scratch import wide_rows
from nudgevec.sorting import begins, sorted_places

# Vectors added up at a time, in bytes of float64, and labels of one document at most.
_AT_A_TIME = 3 << 20
_CHUNK = 1 << 9
# Documents with about as many labels are added up together, as if all had as many as the one with most.
_WIDTHS = np.rint(1.2 ** np.arange(35))


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
    # Documents with about as many labels come one after the other. Labels come sorted by query, which stays the order
    # within a document.
    order = sorted_places(labels.row)
    first = np.flatnonzero(begins(labels.row[order]))
    rows, count = labels.row[order[first]], np.diff(np.append(first, len(order)))
    by_count = sorted_places(count)
    each = count[by_count]
    begin = np.cumsum(each) - each
    order = order[np.repeat(first[by_count] - begin, each) + np.arange(len(order))]
    query, weight = labels.query[order], labels.weight[order]

    vectors = queries.vectors
    dim = vectors.shape[1]
    total = np.empty((len(rows), dim))
    finite = [True]
    # Single numbers are added up in an order that depends on how many there are.
    width = np.searchsorted(_WIDTHS, each) if dim > 1 else each
    pieces = list(_pieces(each, width, max(1, _AT_A_TIME // (8 * dim))))

    def added_up(place: Ints, there: npt.NDArray[np.bool_] | bool) -> Floats:
        asked = wide_rows("queries", vectors, query[place].ravel()).reshape(*place.shape, dim)
        sums: Floats = np.einsum("ij,ijd->id", np.where(there, weight[place], 0.0), asked)
        return sums

    def add_up(part: slice) -> None:
        for piece in pieces[part]:
            start, size = begin[piece, None], each[piece, None]
            place = np.arange(size[-1, 0])
            if len(place) <= _CHUNK:
                # A weight of zero changes no sum, wherever the vector is from.
                sums = added_up(np.minimum(start + place, len(query) - 1), place < size)
            else:
                sums = np.zeros((1, dim))
                for some in slices(len(place), _CHUNK):
                    sums += added_up(start + place[some], True)
            total[by_count[piece]] = sums
            finite.append(bool(np.isfinite(sums).all()))

    everywhere(add_up, len(pieces), 1)

    document_of = np.repeat(by_count, each)
    mass = np.bincount(document_of, np.abs(weight) * queries.length[query], minlength=len(rows)).astype(np.float64)
    if not (np.isfinite(mass).all() and all(finite)):
        raise LabelError("training queries: labels times query vectors are too large to add up; scale them down")
    pushed = np.bincount(document_of, weight < 0, minlength=len(rows)) > 0
    return Pull(rows, total, mass, count, pushed)


def _pieces(count: Ints, width: Ints, most: int) -> Iterator[slice]:
    """Stretches of documents of the same width, with ``most`` labels at most where there is more than one document.
    They come sorted by how many labels they have. Those with more than a chunk come alone."""
    edges = np.flatnonzero(np.diff(width, prepend=-1, append=-1)).tolist()
    for begin, end in pairwise(edges):
        size = int(count[end - 1])
        for part in slices(end - begin, max(1, most // size) if size <= _CHUNK else 1):
            yield slice(begin + part.start, begin + part.stop)
