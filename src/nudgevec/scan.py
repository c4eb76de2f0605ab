"""The scan: for every validation query, the few documents that can matter.

Two passes, both of which filter in float32 with a proven bound on the rounding error and decide in
float64 from the original vectors, so that the answer does not depend on block sizes or the BLAS:

* ``nearest``: the top k of the documents that do not move. They never change places among
  themselves, so no other still document can ever be in anybody's top k.
* ``cells``: for the documents that move, the range of angles is cut into intervals until few
  documents are left in each. One (query, interval) with its surviving documents is a *cell*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import pi
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Array, Floats, Ints, Reader, check_finite, check_nonzero, lengths
from nudgevec.errors import VectorError
from nudgevec.labels import Labels
from nudgevec.motion import Motion, height

Singles = npt.NDArray[np.float32]

# Scores of one query tile against one document tile: 4 million float32, 16 MB.
_TILE_SCORES = 1 << 22
_TILE_QUERIES = 2048
# Pairs of vectors rescored at a time in float64.
_PAIR_BYTES = 16 << 20
# A cell with at most this many (label, document) pairs is swept as it is; larger ones are cut in two.
_CELL_PAIRS = 512
_CELL_DEPTH = 12


@dataclass(frozen=True)
class Nearest:
    """The best documents of every query, best first."""

    row: Ints
    score: Floats


@dataclass(frozen=True)
class Cells:
    """Cells, flat: cell c holds the entries ``start[c]:start[c + 1]``, one per surviving document.

    ``score``, ``slope`` and ``stop`` are the document's curve for the cell's query (see ``motion``);
    ``label`` is the index of the validation label it is, or -1.
    """

    query: Ints
    low: Floats
    high: Floats
    start: Ints
    score: Floats
    slope: Floats
    stop: Floats
    label: Ints


def nearest(
    reader: Reader,
    queries: Floats,
    k: int,
    *,
    cosine: bool,
    skip: Ints | None = None,
    precedence: Callable[[Ints], npt.NDArray[Any]] | None = None,
) -> Nearest:
    """The k documents with the highest scores for every (unit) query, leaving out the rows in ``skip``.

    ``precedence`` gives each row a sort key that decides between equal scores; the row by default.
    Where fewer than k documents are left, all of them are found.
    """
    skip = np.empty(0, np.int64) if skip is None else np.sort(skip)
    k = min(k, reader.rows - len(skip))
    found = Nearest(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf))
    if k == 0:
        return found
    coarse = queries.astype(np.float32)
    for first, block in reader.blocks():
        width = max(1, _TILE_SCORES // max(1, min(len(queries), _TILE_QUERIES)))
        for offset in range(0, len(block), width):
            tile = block[offset : offset + width]
            start = first + offset
            hidden = skip[np.searchsorted(skip, start) : np.searchsorted(skip, start + len(tile))] - start
            _scan_tile(found, queries, coarse, tile, start, hidden, reader, cosine, precedence)
    return found


def _scan_tile(
    found: Nearest,
    queries: Floats,
    coarse: Singles,
    tile: Array,
    start: int,
    hidden: Ints,
    reader: Reader,
    cosine: bool,
    precedence: Callable[[Ints], npt.NDArray[Any]] | None,
) -> None:
    single, margin = _singles(tile, start, reader, cosine)
    k = found.row.shape[1]
    for begin in range(0, len(queries), _TILE_QUERIES):
        group = slice(begin, begin + _TILE_QUERIES)
        rough = coarse[group] @ single.T
        rough[:, hidden] = -np.inf
        floor = found.score[group, -1]
        if rough.shape[1] - len(hidden) >= k and np.isneginf(floor).any():
            # Nothing to compare with yet: the k-th best of this tile is as good a floor.
            place = rough.shape[1] - k
            floor = np.maximum(floor, np.partition(rough, place, axis=1)[:, place] - margin)
        bar = np.nextafter((floor - margin).astype(np.float32), np.float32(-np.inf))
        query, column = np.nonzero(rough >= bar[:, None])
        if len(hidden):
            seen = ~np.isneginf(rough[query, column])
            query, column = query[seen], column[seen]
        if len(query):
            query += begin
            exact = _exact_scores(queries, query, tile, column, cosine)
            _merge(found, query, column + start, exact, precedence)


def _singles(tile: Array, start: int, reader: Reader, cosine: bool) -> tuple[Singles, float]:
    """The tile in float32 (unit rows for cosine), and a bound on the error of any of its scores.

    With u = 2^-24, unit queries q and rows x of d numbers: rounding q and x costs at most u|x| each;
    a float32 inner product in any order at most d u/(1 - d u) |x|; a row normalised by a float32
    length (itself off by (d/2 + 2) u) at most (d/2 + 4) u. Together below (1.5 d + 16) u |x| (1 + 1e-2)
    for every d up to 100,000.
    """
    unit_roundoff = 2.0**-24
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(tile, dtype=np.float32)
    square = np.einsum("ij,ij->i", single, single)
    odd = np.flatnonzero(~((square > 1e-30) & (square < 1e30)))
    length = np.sqrt(square)
    if len(odd):
        rows = odd + start
        check_finite(tile[odd], rows, reader)
        exact = lengths(tile[odd])
        if cosine:
            check_nonzero(exact, rows, reader)
            single = single.copy() if single is tile or np.shares_memory(single, tile) else single
            single[odd] = tile[odd] / exact[:, None]
            length[odd] = 1.0
        elif (exact > 1e15).any():
            where = reader.name(int(rows[exact > 1e15][0]))
            raise VectorError(f"documents: {where} is longer than 1e15; rescale the vectors")
    if cosine:
        single = single / length[:, None]
        longest = 1.0
    else:
        longest = float(length.max(initial=0.0)) * 1.01
    return single, 1.01 * (1.5 * tile.shape[1] + 16) * unit_roundoff * longest + 1e-30


def _exact_scores(queries: Floats, query: Ints, vectors: Array, row: Ints, cosine: bool) -> Floats:
    score = pair_dots(queries, query, vectors, row)
    if cosine:
        used, back = np.unique(row, return_inverse=True)
        score /= lengths(vectors[used])[back]
    return score


def pair_dots(left: Array, i: Ints, right: Array, j: Ints) -> Floats:
    """``left[i] . right[j]`` pair by pair in float64. Each result depends on its own two rows only."""
    result = np.empty(len(i))
    step = max(1, _PAIR_BYTES // (8 * left.shape[1]))
    for begin in range(0, len(i), step):
        part = slice(begin, begin + step)
        a = left[i[part]].astype(np.float64, copy=False)
        b = right[j[part]].astype(np.float64, copy=False)
        np.einsum("ij,ij->i", a, b, out=result[part])
    return result


def _merge(
    found: Nearest,
    query: Ints,
    row: Ints,
    score: Floats,
    precedence: Callable[[Ints], npt.NDArray[Any]] | None,
) -> None:
    """Put new scored documents into the lists of their queries, in place."""
    k = found.row.shape[1]
    changed = np.unique(query)
    query = np.concatenate([np.repeat(changed, k), query])
    row = np.concatenate([found.row[changed].ravel(), row])
    score = np.concatenate([found.score[changed].ravel(), score])
    order = np.lexsort((row if precedence is None else precedence(row), -score, query))
    first = np.searchsorted(query[order], changed)
    best = order[first[:, None] + np.arange(k)]
    found.row[changed] = row[best]
    found.score[changed] = score[best]


def cells(motion: Motion, queries: Floats, still: Nearest, labels: Labels, k: int) -> Iterator[Cells]:
    """Cut the range of angles into cells that hold every document that can reach the top k in them.

    ``queries`` are unit vectors, ``still`` their nearest unmoved documents (k + 1 of them are enough),
    ``labels`` the relevant validation labels.
    """
    kept = still.row.shape[1]
    columns = len(motion) + kept
    step = max(1, _TILE_SCORES // columns)
    start = (motion.start / motion.length[:, None] if motion.turns else motion.start).astype(np.float32)
    direction = motion.direction.astype(np.float32)
    longest = 1.0 if motion.turns else max(float(motion.length.max(initial=0.0)), motion.scale)
    longest = max(longest, float(np.abs(still.score).max(initial=0.0)))
    # As in _singles, for two products and the float32 arithmetic that joins them.
    margin = np.float32(1.01 * (3.0 * queries.shape[1] + 48) * 2.0**-24 * longest)

    for begin in range(0, len(queries), step):
        group = queries[begin : begin + step]
        coarse = group.astype(np.float32)
        score = np.empty((len(group), columns), np.float32)
        slope = np.zeros((len(group), columns), np.float32)
        np.matmul(coarse, start.T, out=score[:, : len(motion)])
        np.matmul(coarse, direction.T, out=slope[:, : len(motion)])
        score[:, len(motion) :] = still.score[begin : begin + step]
        stop = np.concatenate([motion.stop, np.full(kept, motion.still_stop)]).astype(np.float32)

        label = _label_columns(labels, begin, len(group), motion, still)
        leaves = _cut(score, slope, stop[None, :], label >= 0, motion, margin, k)
        if leaves:
            yield _exact_cells(leaves, begin, queries, motion, still, label)


def _label_columns(labels: Labels, begin: int, count: int, motion: Motion, still: Nearest) -> Ints:
    """For a group of queries, which label each column is (or -1), as a (queries, columns) table."""
    kept = still.row.shape[1]
    table = np.full((count, len(motion) + kept), -1)
    part = slice(*np.searchsorted(labels.query, [begin, begin + count]))
    index = np.arange(part.start, part.stop)
    query, row = labels.query[part] - begin, labels.row[part]
    column = np.searchsorted(motion.rows, row)
    moves = np.append(motion.rows, -1)[column] == row
    table[query[moves], column[moves]] = index[moves]
    rests = np.flatnonzero(~moves)
    hit, place = np.nonzero(still.row[labels.query[part][rests]] == row[rests, None])
    table[query[rests[hit]], len(motion) + place] = index[rests[hit]]
    return table


Leaf = tuple[float, float, Ints, Ints]


def _cut(
    score: Singles,
    slope: Singles,
    stop: Singles,
    labelled: npt.NDArray[np.bool_],
    motion: Motion,
    margin: np.float32,
    k: int,
) -> list[Leaf]:
    """Leaves (low, high, query, column): per interval, the documents that may reach the top k there.

    If at least k documents stay above T all over an interval, a document that stays below T is never
    in the top k. A sinusoid over an arc of h <= pi/2 lies between its values at the two ends, but for
    a bulge: it can exceed the larger by a factor 1/cos(h/2) where that is positive, and undercut the
    smaller by the same factor where that is negative.
    """
    leaves: list[Leaf] = []
    everything = np.arange(score.shape[0]), None, score, slope, stop, labelled
    knots = [0.0, motion.end] if motion.span <= pi / 2 else [0.0, motion.span / 2, motion.end]
    stack: list[Any] = [(0, low, high, *everything) for low, high in pairwise(knots)]
    while stack:
        depth, low, high, rows, column, score, slope, stop, labelled = stack.pop()
        ends = height(score, slope, stop, np.float32(low)), height(score, slope, stop, np.float32(high))
        bulge = 1 / np.cos((np.minimum(np.float32(high), stop) - np.minimum(np.float32(low), stop)) / 2)
        least, most = np.minimum(*ends), np.maximum(*ends)
        np.multiply(least, bulge, out=least, where=least < 0)
        np.multiply(most, bulge, out=most, where=most > 0)
        width = score.shape[1]
        if width > k:
            bar = np.partition(least, width - k, axis=1)[:, width - k] - 2 * margin
            keep = most >= bar[:, None]
        else:
            keep = most > -np.inf
        count = keep.sum(axis=1)
        pairs = count * (keep & labelled).sum(axis=1)

        small = (pairs <= _CELL_PAIRS) | (depth >= _CELL_DEPTH)
        done = np.flatnonzero(small & (pairs > 0))
        if len(done):
            query, place = np.nonzero(keep[done])
            leaves.append((low, high, rows[done[query]], place if column is None else column[done[query], place]))
        large = np.flatnonzero(~small)
        if len(large) == 0:
            continue
        # Pack the survivors of each query to the left; the padding can never reach the top.
        widest = int(count[large].max())
        order = np.argsort(~keep[large], axis=1, kind="stable")[:, :widest]
        padding = ~np.take_along_axis(keep[large], order, axis=1)
        lines = large[:, None]
        packed_score = score[lines, order]
        packed_score[padding] = -np.inf
        packed_slope = np.where(padding, np.float32(0), slope[lines, order])
        packed_stop = np.where(padding, np.float32(0), np.broadcast_to(stop, score.shape)[lines, order])
        packed_label = labelled[lines, order] & ~padding
        packed_column = order if column is None else column[lines, order]
        middle = (low + min(high, motion.span)) / 2
        for half in ((low, middle), (middle, high)):
            stack.append(
                (depth + 1, *half, rows[large], packed_column, packed_score, packed_slope, packed_stop, packed_label)
            )
    return leaves


def _exact_cells(leaves: list[Leaf], begin: int, queries: Floats, motion: Motion, still: Nearest, label: Ints) -> Cells:
    """Score the survivors again in float64, each (query, document) once, and lay the leaves out flat."""
    query = np.concatenate([leaf[2] for leaf in leaves])
    column = np.concatenate([leaf[3] for leaf in leaves])
    leaf_of = np.repeat(np.arange(len(leaves)), [len(leaf[2]) for leaf in leaves])
    low = np.array([leaf[0] for leaf in leaves])
    high = np.array([leaf[1] for leaf in leaves])

    columns = label.shape[1]
    pair, back = np.unique(query * columns + column, return_inverse=True)
    of_query, of_column = pair // columns, pair % columns
    moves = of_column < len(motion)
    score = np.empty(len(pair))
    slope = np.zeros(len(pair))
    stop = np.full(len(pair), motion.still_stop)
    mover = of_column[moves]
    score[moves] = pair_dots(queries, of_query[moves] + begin, motion.start, mover)
    if motion.turns:
        score[moves] /= motion.length[mover]
    slope[moves] = pair_dots(queries, of_query[moves] + begin, motion.direction, mover)
    stop[moves] = motion.stop[mover]
    score[~moves] = still.score[of_query[~moves] + begin, of_column[~moves] - len(motion)]

    first = np.flatnonzero((np.diff(query, prepend=-1) != 0) | (np.diff(leaf_of, prepend=-1) != 0))
    return Cells(
        query=query[first] + begin,
        low=low[leaf_of[first]],
        high=high[leaf_of[first]],
        start=np.append(first, len(query)),
        score=score[back],
        slope=slope[back],
        stop=stop[back],
        label=label[of_query, of_column][back],
    )
