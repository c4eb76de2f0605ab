"""The engine of the base install: float32 products by NumPy's BLAS, one comparison per score, on all cores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nudgevec import parallel
from nudgevec.columns import Columns
from nudgevec.engines.base import Meeting, Met, Result, Survivors, crowded, handfuls, kth_reached
from nudgevec.lines import Bars, Levels, Mask, all_true, entries, kth_largest, split_up
from nudgevec.overtaking import Lone
from nudgevec.parallel import everywhere, ordered, slices
from nudgevec.rows import Floats, Ints
from nudgevec.scratch import Scratch
from nudgevec.tiles import Single, Singles, Tile

# Scores of one tile: 2 million float32, 8 MB.
_TILE_SCORES = 1 << 21
_FIRST_SCORES = 1 << 22
# Documents of one: at least so many, and with few queries at most so many bytes of float32.
_NARROWEST = 256
_TILE_BYTES = 1 << 24
_QUERIES = 2048
_FEWEST_QUERIES = 64
# Scores of moving documents at each end, at a time.
_MEETING_SCORES = 1 << 22
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

    def meeting(self, columns: Columns) -> Meeting:
        return NumpyMeeting(columns, self.scratch)


class CpuSieve(ABC):
    """What filters on the CPU have in common: tiles go to threads, one each."""

    first_width: int
    width: int
    patience = 0.25

    def __init__(self, queries: Floats, first_scores: int, tile_scores: int, scratch: Scratch) -> None:
        self.count, dim = queries.shape
        self.scratch = scratch
        widest = _TILE_BYTES // (4 * dim)
        self.first_width = max(_NARROWEST, min(widest, first_scores // self.count))
        self.width = max(_NARROWEST, min(widest, tile_scores // min(self.count, _QUERIES)))

    @abstractmethod
    def prepared(self, tile: Tile) -> Any:
        """The tile in the form that is multiplied."""

    @abstractmethod
    def over(self, prepared: Any, floor: Floats, queries: slice, *, first: bool) -> tuple[Ints, Ints, Floats, Floats]:
        """(query, number in the tile, bounds of the score) where it may exceed the floor. Of the first tile, only what
        may be among the k best there: no floor knows of them yet."""

    def scan(self, tiles: Iterator[Tile], floor: Floats, finish: Callable[[Survivors], Result]) -> Iterator[Result]:
        def filtered(tile: Tile, prepared: Any, queries: slice, *, first: bool = False) -> Result:
            query, number, low, high = self.over(prepared, floor[queries], queries, first=first)
            return finish(Survivors(tile, query + queries.start, tile.at(number), low, high))

        def whole(tile: Tile) -> list[Result]:
            prepared = self.prepared(tile)
            return [filtered(tile, prepared, some) for some in self._parts(_QUERIES)]

        # Nothing is known before the first tile, so its queries are shared out among the threads.
        first = next(tiles, None)
        if first is None:
            return
        prepared = self.prepared(first)
        share = min(_QUERIES, max(_FEWEST_QUERIES, -(-self.count // parallel.cores())))
        yield from ordered(lambda some: filtered(first, prepared, some, first=True), self._parts(share))
        for results in ordered(whole, tiles):
            yield from results

    def _parts(self, step: int) -> list[slice]:
        return list(parallel.slices(self.count, step))


class NumpySieve(CpuSieve):
    """Filters with float32 products, documents by rows and queries by columns."""

    def __init__(self, queries: Floats, k: int, scratch: Scratch) -> None:
        super().__init__(queries, _FIRST_SCORES, _TILE_SCORES, scratch)
        self.k = k
        self.queries = np.ascontiguousarray(queries.T, dtype=np.float32)

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


class NumpyMeeting:
    """Filters moving documents with two float32 products."""

    def __init__(self, columns: Columns, scratch: Scratch) -> None:
        self.columns = columns
        self.first, self.last = columns.first, columns.last
        self.scratch = scratch
        # Where columns are off by about as much, levels are lowered by that, instead of every score raised.
        least, most = columns.slack.min(initial=np.inf), columns.slack.max(initial=0)
        self.lowered_by = most if most < _EVEN * least else np.float32(0)

    def among(self, queries: Floats, bars: Bars, lone: Lone, k: int) -> Met:
        parts = slices(len(queries), max(_FEWEST_QUERIES, _MEETING_SCORES // max(1, len(self.columns))))
        return Met.joined(
            [met for part in parts for met in self._some(queries[part], bars.way.at(part), part.start, k)]
        )

    def _some(self, queries: Floats, level: Levels, start: int, k: int) -> Iterator[Met]:
        """The same for some of the queries, from the one with this number on."""
        shape = len(queries), len(self.columns)
        first, last = (self.scratch.room(name, shape, np.float32) for name in ("scores", "last"))

        def multiply(part: slice) -> None:
            asked = queries[part].astype(np.float32)
            np.matmul(asked, self.first.T, out=first[part])
            np.matmul(asked, self.last.T, out=last[part])

        # On threads of our own: those of a BLAS wait in a loop for more, and keep a core from others.
        threads = parallel.hands()
        share = len(queries) // (2 * threads) if threads > 1 else len(queries)
        everywhere(multiply, len(queries), max(_FEWEST_QUERIES, share))
        for lines in handfuls(*shape):
            yield self._among(first[lines], last[lines], level.at(lines), start + lines.start, k)

    def _among(self, first: Singles, last: Singles, level: Levels, start: int, k: int) -> Met:
        over = self._over(first, last, level, self.scratch.room("over", first.shape, np.bool_))
        crowd = crowded(over, k)
        if len(crowd):
            ends = first[crowd], last[crowd]
            reached = kth_largest(np.minimum(*ends) - self.columns.slack, np.full(len(crowd), k))
            over[crowd] = self._over(*ends, level.at(crowd).raised(reached), np.empty(ends[0].shape, np.bool_))
        query, column = entries(over)
        return Met(query + start, column, first[query, column], last[query, column])

    def _over(self, first: Singles, last: Singles, level: Levels, over: Mask) -> Mask:
        """Where a column may come above the level."""
        columns = self.columns
        bound = self.scratch.room("bound", first.shape, np.float32)
        if columns.turns:
            # Bounds on a sinusoid are these where they are positive; what is not is left to those who look closer.
            bar = np.where(level.low > 0, level.low, np.float32(-np.inf))
            np.maximum(first, last, out=bound)
            bound += columns.slack
            bound *= columns.bulge
            np.greater_equal(bound, bar[:, None], out=over)
        else:
            some = self.scratch.room("some", first.shape, np.bool_)
            np.greater_equal(self._at_most(first, bound), level.low[:, None] - self.lowered_by, out=over)
            over |= np.greater_equal(self._at_most(last, bound), level.high[:, None] - self.lowered_by, out=some)
        return over

    def _at_most(self, height: Singles, room: Singles) -> Singles:
        """What scores of rays are at most, or the scores themselves where levels are lowered."""
        return height if self.lowered_by else np.add(height, self.columns.slack, out=room)
