"""The scan over the corpus: the nearest documents of every query, exactly.

The documents that do not move never change places among themselves, so only the top k of them can ever be
in anybody's top k; and to evaluate vectors as they are is to find the top k of all. The scan filters in
float32 with a proven bound on the rounding error and decides in float64 from the original vectors, so that
the answer does not depend on block sizes, threads or the BLAS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Array, Floats, Ints, Reader, check_finite, check_nonzero, lengths
from nudgevec.errors import VectorError

Singles = npt.NDArray[np.float32]

# Scores of one query tile against one document tile: 4 million float32, 16 MB.
_TILE_SCORES = 1 << 22
_TILE_QUERIES = 2048
# Pairs of vectors rescored at a time in float64.
_PAIR_BYTES = 1 << 20


@dataclass(frozen=True)
class Nearest:
    """The best documents of every query, best first."""

    row: Ints
    score: Floats


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
            tile, rows = (
                block[offset : offset + width],
                np.arange(first + offset, first + min(offset + width, len(block))),
            )
            hidden = skip[np.searchsorted(skip, rows[0]) : np.searchsorted(skip, rows[-1], side="right")]
            if len(hidden):
                seen = np.delete(np.arange(len(tile)), hidden - rows[0])
                tile, rows = tile[seen], rows[seen]
            if len(rows):
                _scan_tile(found, queries, coarse, tile, rows, reader, cosine, precedence)
    return found


def _scan_tile(
    found: Nearest,
    queries: Floats,
    coarse: Singles,
    tile: Array,
    rows: Ints,
    reader: Reader,
    cosine: bool,
    precedence: Callable[[Ints], npt.NDArray[Any]] | None,
) -> None:
    single, margin = _singles(tile, rows, reader, cosine)
    k = found.row.shape[1]
    for begin in range(0, len(queries), _TILE_QUERIES):
        group = slice(begin, begin + _TILE_QUERIES)
        rough = coarse[group] @ single.T
        floor = found.score[group, -1]
        if len(rows) >= k and np.isneginf(floor).any():
            # Nothing to compare with yet: the k-th best of this tile is as good a floor.
            place = len(rows) - k
            floor = np.maximum(floor, np.partition(rough, place, axis=1)[:, place] - margin)
        bar = np.nextafter((floor - margin).astype(np.float32), np.float32(-np.inf))
        query, column = np.divmod(np.flatnonzero(rough >= bar[:, None]), len(rows))
        if len(query):
            query += begin
            exact = _exact_scores(queries, query, tile, column, cosine)
            _merge(found, query, rows[column], exact, precedence)


def _singles(tile: Array, rows: Ints, reader: Reader, cosine: bool) -> tuple[Singles, float]:
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
        where = rows[odd]
        check_finite(tile[odd], where, reader)
        exact = lengths(tile[odd])
        if cosine:
            check_nonzero(exact, where, reader)
            single = single.copy() if single is tile or np.shares_memory(single, tile) else single
            single[odd] = tile[odd] / exact[:, None]
            length[odd] = 1.0
        elif (exact > 1e15).any():
            name = reader.name(int(where[exact > 1e15][0]))
            raise VectorError(f"documents: {name} is longer than 1e15; rescale the vectors")
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
