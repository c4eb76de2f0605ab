"""The scan on the CPU with PyTorch: products of 8 bits tell where to look closer, float32 what to keep.

What 8 bits lose is about the same whatever the scores, so where these hardly differ all is float32.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rounding import error_of
from nudgevec.arithmetic.rows import Floats, Ints, Singles, rows_of
from nudgevec.arithmetic.scratch import Scratch
from nudgevec.arithmetic.tables import all_true, split_up
from nudgevec.engines.base import kth_reached
from nudgevec.engines.integers import ROUND, Asked, Rounded, Whole, at_a_time, in_units, put_rounded, unit_for
from nudgevec.engines.numpy_engine import CpuSieve, NumpySieve
from nudgevec.engines.pytorch import import_torch, pair_products
from nudgevec.scan.tiles import Single, Tile

# Scores of one tile.
_TILE_SCORES = 1 << 23
_FIRST_SCORES = 1 << 23
# Scores of the first one made at a time.
_FIRST_TABLE = 1 << 21
# Documents rounded at a time: few enough to stay in the cache.
_DOCUMENTS = 512
# 8 bits will do where they are off by less than this many standard deviations of the scores of so many queries for so
# many documents.
_SPREAD = 1.5
_SOME = 64
_MANY = 512


class Prepared(NamedTuple):
    """A tile in float32 and in 8 bits, followed by rows of zeros up to a round number, and what scores are off by: in
    float32, and in 8 bits for each query."""

    rows: Singles
    rounded: Rounded
    fine: float
    coarse: Floats


class TorchSieve(CpuSieve):
    """Filters with products of 8 bits, then in float32."""

    def __init__(self, queries: Floats, k: int, scratch: Scratch) -> None:
        super().__init__(queries, _FIRST_SCORES, _TILE_SCORES, scratch)
        self.k = k
        self.queries = queries.astype(np.float32)
        self.asked = Asked(queries)
        # How far scores differ, as the first tile has it. Zero where 8 bits did not tell them apart.
        self.spread: float | None = None

    def only(self, numbers: Ints) -> Self:
        fewer = copy(self)
        fewer.__dict__.pop("_closer", None)
        fewer.numbers, fewer.asked = numbers, self.asked.only(numbers)
        return fewer

    @cached_property
    def _closer(self) -> NumpySieve:
        return NumpySieve(rows_of(self.queries, self.numbers), self.k, self.scratch)

    def prepared(self, tile: Tile) -> Prepared | Single:
        room: Singles = self.scratch.room("rows", (len(tile), tile.block.shape[1]), np.float32)
        single = tile.single(room)
        if self.spread == 0:
            return single
        if not single.rows.flags.writeable:
            # PyTorch does not take arrays that nobody may write to.
            np.copyto(room, single.rows)
            single = single._replace(rows=room)
        prepared = self._prepared(single)
        spread = self._spread(prepared) if self.spread is None else self.spread
        # Not by their mean: there may be no queries left.
        tells_apart = bool(prepared.coarse.sum() <= _SPREAD * spread * len(prepared.coarse))
        if self.spread is None:
            self.spread = spread if tells_apart else 0.0
        return prepared if tells_apart else single

    def _prepared(self, single: Single) -> Prepared:
        rows, longest = single
        count, dim = rows.shape
        whole = self.scratch.room("whole numbers", (-(-count // ROUND) * ROUND, dim), np.int8)
        whole[count:] = 0
        unit = float(unit_for(max(float(rows.max()), -float(rows.min()))))
        off = max(put_rounded(rows[part], unit, whole[part], self.scratch) for part in slices(count, _DOCUMENTS))
        rounded = Rounded(import_torch().from_numpy(whole), unit, off)
        # A fiftieth more covers the rounding of the bound.
        coarse = 1.02 * (self.asked.off(rounded, longest) + error_of(dim) * longest) + 1e-30
        return Prepared(rows, rounded, single.margin, coarse)

    def _spread(self, prepared: Prepared) -> float:
        """The standard deviation of the scores of these documents."""
        some = slice(min(_SOME, len(self.numbers)))
        table = np.empty((len(prepared.rounded.rows), some.stop), np.int32)
        self.asked.products(some, prepared.rounded, table)
        spread = table[: min(len(prepared.rows), _MANY)].std(axis=0) * self._unit(prepared, some)
        return float(spread.mean())

    def _unit(self, prepared: Prepared, queries: slice) -> Floats:
        """Of products."""
        return self.asked.unit[queries] * prepared.rounded.unit

    def over(
        self, prepared: Prepared | Single, floor: Floats, queries: slice, *, first: bool
    ) -> tuple[Ints, Ints, Floats, Floats]:
        if isinstance(prepared, Single):
            return self._closer.over(prepared, floor, queries, first=first)
        # The floor of a query that begins is found among all documents.
        step = max(1, _FIRST_TABLE // len(prepared.rounded.rows)) if first else len(floor)
        parts = [self._over(prepared, some, floor, queries.start, first=first) for some in slices(len(floor), step)]
        query, number, low, high = (np.concatenate(column) for column in zip(*parts, strict=True))
        return query, number, low, high

    def _over(
        self, prepared: Prepared, asked: slice, floor: Floats, start: int, *, first: bool
    ) -> tuple[Ints, Ints, Floats, Floats]:
        rows, rounded = prepared.rows, prepared.rounded
        queries = slice(start + asked.start, start + asked.stop)
        floor, coarse, unit = floor[asked], prepared.coarse[queries], self._unit(prepared, queries)
        over = self.scratch.room("over", (len(rounded.rows), len(floor)), np.bool_)
        bar = in_units(floor - coarse, unit)
        begins = (first or floor.min() == -np.inf) and len(rows) >= self.k
        for part in slices(len(over), len(over) if begins else at_a_time(len(floor))):
            table: Whole = self.scratch.room("scores", over[part].shape, np.int32)
            self.asked.products(queries, rounded.part(part), table)
            if begins:
                floor = np.maximum(floor, kth_reached(table[: len(rows)], self.k) * unit - coarse)
                bar = in_units(floor - coarse, unit)
            np.greater_equal(table, bar, out=over[part])
        over[len(rows) :] = False
        number, query = split_up(all_true(over), len(floor))
        # Bounds are so wide that most of these are below the floor.
        score = pair_products(rows, number, self.queries, self.numbers[queries][query]).astype(np.float64)
        good = np.flatnonzero(score >= floor[query] - prepared.fine)
        query, number, score = query[good] + asked.start, number[good], score[good]
        return query, number, score - prepared.fine, score + prepared.fine
