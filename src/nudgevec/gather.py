"""Gathering the pull: what the training queries ask of each labelled document.

The pull on document j is ``G_j = sum_i w_ij q_i`` over the training queries i. It is a sparse product,
summed in float64. The pull on a document depends on its own labels only, down to the last bit, so it
can be recomputed for a few documents and still equal a computation from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere, slices
from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.scratch import taken_rows
from nudgevec.arithmetic.sorting import begins, sorted_places
from nudgevec.errors import LabelError
from nudgevec.labels import Labels
from nudgevec.queries import Queries

# Numbers added up at a time, and labels of one document at most.
_AT_A_TIME = 3 << 17
_CHUNK = 1 << 9
# Masses may come up to this.
_LARGEST = 1e307
# Documents whose numbers of labels are between two of these are added up together.
_STEPS = np.append(np.rint(1.2 ** np.arange(35)), _CHUNK)


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
    order = sorted_places(labels.row)
    query, row, weight = labels.query[order], labels.row[order], labels.weight[order]
    del order
    first = np.flatnonzero(begins(row))
    rows, count = row[first], np.append(first[1:], len(row)) - first
    mass: Floats = np.add.reduceat(np.abs(weight) * queries.length[query], first)
    pushed = np.minimum.reduceat(weight, first) < 0
    # No sum on the way is larger than that.
    if not mass.max(initial=0.0) < _LARGEST:
        raise LabelError("training queries: labels times query vectors are too large to add up; scale them down")

    # Documents with about as many labels come one after the other, as if all had as many as the one with most: a
    # weight of zero changes no sum, whatever the vector. (Single numbers are added up in an order that depends on how
    # many there are.)
    vectors = queries.vectors
    dim = vectors.shape[1]
    by_count = sorted_places(count)
    width = _widths(count[by_count]) if dim > 1 else count[by_count]
    start = np.append(0, np.cumsum(width))
    label, there = _padded(first[by_count], count[by_count], width)
    query, weight = query[label], weight[label] * there
    del row, label, there

    total = np.empty((len(rows), dim))
    # Those with most labels first: at the end no thread waits for long, and no room has to grow.
    pieces = sorted(_pieces(width, max(1, _AT_A_TIME // dim)), key=lambda some: start[some.start] - start[some.stop])

    def added_up(some: slice, documents: int) -> Floats:
        asked = taken_rows("rows", vectors, query[some]).reshape(documents, -1, dim)
        sums: Floats = np.einsum("ij,ijd->id", weight[some].reshape(documents, -1), asked)
        return sums

    def add_up(part: slice) -> None:
        for piece in pieces[part]:
            documents = piece.stop - piece.start
            parts = slices(start[piece.stop], documents * _CHUNK, start[piece.start])
            total[by_count[piece]] = reduce(np.add, (added_up(some, documents) for some in parts))

    everywhere(add_up, len(pieces), 1)
    return Pull(rows, total, mass, count, pushed)


def _widths(count: Ints) -> Ints:
    """The largest of those between the same two steps, for every number of labels (which come sorted). Those above a
    chunk stay as they are."""
    step = np.searchsorted(_STEPS, count)
    end = np.append(np.flatnonzero(begins(step))[1:], len(step))
    return np.where(count > _CHUNK, count, np.repeat(count[end - 1], np.diff(end, prepend=0)))


def _padded(first: Ints, count: Ints, width: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Stretches of so many numbers from ``first`` on, their last ones repeated to make them as long as ``width``; and
    which are not repeated ones."""
    place = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width)
    count = np.repeat(count, width)
    return np.repeat(first, width) + np.minimum(place, count - 1), place < count


def _pieces(width: Ints, most: int) -> Iterator[slice]:
    """Stretches of documents of the same width, with ``most`` labels at most where there is more than one document.
    Those with more than a chunk come alone."""
    for begin, end in pairwise([*np.flatnonzero(begins(width)).tolist(), len(width)]):
        size = int(width[begin])
        yield from slices(end, max(1, most // size) if size <= _CHUNK else 1, begin)
