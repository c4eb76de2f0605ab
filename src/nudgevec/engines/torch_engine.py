"""The engine for PyTorch on the CPU: bfloat16 products where the hardware has them.

bfloat16 keeps 8 bits, so the filter lets a few more documents through; what it lets through is scored again in
float64 like everything else.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.columns import Columns
from nudgevec.corpus import Floats, Ints, rows_of
from nudgevec.engines import Met, crowded, handfuls, kth_of_maxima
from nudgevec.engines.numpy_engine import CpuSieve, NumpyEngine
from nudgevec.errors import MissingExtraError
from nudgevec.lines import Bars, Levels, Mask, kth_largest
from nudgevec.parallel import everywhere, slices
from nudgevec.scratch import Scratch
from nudgevec.tiles import UNIT_ROUNDOFF, Singles, Tile, error_of

Bits = npt.NDArray[np.int16]
"""Numbers in bfloat16, which NumPy does not know."""

# Scores of one tile.
_TILE_SCORES = 1 << 22
_FIRST_SCORES = 1 << 22
_AT_A_TIME = 512
_ROUND = 128
# More than the relative error of rounding to bfloat16 (8 bits of precision, to nearest).
BFLOAT16_ROUNDING = 2.0**-8


def import_torch() -> Any:
    """PyTorch, or what to do where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("the torch engine", "torch") from None
    return torch


class TorchEngine(NumpyEngine):
    """bfloat16 on the CPU."""

    name = "torch"

    def sieve(self, queries: Floats, k: int) -> TorchSieve:
        return TorchSieve(queries, k, self.scratch)

    def meeting(self, columns: Columns) -> TorchMeeting:
        return TorchMeeting(columns, self.scratch)


class _Coarse(NamedTuple):
    """A tile in bfloat16, how many documents it has, and a bound on the error of each query's scores.

    Rows of zeros follow, up to a round number: PyTorch makes ready for every new shape, and that takes a while.
    """

    rows: Any
    documents: int
    margin: Floats


class TorchSieve(CpuSieve):
    """Filters with bfloat16 products, queries by rows and documents by columns.

    The error of a score, for a unit query q and a row x, is at most |q - q'| |x'| + |q| |x - x'| for the
    rounding of both (measured for q, bounded for x: to measure it takes as long as to round),
    2 d u |q'| |x'| for adding up in float32, and the error of x itself. (A fiftieth more covers the rounding of the
    bound.) The result is rounded to bfloat16 once more, which keeps the order.
    """

    def __init__(self, queries: Floats, k: int, scratch: Scratch) -> None:
        super().__init__(len(queries), _FIRST_SCORES, _TILE_SCORES, scratch)
        self.torch = import_torch()
        self.k = k
        self.queries = _as_floats(np.empty(queries.shape, np.int16))
        self.lost = np.empty(len(queries))
        for part in slices(len(queries), _AT_A_TIME):
            self.queries[part], self.lost[part] = _in_bfloat16(queries[part])

    def prepared(self, tile: Tile) -> _Coarse:
        torch, dim, count = self.torch, tile.block.shape[1], len(tile)
        coarse = _as_floats(self.scratch.room("coarse", (-(-count // _ROUND) * _ROUND, dim), np.int16))
        coarse[count:] = 0
        longest = 0.0
        # A few at a time stay in the cache from one step to the next.
        for part, some in tile.parts(_AT_A_TIME):
            rows, length = some.single(self.scratch.room("rows", (len(some), dim), np.float32))
            coarse[part] = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
            longest = max(longest, length)
        adding = (2 * dim + 16) * UNIT_ROUNDOFF + error_of(dim)
        off = self.lost + BFLOAT16_ROUNDING + adding
        return _Coarse(coarse, count, 1.02 * off * longest + 1e-30)

    def over(self, prepared: _Coarse, floor: Floats, queries: slice) -> tuple[Ints, Ints, Floats, Floats]:
        # A few queries at a time: their scores are compared while they are in the cache.
        parts = [
            self._over(prepared, floor[part], self.queries[queries][part], prepared.margin[queries][part], part.start)
            for part in slices(len(floor), _AT_A_TIME)
        ]
        query, number, low, high = (np.concatenate(column) for column in zip(*parts, strict=True))
        return query, number, low, high

    def _over(
        self, prepared: _Coarse, floor: Floats, asked: Any, margin: Floats, start: int
    ) -> tuple[Ints, Ints, Floats, Floats]:
        bits = self.scratch.room("scores", (len(asked), len(prepared.rows)), np.int16)
        self.torch.mm(asked, prepared.rows.T, out=_as_floats(bits))
        if np.isneginf(floor).any():
            floor = np.maximum(floor, self._own_floor(bits[:, : prepared.documents]) - margin)
        # Rounding keeps the order: a sum of at least the bar is rounded to at least the rounded bar.
        bar = _as_bits((floor - margin).astype(np.float32))
        over = self.scratch.room("over", bits.shape, np.bool_)
        np.greater_equal(bits, bar[:, None], out=over)
        over[:, prepared.documents :] = False
        found = np.flatnonzero(over)
        query, number = np.divmod(found, bits.shape[1])
        score = _as_floats(bits.ravel()[found]).double().numpy()
        off = margin[query] + np.abs(score) * BFLOAT16_ROUNDING
        return query + start, number, score - off, score + off

    def _own_floor(self, scores: Bits) -> Floats:
        """What k documents of the tile itself reach, for every query."""
        queries, documents = scores.shape
        if documents < self.k:
            return np.full(queries, -np.inf)
        length = max(1, min(32, documents // (4 * self.k)))
        maxima = scores[:, : documents // length * length].reshape(queries, length, -1).max(axis=1)
        best = kth_of_maxima(_as_floats(maxima).float().numpy(), self.k).astype(np.float64)
        return best - np.abs(best) * BFLOAT16_ROUNDING


class TorchMeeting:
    """Filters moving documents with a bfloat16 product for every angle; what is left is scored in float32.

    A product comes out as what the score is at most: the error of q . x, at most |q - q'| |x'| + |x - x'| for the
    rounding of both and a little for adding up, is itself an inner product, (|q - q'|, 1) . (|x'|, |x - x'| + ...), and
    two more dimensions do the adding. Documents that turn are multiplied by their bulge beforehand. Rounding the
    result keeps the order, so it is compared with the rounded bar, bit by bit: positive numbers in bfloat16 sort like
    their bits, negative ones stay below all of them, and levels are positive or none.
    """

    at_once = 0

    def __init__(self, columns: Columns, scratch: Scratch) -> None:
        self.torch = torch = import_torch()
        self.columns = columns
        self.scratch = scratch
        count, _, dim = columns.ends.shape
        self.bulge = columns.bulges[0] if columns.turns else np.ones(count, np.float32)
        self.at = [np.empty((count, dim + 2), np.int16) for _ in columns.angles]
        # Of each document the longest version, and what its products may be off by without the rounding of the query.
        self.length, self.off = np.zeros((2, count), np.float32)
        adding = np.float32(2 * (dim + 64) * UNIT_ROUNDOFF)

        def fill(part: slice) -> None:
            for rows, (of_first, of_last) in zip(self.at, columns.weights, strict=True):
                exact = columns.first[part] * (self.bulge[part] * of_first[part])[:, None]
                exact += columns.last[part] * (self.bulge[part] * of_last[part])[:, None]
                coarse = torch.from_numpy(exact).to(torch.bfloat16)
                floats = coarse.float().numpy()
                length = _at_most_long(floats)
                exact -= floats
                off = _at_most_long(exact)
                off += self.bulge[part] * columns.slack[part] + adding * length
                _as_floats(rows)[part, :dim] = coarse
                rows[part, dim], rows[part, dim + 1] = _rounded_up(length), _rounded_up(off)
                self.length[part] = np.maximum(self.length[part], length)
                self.off[part] = np.maximum(self.off[part], off)

        everywhere(fill, count)

    def among(self, queries: Floats, bars: list[Bars], k: int) -> list[Met]:
        heights, lost = self._products(queries)
        shape = heights[0].shape
        margin = np.float32(2 * (1 + 4 * BFLOAT16_ROUNDING)) * (np.float32(1.01 * lost) * self.length + self.off)
        found = np.concatenate([self._found(heights, bars, margin, k, lines) for lines in handfuls(*shape)])
        query, column = np.divmod(found, shape[1])
        most = [self._at_most(height.ravel()[found], column) for height in heights]
        may = [
            self.columns.matter(query, column, low, high, each)
            for each, (low, high) in zip(bars, pairwise(most), strict=True)
        ]
        anywhere = np.logical_or.reduce(may)
        query, column = query[anywhere], column[anywhere]
        met = Met(query, column, *self._dots(queries.astype(np.float32), query, column))
        return [met.where(each[anywhere]) for each in may]

    def _products(self, queries: Floats) -> tuple[list[Bits], float]:
        """What scores are at most, at every angle, and what the queries are off by at most."""
        dim = queries.shape[1]
        asked = np.empty((len(queries), dim + 2), np.int16)
        _as_floats(asked)[:, :dim], lost = _in_bfloat16(queries)
        asked[:, dim], asked[:, dim + 1] = _rounded_up(lost), _rounded_up(np.ones(1))
        heights = [
            self.scratch.room(f"at {angle}" if angle else "scores", (len(asked), len(self.off)), np.int16)
            for angle in range(len(self.at))
        ]
        for height, rows in zip(heights, self.at, strict=True):
            self.torch.mm(_as_floats(asked), _as_floats(rows).T, out=_as_floats(height))
        return heights, float(lost.max(initial=0.0))

    def _found(self, heights: list[Bits], bars: list[Bars], margin: Singles, k: int, lines: slice) -> Ints:
        """The places in a table of queries and columns where one may come above the levels of some interval."""
        shape = heights[0][lines].shape
        over = self.scratch.room("over", shape, np.bool_)
        over[:] = False
        for bar, (low, high) in zip(bars, pairwise(height[lines] for height in heights), strict=True):
            level = bar.at(lines).stricter
            some = self._over(low, high, level, self.scratch.room("some", shape, np.bool_))
            crowd = crowded(some, k)
            if len(crowd):
                ends = low[crowd], high[crowd]
                level = level.at(crowd).raised(self._reached(*ends, margin, k))
                some[crowd] = self._over(*ends, level, np.empty(ends[0].shape, np.bool_))
            over |= some
        found: Ints = np.flatnonzero(over) + lines.start * shape[1]
        return found

    def _over(self, low: Bits, high: Bits, level: Levels, over: Mask) -> Mask:
        """Where a column may come above the level."""
        np.greater_equal(low, _as_bits(level.low)[:, None], out=over)
        some = self.scratch.room("others", low.shape, np.bool_)
        over |= np.greater_equal(high, _as_bits(level.high)[:, None], out=some)
        return over

    def _reached(self, low: Bits, high: Bits, margin: Singles, k: int) -> Singles:
        """What k columns never fall below in an interval, or -inf where that is not positive.

        A product F holds a margin m that itself may be needed in full, so a score is at least F (1 - u) - 2m over the
        bulge, with u for a rounding. ``margin`` is 2m (1 + 4u): (F - margin) over the bulge is rounded twice on the
        way, and (1 - 4u) of it is less.
        """
        bound: Bits = self.scratch.room("bound", low.shape, np.int16)
        np.minimum(low, high, out=bound)  # of two negative numbers the wrong one, which is negative too
        floats = _as_floats(bound).sub_(_as_floats(_rounded_up(margin)))
        if self.columns.turns:
            floats.div_(_as_floats(_rounded_up(self.bulge)))
        reached = _kth_largest(bound, k) * np.float32(1 - 4 * BFLOAT16_ROUNDING)
        return np.where(reached > 0, reached, np.float32(-np.inf))

    def _dots(self, asked: Singles, query: Ints, column: Ints) -> tuple[Singles, Singles]:
        """Scores at both ends, of pairs that come in the order of the queries."""
        begin = np.searchsorted(query, np.arange(len(asked) + 1))
        ends = self.columns.ends.reshape(len(self.columns), 2 * asked.shape[1])
        scores = np.empty((len(query), 2), np.float32)
        room = self.scratch.room("rows", (int(np.diff(begin).max(initial=0)), ends.shape[1]), np.float32)
        for vector, (start, stop) in zip(asked, pairwise(begin.tolist()), strict=True):
            taken = rows_of(ends, column[start:stop], room[: stop - start])
            np.matmul(taken.reshape(-1, len(vector)), vector, out=scores[start:stop].reshape(-1))
        return scores[:, 0], scores[:, 1]

    def _at_most(self, height: Bits, column: Ints) -> Floats:
        """What scores are at most, given their products."""
        product: Floats = _as_floats(height).double().numpy()
        return (product + np.abs(product) * BFLOAT16_ROUNDING) / self.bulge[column]


def _in_bfloat16(queries: Floats) -> tuple[Any, Floats]:
    """Queries in bfloat16, and how far each is off."""
    torch = import_torch()
    exact = torch.from_numpy(queries)
    coarse = exact.to(torch.bfloat16)
    return coarse, (exact - coarse.double()).norm(dim=1).numpy() * (1 + 1e-6)


def _as_floats(bits: Bits) -> Any:
    """The same memory as a tensor."""
    torch = import_torch()
    return torch.from_numpy(bits).view(torch.bfloat16)


def _as_bits(bar: Singles) -> Bits:
    """Levels, rounded to bfloat16, to compare the bits of scores with: those of positive numbers sort like integers.

    A level that is not positive lets everything through: right, and slow for queries that fewer than k documents
    of the corpus agree with.
    """
    whole = bar.view(np.int32)
    # bfloat16 is the upper half of float32; what lies halfway goes to the even one.
    bits = (whole + 0x7FFF + ((whole >> 16) & 1)) >> 16
    return np.where(bar > 0, bits, np.iinfo(np.int16).min).astype(np.int16)


def _rounded_up(values: Singles | Floats) -> Bits:
    """Positive numbers in bfloat16, the next one above each."""
    bits = (values.astype(np.float32).view(np.int32) + 0xFFFF) >> 16
    return bits.astype(np.int16)


def _at_most_long(rows: Singles) -> Singles:
    """What rows are no longer than."""
    length: Singles = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return length * np.float32(1.001 + rows.shape[1] * UNIT_ROUNDOFF)


def _kth_largest(lower: Bits, k: int) -> Singles:
    """As ``lines.kth_largest``. Only positive heights are right, and no others are needed."""
    queries, columns = lower.shape
    stretches = max(64, 8 * k)
    length = columns // stretches
    if length > 1:
        lower = lower[:, : stretches * length].reshape(queries, length, stretches).max(axis=1)
    return kth_largest(_as_floats(lower).float().numpy(), np.full(queries, k))
