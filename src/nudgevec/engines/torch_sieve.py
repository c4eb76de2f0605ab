"""The scan on the CPU with PyTorch: products of 8 or 16 bits tell where to look closer, float32 what to keep.

Products of 8 bits are the faster ones. What they lose is about the same whatever the scores, so where these hardly
differ bfloat16 is used instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.engines.base import kth_of_maxima
from nudgevec.engines.formats import BFloat16, Format, Integers, Rounded, Table
from nudgevec.engines.numpy_engine import CpuSieve
from nudgevec.engines.pytorch import multiplies_integers, pair_products
from nudgevec.parallel import slices
from nudgevec.rows import Floats, Ints
from nudgevec.scratch import Scratch
from nudgevec.tiles import Singles, Tile, error_of

# Scores of one tile.
_TILE_SCORES = 1 << 22
_FIRST_SCORES = 1 << 23
# Queries at a time: their scores are compared while they are in the cache.
_QUERIES = 512
# Sums of so many products of 8 bits fit into 32.
_MOST_DIMENSIONS = 1 << 17
# 8 bits will do where they are off by less than this many standard deviations of the scores of so many queries for so
# many documents.
_SPREAD = 0.7
_SOME = 64
_DOCUMENTS = 512


class Prepared(NamedTuple):
    """A tile in float32 and in few bits, and bounds on the errors of scores: in float32, and in few bits for each
    query."""

    form: Format
    rows: Singles
    rounded: Rounded
    fine: float
    coarse: Floats


class TorchSieve(CpuSieve):
    """Filters with products of few bits, then in float32.

    The error of a product, for a unit query q and a row x, is at most |q - q'| |x'| + |q| |x - x'| for the rounding of
    both, what adding up loses, and the error of x itself. (A fiftieth more covers the rounding of the bound.)

    The first tile, which sets the floor for the others, is filtered in bfloat16.
    """

    def __init__(self, queries: Floats, k: int, scratch: Scratch) -> None:
        super().__init__(queries, _FIRST_SCORES, _TILE_SCORES, scratch)
        self.k = k
        self.queries = queries.astype(np.float32)
        self.first = BFloat16(queries)
        sums_fit = queries.shape[1] <= _MOST_DIMENSIONS
        self.integers = Integers(queries) if sums_fit and multiplies_integers() else None
        self.others: Format | None = None

    def prepared(self, tile: Tile) -> Prepared:
        room: Singles = self.scratch.room("rows", (len(tile), tile.block.shape[1]), np.float32)
        rows, longest = tile.single(room)
        if not rows.flags.writeable:
            # PyTorch does not take arrays that nobody may write to.
            np.copyto(room, rows)
            rows = room
        form = self.others or self.first
        if self.others is None:
            self.others = self._choose(rows, longest)
        return self._prepared(form, rows, longest)

    def _prepared(self, form: Format, rows: Singles, longest: float) -> Prepared:
        dim = rows.shape[1]
        rounded = form.rounded(rows, longest, self.scratch)
        off = form.lost * (longest + rounded.off) + rounded.off + (form.adding(dim) + error_of(dim)) * longest
        return Prepared(form, rows, rounded, error_of(dim) * longest + 1e-30, 1.02 * off + 1e-30)

    def _choose(self, rows: Singles, longest: float) -> Format:
        """8 bits, where they tell the scores of these documents apart."""
        if self.integers is None:
            return self.first
        some = slice(min(_SOME, len(self.queries)))
        prepared = self._prepared(self.integers, rows, longest)
        table = np.empty((some.stop, len(prepared.rounded.rows)), self.integers.kind)
        self.integers.products(some, prepared.rounded, table)
        spread = table[:, : min(len(rows), _DOCUMENTS)].std(axis=1) * self.integers.unit[some] * prepared.rounded.unit
        return self.integers if prepared.coarse[some].mean() / _SPREAD <= spread.mean() else self.first

    def over(
        self, prepared: Prepared, floor: Floats, queries: slice, *, first: bool
    ) -> tuple[Ints, Ints, Floats, Floats]:
        parts = []
        for part in slices(len(floor), _QUERIES):
            some = slice(queries.start + part.start, queries.start + part.stop)
            parts.append(self._over(prepared, floor[part], some, part.start, first))
        query, number, low, high = (np.concatenate(column) for column in zip(*parts, strict=True))
        return query, number, low, high

    def _over(
        self, prepared: Prepared, floor: Floats, queries: slice, start: int, first: bool
    ) -> tuple[Ints, Ints, Floats, Floats]:
        form, rows, rounded, fine, coarse = prepared
        coarse = coarse[queries]
        table = self.scratch.room("scores", (len(floor), len(rounded.rows)), form.kind)
        form.products(queries, rounded, table)
        if (first or np.isneginf(floor).any()) and len(rows) >= self.k:
            best = kth_of_maxima(form.numbers(self._maxima(table[:, : len(rows)])), self.k)
            score, off = form.scores(best, np.arange(queries.start, queries.stop), rounded)
            floor = np.maximum(floor, score - off - coarse)
        bar = form.bar(floor - coarse, queries, rounded)
        over = self.scratch.room("over", table.shape, np.bool_)
        np.greater_equal(table, bar[:, None], out=over)
        over[:, len(rows) :] = False
        found = np.flatnonzero(over)
        query, number = np.divmod(found, table.shape[1])
        # Bounds are so wide that most of these are below the floor.
        score = pair_products(self.queries[queries], query, rows, number).astype(np.float64)
        good = np.flatnonzero(score >= floor[query] - fine)
        query, number, score = query[good] + start, number[good], score[good]
        return query, number, score - fine, score + fine

    def _maxima(self, table: Table) -> Table:
        """Of each query, products of different documents, the largest of stretches where there are many."""
        queries, documents = table.shape
        length = max(1, min(32, documents // (4 * self.k)))
        maxima: Table = table[:, : documents // length * length].reshape(queries, length, -1).max(axis=1)
        return maxima
