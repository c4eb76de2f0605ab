"""The engine of the base install: float32 products by NumPy's BLAS, one comparison per score, on all cores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Self

import numpy as np

from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.parallel import begin_everywhere, everywhere, ordered, slices
from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles, some_rows
from nudgevec.arithmetic.scratch import Scratch, in_large_pages
from nudgevec.arithmetic.sorting import sorted_places
from nudgevec.arithmetic.tables import all_true, kth_largest, split_up
from nudgevec.cut.columns import Columns
from nudgevec.cut.lines import Bars, Levels
from nudgevec.cut.overtaking import Lone
from nudgevec.engines.base import Meeting, Met, Result, Survivors, Wanting, crowded, handfuls, kth_reached
from nudgevec.scan.tiles import Single, Tile

# Scores of one tile: 4 million float32, 16 MB.
_TILE_SCORES = 1 << 22
_FIRST_SCORES = 1 << 22
# Documents of one: at least so many, and with few queries at most so many bytes of float32.
_NARROWEST = 256
_TILE_BYTES = 1 << 24
_QUERIES = 2048
_FEWEST_QUERIES = 64
# Queries that want no more documents are left out when they are this share of those still asked about.
_WORTH_LEAVING_OUT = 1 / 32
# Scores of moving documents at each end, at a time; documents, at least; and turns of each thread that multiplies them.
_MEETING_SCORES = 1 << 20
_FEWEST_DOCUMENTS = 64
_TURNS = 2
# What columns may be off by is about the same up to this factor.
_EVEN = 1.5


class NumpyEngine:
    """float32 on the CPU."""

    name = "numpy"
    at_once = 0

    def __init__(self) -> None:
        self.scratch = Scratch([])

    def sieve(self, queries: Floats, k: int) -> CpuSieve:
        return NumpySieve(queries, k, self.scratch)

    def meeting(self, columns: Columns, queries: Floats) -> Meeting:
        meeting = NumpyMeeting(columns, queries, self.scratch)
        meeting.begin()
        return meeting


class CpuSieve(ABC):
    """What filters on the CPU have in common: tiles go to threads, one each, and fewer and fewer queries with them."""

    first_width: int
    width: int
    patience = 0.25

    def __init__(self, queries: Floats, first_scores: int, tile_scores: int, scratch: Scratch) -> None:
        count, dim = queries.shape
        # The queries that are asked about.
        self.numbers = np.arange(count)
        self.scratch = scratch
        widest = _TILE_BYTES // (4 * dim)
        self.first_width = max(_NARROWEST, min(widest, first_scores // count))
        self.width = max(_NARROWEST, min(widest, tile_scores // min(count, _QUERIES)))

    @abstractmethod
    def only(self, numbers: Ints) -> Self:
        """A filter for some of the queries, made from the one for all of them."""

    @abstractmethod
    def prepared(self, tile: Tile) -> Any:
        """The tile in the form that is multiplied."""

    @abstractmethod
    def over(self, prepared: Any, floor: Floats, queries: slice, *, first: bool) -> tuple[Ints, Ints, Floats, Floats]:
        """(query, number in the tile, bounds of the score) where it may exceed the floor. Of the first tile, only what
        may be among the k best there: no floor knows of them yet."""

    def scan(
        self, tiles: Iterator[Tile], floor: Floats, wanting: Wanting, finish: Callable[[Survivors], Result]
    ) -> Iterator[Result]:
        def filtered(sieve: Self, tile: Tile, prepared: Any, queries: slice, *, first: bool = False) -> Result:
            numbers = sieve.numbers[queries]
            query, number, low, high = sieve.over(prepared, floor[numbers], queries, first=first)
            return finish(Survivors(tile, numbers[query], tile.at(number), low, high))

        def whole(piece: tuple[Self, Tile]) -> list[Result]:
            sieve, tile = piece
            prepared = sieve.prepared(tile)
            return [filtered(sieve, tile, prepared, some) for some in slices(len(sieve.numbers), _QUERIES)]

        # Nothing is known before the first tile, so its queries are shared out among the threads.
        first = next(tiles, None)
        if first is None:
            return
        prepared = self.prepared(first)
        share = min(_QUERIES, max(_FEWEST_QUERIES, -(-len(self.numbers) // parallel.cores())))
        parts = slices(len(self.numbers), share)
        yield from ordered(lambda some: filtered(self, first, prepared, some, first=True), parts)
        for results in ordered(whole, self._narrowing(tiles, wanting)):
            yield from results

    def _narrowing(self, tiles: Iterator[Tile], wanting: Wanting) -> Iterator[tuple[Self, Tile]]:
        """Tiles, with filters for the queries that want more when a tile is taken, and perhaps a few others. Where
        nobody does, tiles are still checked."""
        sieve = self
        for tile in tiles:
            left = wanting(sieve.numbers)
            if len(left) <= (1 - _WORTH_LEAVING_OUT) * len(sieve.numbers):
                sieve = self.only(left)
            yield sieve, tile


class NumpySieve(CpuSieve):
    """Filters with float32 products, documents by rows and queries by columns."""

    def __init__(self, queries: Floats, k: int, scratch: Scratch) -> None:
        super().__init__(queries, _FIRST_SCORES, _TILE_SCORES, scratch)
        self.k = k
        self.queries = np.ascontiguousarray(queries.T, dtype=np.float32)

    def only(self, numbers: Ints) -> Self:
        fewer = copy(self)
        fewer.numbers, fewer.queries = numbers, self.queries.take(numbers, axis=1)
        return fewer

    def prepared(self, tile: Tile) -> Single:
        return tile.single(self.scratch.room("rows", (len(tile), tile.block.shape[1]), np.float32))

    def over(
        self, prepared: Single, floor: Floats, queries: slice, *, first: bool
    ) -> tuple[Ints, Ints, Floats, Floats]:
        columns = self.queries[:, queries]
        scores = self.scratch.room("scores", (len(prepared.rows), columns.shape[1]), np.float32)
        np.matmul(prepared.rows, columns, out=scores)
        level = floor
        if (first or level.min() == -np.inf) and len(scores) >= self.k:
            level = np.maximum(level, kth_reached(scores, self.k) - prepared.margin)
        bar = np.nextafter((level - prepared.margin).astype(np.float32), np.float32(-np.inf))
        over = self.scratch.room("over", scores.shape, np.bool_)
        np.greater_equal(scores, bar, out=over)
        found = all_true(over)
        number, query = split_up(found, scores.shape[1])
        score = scores.ravel()[found].astype(np.float64)
        return query, number, score - prepared.margin, score + prepared.margin


def _multiplier(ends: Singles, queries: Singles, into: Singles) -> Callable[[slice], None]:
    """What multiplies documents at both ends with some of the queries, by columns."""

    def multiply(some: slice) -> None:
        np.matmul(ends, queries[:, some], out=into[:, :, some])

    return multiply


def _at_a_time(queries: int) -> int:
    """How many queries to multiply at a time, so that each thread has a few turns."""
    threads = parallel.hands()
    return max(_FEWEST_QUERIES, queries // (_TURNS * threads) if threads > 1 else queries)


class NumpyMeeting:
    """Filters moving documents with two float32 products."""

    def __init__(self, columns: Columns, queries: Floats, scratch: Scratch) -> None:
        self.columns, self.queries = columns, queries
        # Made here, on all cores, and not by the first thread that asks.
        self.ends = columns.ends
        self.scratch = scratch
        # Where columns are off by about as much, levels are lowered by that, instead of every score raised.
        least, most = columns.slack.min(initial=np.inf), columns.slack.max(initial=0)
        self.lowered_by = most if most < _EVEN * least else np.float32(0)
        self.begun: tuple[Singles, Callable[[], None]] | None = None

    def begin(self) -> None:
        """Have all products made while others go on, where they are few enough to be kept."""
        documents, queries = len(self.columns), len(self.queries)
        if documents * queries <= _MEETING_SCORES:
            tables = in_large_pages(8 * documents * queries).view(np.float32).reshape(2, documents, queries)
            multiply = _multiplier(self.ends, self.queries.astype(np.float32).T, tables)
            self.begun = tables, begin_everywhere(multiply, queries, _at_a_time(queries))

    def among(self, asked: Ints, bars: Bars, lone: Lone, k: int) -> Met:
        way = Levels(*map(np.array, bars.way))
        if self.begun is not None:
            tables, finish = self.begun
            finish()
            ends = tables if len(asked) == len(self.queries) else tables.take(asked, axis=2)
            met = self._among(ends, way, slice(0, len(self.columns)), k)
        else:
            queries = some_rows(self.queries, asked).astype(np.float32).T
            step = max(_FEWEST_DOCUMENTS, _MEETING_SCORES // len(asked))
            parts = list(slices(len(self.columns), step)) or [slice(0, 0)]
            met = Met.joined([self._among(self._multiplied(queries, part), way, part, k) for part in parts])
        return met.where(sorted_places(met.query))

    def _multiplied(self, queries: Singles, part: slice) -> Singles:
        """Products of some of the documents at both ends, in a room of this thread."""
        shape = part.stop - part.start, queries.shape[1]
        ends = self.scratch.room("scores", (2 * shape[0], shape[1]), np.float32).reshape(2, *shape)
        # On threads of our own: those of a BLAS wait in a loop for more, and keep a core from others.
        everywhere(_multiplier(self.ends[:, part], queries, ends), shape[1], _at_a_time(shape[1]))
        return ends

    def _among(self, ends: Singles, way: Levels, part: slice, k: int) -> Met:
        """What ``among`` finds of some of the documents, given their products. Levels rise on the way, in place."""
        first, last = ends
        shape = first.shape
        over = self.scratch.room("over", shape, np.bool_)
        slack, bulge = self.columns.slack[part, None], self.columns.bulge[part, None]
        for some in handfuls(*shape):
            self._over(first[some], last[some], slack[some], bulge[some], way, over[some])
        crowd = crowded(over.T, k)
        if len(crowd):
            ends_there = first[:, crowd], last[:, crowd]
            reached = kth_largest((np.minimum(*ends_there) - slack).T, np.full(len(crowd), k))
            raised = way.at(crowd).raised(reached)
            over[:, crowd] = self._over(*ends_there, slack, bulge, raised, np.empty(ends_there[0].shape, np.bool_))
            way.low[crowd], way.high[crowd] = raised
        found = all_true(over)
        place, query = split_up(found, shape[1])
        return Met(query, place + part.start, first.ravel()[found], last.ravel()[found])

    def _over(self, first: Singles, last: Singles, slack: Singles, bulge: Singles, level: Levels, over: Mask) -> Mask:
        """Where a document may come above the level."""
        bound = self.scratch.room("bound", first.shape, np.float32)
        if self.columns.turns:
            # Bounds on a sinusoid are these where they are positive; what is not is left to those who look closer.
            bar = np.where(level.low > 0, level.low, np.float32(-np.inf))
            np.maximum(first, last, out=bound)
            bound += slack
            bound *= bulge
            np.greater_equal(bound, bar, out=over)
            return over
        some = self.scratch.room("some", first.shape, np.bool_)
        for end, bar, into in zip((first, last), level, (over, some), strict=True):
            # What scores are at most, or the scores themselves where levels are lowered.
            height = end if self.lowered_by else np.add(end, slack, out=bound)
            np.greater_equal(height, bar - self.lowered_by, out=into)
        over |= some
        return over
