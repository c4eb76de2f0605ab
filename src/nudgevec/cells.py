"""Cells: for the documents that move, which of them can matter at which angles.

One (query, interval of angles) with the documents that may change places with a labelled document there
is a *cell*. Intervals are cut in two until their cells are small. Everything is decided on float32 scores
with a proven bound on their error, so a cell can only hold too much; its documents are then scored again
in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nudgevec.corpus import Floats, Ints
from nudgevec.labels import Labels
from nudgevec.lines import Curves, Layout, Mask, Target
from nudgevec.motion import Motion
from nudgevec.nearest import Nearest, pair_dots
from nudgevec.tiles import Singles, error_of

# Queries are taken in groups: few enough for their scores to stay in the cache, enough for products to be fast.
_GROUP_SCORES = 1 << 19
_GROUP_QUERIES = 256
_LARGEST_GROUP = 1 << 23
# A cell is swept as it is when it holds at most this much work, in (label, document) pairs; one more
# label is counted in for scoring each document again.
_CELL_PAIRS = 64
_CELL_SPARE = 16
_CELL_DEPTH = 12


@dataclass(frozen=True)
class Cells:
    """Cells, flat: cell c holds the entries ``start[c]:start[c + 1]``, one per document.

    ``ahead`` counts documents that are ahead of all labelled ones all over the cell and are not listed.
    ``score``, ``slope`` and ``stop`` are the document's curve for the cell's query (see ``motion``);
    ``label`` is the index of the validation label it is, or -1.
    """

    query: Ints
    low: Floats
    high: Floats
    ahead: Ints
    start: Ints
    score: Floats
    slope: Floats
    stop: Floats
    label: Ints


def cells(motion: Motion, queries: Floats, still: Nearest, labels: Labels, k: int) -> Iterator[Cells]:
    """Cut the range of angles into cells. Where no label can be in the top k there is none.

    ``queries`` are unit vectors, ``still`` their nearest unmoved documents (k + 1 of them are enough),
    ``labels`` the relevant validation labels.
    """
    still = Nearest(still.row, still.score / (1.0 if motion.turns else motion.scale))
    columns = len(motion) + still.row.shape[1]
    step = max(1, min(max(_GROUP_SCORES // columns, _GROUP_QUERIES), _LARGEST_GROUP // columns))
    ends = _ends(motion, still, queries.shape[1])
    for begin in range(0, len(queries), step):
        group = slice(begin, min(begin + step, len(queries)))
        known = _Known.of(labels, group, motion, still)
        if len(known.query) == 0:
            continue
        scores = _dense(queries[group].astype(np.float32), ends, still.score[group], motion)
        leaves = _cut(scores, known, motion, k)
        if leaves:
            yield _exact_cells(leaves, begin, queries, motion, still, known)


class _Known(NamedTuple):
    """The labels of a group of queries as (query, column), sorted, with the index of each label.

    Columns are the moving documents, then the still ones of the query. A label on any other document
    never gets into the top k.
    """

    query: Ints
    column: Ints
    label: Ints

    @classmethod
    def of(cls, labels: Labels, group: slice, motion: Motion, still: Nearest) -> _Known:
        part = slice(*np.searchsorted(labels.query, [group.start, group.stop]))
        index = np.arange(part.start, part.stop)
        query, row = labels.query[part], labels.row[part]
        column = np.searchsorted(motion.rows, row)
        moves = np.append(motion.rows, -1)[column] == row
        rests = np.flatnonzero(~moves)
        hit, place = np.nonzero(still.row[query[rests]] == row[rests, None])
        query = np.concatenate([query[moves], query[rests[hit]]]) - group.start
        column = np.concatenate([column[moves], len(motion) + place])
        index = np.concatenate([index[moves], index[rests[hit]]])
        order = np.lexsort((column, query))
        return cls(query[order], column[order], index[order])


class _Ends(NamedTuple):
    """The columns in float32: moving documents at angle zero and at their stops, then the still ones.

    ``slack`` bounds the error of any score of a column: error_of(d) for each of the two products it is
    made from, and a few units in the last place (32 more dimensions' worth) for joining them.
    """

    first: Singles
    last: Singles
    stop: Singles
    slack: Singles


def _ends(motion: Motion, still: Nearest, dim: int) -> _Ends:
    first = motion.start / motion.units[:, None]
    last = motion.direction
    if motion.turns:
        stop = motion.stop[:, None]
        last = np.cos(stop) * first + np.sin(stop) * motion.direction
    longest = np.concatenate([motion.length / motion.units, np.abs(still.score).max(axis=0, initial=0.0)])
    slack = error_of(dim + 32) * np.maximum(longest, 1.0)
    stop = np.concatenate([motion.stop, np.full(still.row.shape[1], motion.still_stop)])
    return _Ends(*(part.astype(np.float32) for part in (first, last, stop, slack)))


class _Dense(NamedTuple):
    """float32 scores of all columns at angle zero and at their stops."""

    first: Singles
    last: Singles
    stop: Singles
    slack: Singles

    def curves(self, query: Ints, column: Ints, motion: Motion) -> Curves:
        """Curves of some documents from their scores at both ends.

        With the slope taken from the ends, f(phi) = (first sin(stop - phi) + last sin phi) / sin stop: an
        error in the ends grows by 1/cos(stop / 2) at most.
        """
        begin, end, stop = self.first[query, column], self.last[query, column], self.stop[column]
        slack = np.float32(1.5) * self.slack[column]
        if not motion.turns:
            return Curves(begin, end, stop, begin, end, slack)
        sine = np.sin(stop)
        slope = np.where(sine > 0, (end - np.cos(stop) * begin) / np.where(sine > 0, sine, 1), np.float32(0))
        return Curves(begin, slope, stop, begin, end, np.divide(slack, np.cos(stop / 2), dtype=np.float32))


def _dense(queries: Singles, ends: _Ends, still: Floats, motion: Motion) -> _Dense:
    moving = len(motion)
    first = np.empty((len(queries), moving + still.shape[1]), np.float32)
    last = np.empty_like(first)
    np.matmul(queries, ends.first.T, out=first[:, :moving])
    np.matmul(queries, ends.last.T, out=last[:, :moving])
    first[:, moving:] = still
    last[:, moving:] = still if motion.turns else 0.0
    return _Dense(first, last, ends.stop, ends.slack)


class _Leaf(NamedTuple):
    """Documents (query, column) of one interval, and for each query how many more are surely ahead."""

    low: float
    high: float
    query: Ints
    column: Ints
    ahead: Ints


class _Node(NamedTuple):
    """An interval, some queries, and per query (one a line) the documents still in question.

    Lines are padded. ``labelled`` are the curves of those documents that are labels and may be in the top k;
    ``ahead`` counts documents that are ahead of all those labels, here and in every part of the interval.
    """

    depth: int
    low: float
    high: float
    query: Ints
    column: Ints
    ahead: Ints
    documents: Curves
    labelled: Curves


def _cut(scores: _Dense, known: _Known, motion: Motion, k: int) -> list[_Leaf]:
    """Cut all angles into leaves, starting from the scores at both ends.

    A document is in question where it can be in the top k and can meet a label that can be there too. A
    label that cannot be in the top k in an interval stays out of all its parts.
    """
    leaves: list[_Leaf] = []
    stack = [_root(scores, known, motion, k)]
    while stack:
        node = stack.pop()
        low, high = np.float32(node.low), np.float32(node.high)
        lower, upper = node.documents.bounds(low, high)
        bar = _kth_largest(lower, k - node.ahead)
        alive, floor, ceiling = _label_range(node.labelled.bounds(low, high), bar)
        keep = (upper >= np.maximum(bar, floor)[:, None]) & (lower <= ceiling[:, None])
        ahead = node.ahead + (lower > ceiling[:, None]).sum(axis=1)
        keep[~alive.any(axis=1) | (ahead >= k)] = False
        _divide(node, keep, ahead, alive, motion, k, stack, leaves)
    return leaves


def _root(scores: _Dense, known: _Known, motion: Motion, k: int) -> _Node:
    """The first node, over all angles: what the scores at both ends leave in question.

    The same tests as for any node, on all documents, in as few passes over the scores as possible. They
    are only made where the thresholds are positive, so that no sign needs looking at.
    """
    first, last, stop, slack = scores
    queries = len(first)
    labelled = Layout(known.query, queries).curves(scores.curves(known.query, known.column, motion))

    lower = np.minimum(first, last)
    lower -= slack
    bar = _kth_largest(lower, np.full(queries, k))
    bar[bar < 0] = -np.inf
    alive, floor, ceiling = _label_range(labelled.bounds(np.float32(0), np.float32(motion.end)), bar)
    threshold = np.maximum(bar, floor)
    threshold[threshold < 0] = -np.inf
    sure = lower > np.maximum(ceiling, 0)[:, None]
    upper = np.maximum(first, last, out=lower)
    upper += slack
    upper *= 1 / np.cos(stop / 2)
    keep = upper >= threshold[:, None]
    keep &= ~sure
    ahead = sure.sum(axis=1)
    keep[~alive.any(axis=1) | (ahead >= k)] = False

    query, column = np.divmod(np.flatnonzero(keep), keep.shape[1])
    used, line = np.unique(query, return_inverse=True)
    layout = Layout(line, len(used))
    documents = layout.curves(scores.curves(query, column, motion))
    columns = layout.table(column, 0)
    return _Node(0, 0.0, motion.end, used, columns, ahead[used], documents, labelled.where(alive, used))


def _label_range(bounds: tuple[Singles, Singles], bar: Singles) -> tuple[Mask, Singles, Singles]:
    """Which labels of a query may be in the top k, and the range of their scores.

    A document below that range is never ahead of such a label, one above it always is.
    """
    lower, upper = bounds
    alive = (upper >= bar[:, None]) & (upper > -np.inf)
    floor = np.where(alive, lower, np.float32(np.inf)).min(axis=1, initial=np.inf)
    ceiling = np.where(alive, upper, np.float32(-np.inf)).max(axis=1, initial=-np.inf)
    return alive, floor, ceiling


def _kth_largest(lower: Singles, k: Ints) -> Singles:
    """A height that at least k documents of each line are above (or -inf): no more is needed.

    Of a long line, the k-th largest of the maxima of its stretches will do.
    """
    most = int(k.max(initial=1))
    stretches = max(64, 8 * most)
    width = lower.shape[1]
    if width > 4 * stretches:
        length = width // stretches
        lower = lower[:, : stretches * length].reshape(len(lower), stretches, length).max(axis=2)
        width = stretches
    if width < most:
        lower = np.concatenate([lower, np.full((len(lower), most - width), -np.inf, np.float32)], axis=1)
        width = most
    best = np.sort(np.partition(lower, width - most, axis=1)[:, width - most :], axis=1)
    kth: Singles = best[np.arange(len(lower)), most - np.maximum(k, 1)]
    return kth


def _divide(
    node: _Node,
    keep: Mask,
    ahead: Ints,
    alive: Mask,
    motion: Motion,
    k: int,
    stack: list[_Node],
    leaves: list[_Leaf],
) -> None:
    """Emit the queries whose cells are small, cut the others in two."""
    count = keep.sum(axis=1)
    work = count * (alive.sum(axis=1) + 1)
    # The top k itself stays in question however narrow the interval.
    last = node.depth >= _CELL_DEPTH or node.low >= motion.span
    small = (work <= _CELL_PAIRS) | (count <= 2 * k + _CELL_SPARE) | last
    done = np.flatnonzero(small & (count > 0))
    if len(done):
        line, place = np.nonzero(keep[done])
        line = done[line]
        leaves.append(_Leaf(node.low, node.high, node.query[line], node.column[line, place], ahead[line]))
    large = np.flatnonzero(~small)
    if len(large) == 0:
        return
    target = Target.of(keep, large)
    column = target.fill(node.column, 0)
    middle = (node.low + min(node.high, motion.span)) / 2
    documents = node.documents.packed(target).halves(np.float32(middle))
    labelled = node.labelled.where(alive, large).halves(np.float32(middle))
    for side, (low, high) in enumerate(((node.low, middle), (middle, node.high))):
        stack.append(
            _Node(node.depth + 1, low, high, node.query[large], column, ahead[large], documents[side], labelled[side])
        )


def _exact_cells(
    leaves: list[_Leaf], begin: int, queries: Floats, motion: Motion, still: Nearest, known: _Known
) -> Cells:
    """Score the documents again in float64, each (query, document) once, and lay the leaves out flat."""
    query = np.concatenate([leaf.query for leaf in leaves])
    column = np.concatenate([leaf.column for leaf in leaves])
    ahead = np.concatenate([leaf.ahead for leaf in leaves])
    leaf_of = np.repeat(np.arange(len(leaves)), [len(leaf.query) for leaf in leaves])
    low = np.array([leaf.low for leaf in leaves])
    high = np.array([leaf.high for leaf in leaves])

    columns = len(motion) + still.row.shape[1]
    pair, back = np.unique(query * columns + column, return_inverse=True)
    of_query, of_column = pair // columns, pair % columns
    moves = of_column < len(motion)
    score = np.empty(len(pair))
    slope = np.zeros(len(pair))
    stop = np.full(len(pair), motion.still_stop)
    mover = of_column[moves]
    score[moves] = pair_dots(queries, of_query[moves] + begin, motion.start, mover) / motion.units[mover]
    slope[moves] = pair_dots(queries, of_query[moves] + begin, motion.direction, mover)
    stop[moves] = motion.stop[mover]
    score[~moves] = still.score[of_query[~moves] + begin, of_column[~moves] - len(motion)]
    label = np.full(len(pair), -1)
    at = np.searchsorted(pair, known.query * columns + known.column)
    listed = np.append(pair, -1)[at] == known.query * columns + known.column
    label[at[listed]] = known.label[listed]

    first = np.flatnonzero((np.diff(query, prepend=-1) != 0) | (np.diff(leaf_of, prepend=-1) != 0))
    return Cells(
        query=query[first] + begin,
        low=low[leaf_of[first]],
        high=high[leaf_of[first]],
        ahead=ahead[first],
        start=np.append(first, len(query)),
        score=score[back],
        slope=slope[back],
        stop=stop[back],
        label=label[back],
    )
