"""The nearest documents of every query, exactly.

The documents that do not move never change places among themselves, so only the top k of them can ever be
in anybody's top k; and to evaluate vectors as they are is to find the top k of all. The scan filters in
float32 with a proven bound on the rounding error and decides in float64 from the original vectors, so that
the answer does not depend on block sizes, threads or the BLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.pairs import pair_dots
from nudgevec.arithmetic.rows import Array, Floats, Ints
from nudgevec.corpus import Reader
from nudgevec.engines.base import Engine, Survivors
from nudgevec.scan.shortlist import Bounded, Candidates, Nearest, Precedence, Shortlist
from nudgevec.scan.tiles import Tile, tiles

Later = Callable[[], Floats]
"""A floor for each query, waited for."""


class Reach(NamedTuple):
    """What the labels of each query never come below, beside documents at rest, and what they never come above;
    infinite where that is not known."""

    lowest: Floats
    highest: Floats


def nearest(
    reader: Reader,
    queries: Floats,
    k: int,
    *,
    cosine: bool,
    skip: Ints | None = None,
    floor: Floats | None = None,
    precedence: Precedence | None = None,
    engine: Engine,
) -> Nearest:
    """The k documents with the highest scores for every (unit) query, leaving out the rows in ``skip``.

    ``precedence`` gives each row a sort key that decides between equal scores; the row by default.
    Where fewer than k documents are left, all of them are found. Of those below the ``floor`` of a query some may be
    left out, which depends on the engine: lists that are not full end in row -1, with a score of minus infinity.
    """
    shortlist = _shortlist(reader, queries, k, cosine, skip, floor, engine, precedence)
    shortlist.settle()
    return shortlist.found


def candidates(
    reader: Reader,
    queries: Floats,
    k: int,
    *,
    cosine: bool,
    skip: Ints | None = None,
    reach: Reach | None = None,
    later: Later | None = None,
    engine: Engine,
) -> Candidates:
    """The same documents and a few more: which of those that score about as much are the best has not been decided.

    Of those out of the ``reach`` of a query's labels some may be left out: those below, and where k - 1 above have been
    found, so that no label is among the best k - 1, all others. ``later`` tells a floor that is not known before, when
    all documents have been seen.
    """
    floor, ceiling = (None, None) if reach is None else reach
    return _shortlist(reader, queries, k, cosine, skip, floor, engine, ceiling=ceiling, later=later).candidates()


def _shortlist(
    reader: Reader,
    queries: Floats,
    k: int,
    cosine: bool,
    skip: Ints | None,
    floor: Floats | None,
    engine: Engine,
    precedence: Precedence | None = None,
    *,
    ceiling: Floats | None = None,
    later: Later | None = None,
) -> Shortlist:
    """What a pass over the documents finds."""
    skip = np.empty(0, np.int64) if skip is None else np.sort(skip)
    asked, k = k, min(k, reader.rows - len(skip))
    found = Nearest(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf))
    if k == 0:
        return Shortlist(found, None, precedence, 0.0, None)
    sieve = engine.sieve(queries, k)
    vectors = reader.at_hand
    scores = None if vectors is None else partial(_scores, queries, vectors, cosine)
    shortlist = Shortlist(found, scores, precedence, sieve.patience, floor)

    def finish(survivors: Survivors) -> Bounded:
        # What cannot be read again later is scored at once.
        tile, query, place, low, high = survivors
        if vectors is None:
            low = high = pair_dots(queries, query, tile.block, place, cosine=cosine)
        return Bounded(query, tile.first + place, low, high).where(high >= shortlist.floor[query])

    def wanting(some: Ints) -> Ints:
        # Where there are fewer documents than were asked for, none is too many.
        return some if ceiling is None or k < asked else some[shortlist.draft[some, 1] <= ceiling[some]]

    def stream() -> Iterator[Tile]:
        yield from tiles(reader, skip, sieve.first_width, sieve.width, cosine=cosine)
        if later is not None:
            shortlist.leave_out_below(later())

    for some in sieve.scan(stream(), shortlist.floor, wanting, finish):
        shortlist.add(some)
    return shortlist


def _scores(queries: Floats, vectors: Array, cosine: bool, query: Ints, row: Ints) -> Floats:
    return pair_dots(queries, query, vectors, row, cosine=cosine)
