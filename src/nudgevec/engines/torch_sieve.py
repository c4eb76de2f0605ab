"""The scan on the CPU with PyTorch: products of 8 or 16 bits tell where to look closer, float32 what to keep.

Products of small integers are exact and twice as fast as those of bfloat16; what rounding the vectors loses is
measured. It is about the same whatever the scores, so where these hardly differ bfloat16 is used instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Floats, Ints, rows_of
from nudgevec.engines import kth_of_maxima
from nudgevec.engines.bfloat16 import BFLOAT16_ROUNDING, Bits, as_bits, as_floats, in_bfloat16
from nudgevec.engines.numpy_engine import CpuSieve
from nudgevec.engines.pytorch import import_torch, multiplies_integers
from nudgevec.parallel import slices
from nudgevec.scratch import Scratch
from nudgevec.tiles import UNIT_ROUNDOFF, Singles, Tile, error_of

Table = npt.NDArray[Any]
"""Products of queries and documents, as integers in the order of the scores where these are positive."""

# Scores of one tile.
_TILE_SCORES = 1 << 22
_FIRST_SCORES = 1 << 23
# Documents at a time, and queries: their scores are compared while they are in the cache.
_DOCUMENTS = 512
_QUERIES = 512
# Tiles are padded to a multiple of this: PyTorch makes ready for every new shape, and that takes a while.
_ROUND = 128
# Pairs scored in float32 at a time.
_PAIRS = 512
# Sums of so many products of 8 bits fit into 32.
_MOST_DIMENSIONS = 1 << 17
# 8 bits will do where they are off by less than this many standard deviations of the scores of so many queries.
_SPREAD = 0.7
_SOME = 64
# Queries rounded at a time: few enough to stay in the cache.
_ROUNDED = 64


class Rounded(NamedTuple):
    """Documents of a tile in few bits, followed by rows of zeros up to a round number; the unit of their numbers; and
    how far each document is off at most."""

    rows: Any
    unit: float
    off: float


class Format(ABC):
    """Numbers of few bits, and some unit queries made of them, each off by ``lost``."""

    kind: ClassVar[Any]
    """Of a table of products."""
    lost: Floats

    @abstractmethod
    def rounded(self, rows: Singles, longest: float, scratch: Scratch) -> Rounded:
        """Documents in this format."""

    @abstractmethod
    def products(self, queries: slice, documents: Rounded, out: Table) -> None:
        """Queries by rows and documents by columns."""

    @abstractmethod
    def bar(self, level: Floats, queries: slice, documents: Rounded) -> Table:
        """What products are no less than where scores made of them are at least these."""

    @abstractmethod
    def numbers(self, table: Table) -> npt.NDArray[Any]:
        """Products as numbers, which sort as they should where they are negative too."""

    @abstractmethod
    def scores(self, numbers: npt.NDArray[Any], query: Ints, documents: Rounded) -> tuple[Floats, Floats]:
        """The scores of some pairs, and what rounding them has cost."""

    @abstractmethod
    def adding(self, dim: int) -> float:
        """What adding up loses, per unit of length."""


class Integers(Format):
    """8 bits: a document is a unit of the tile times integers up to 127, a query the same with a unit of its own."""

    kind = np.int32

    def __init__(self, queries: Floats) -> None:
        self.torch = import_torch()
        self.unit = np.empty(len(queries))
        self.lost = np.empty(len(queries))
        whole = np.empty(queries.shape, np.int8)
        for part in slices(len(queries), _ROUNDED):
            some = queries[part]
            unit = np.maximum(some.max(axis=1), -some.min(axis=1)) * (1 + 1e-6) / 127
            rounded = np.rint(some / unit[:, None])
            whole[part], self.unit[part] = rounded, unit
            rounded *= unit[:, None]
            rounded -= some
            self.lost[part] = np.sqrt(np.einsum("ij,ij->i", rounded, rounded)) * (1 + 1e-6)
        self.queries = self.torch.from_numpy(whole)

    def rounded(self, rows: Singles, longest: float, scratch: Scratch) -> Rounded:
        count, dim = rows.shape
        coarse = _padded(rows, np.int8, scratch)
        unit = max(float(rows.max()), -float(rows.min()), 1e-30) * (1 + 1e-6) / 127
        square = 0.0
        for part in slices(count, _DOCUMENTS // 2):
            shape = part.stop - part.start, dim
            exact, whole = (scratch.room(name, shape, np.float32) for name in ("exact", "whole"))
            np.multiply(rows[part], np.float32(1 / unit), out=exact)
            np.rint(exact, out=whole)
            np.copyto(coarse[part], whole, casting="unsafe")
            exact -= whole
            square = max(square, float(np.einsum("ij,ij->i", exact, exact).max()))
        # The numbers themselves were off by a few units in the last place.
        off = 1.001 * (1 + dim * UNIT_ROUNDOFF) * square**0.5 + 127 * 4 * UNIT_ROUNDOFF * dim**0.5
        return Rounded(self.torch.from_numpy(coarse), unit, unit * off)

    def products(self, queries: slice, documents: Rounded, out: Table) -> None:
        self.torch._int_mm(self.queries[queries], documents.rows.T, out=self.torch.from_numpy(out))

    def bar(self, level: Floats, queries: slice, documents: Rounded) -> Table:
        limits = np.iinfo(np.int32)
        units = np.floor(level / (self.unit[queries] * documents.unit))
        return np.clip(units, limits.min, limits.max).astype(np.int32)

    def numbers(self, table: Table) -> npt.NDArray[Any]:
        return table

    def scores(self, numbers: npt.NDArray[Any], query: Ints, documents: Rounded) -> tuple[Floats, Floats]:
        return numbers * (self.unit * documents.unit)[query], np.zeros(len(query))

    def adding(self, dim: int) -> float:
        return 0.0


class BFloat16(Format):
    """bfloat16, added up in float32. The result is rounded once more, which keeps the order."""

    kind = np.int16

    def __init__(self, queries: Floats) -> None:
        self.torch = import_torch()
        self.queries = as_floats(np.empty(queries.shape, np.int16))
        self.lost = in_bfloat16(queries, self.queries)

    def rounded(self, rows: Singles, longest: float, scratch: Scratch) -> Rounded:
        coarse = as_floats(_padded(rows, np.int16, scratch))
        coarse[: len(rows)] = self.torch.from_numpy(rows)
        # Not measured: that takes as long as to round.
        return Rounded(coarse, 1.0, BFLOAT16_ROUNDING * longest)

    def products(self, queries: slice, documents: Rounded, out: Bits) -> None:
        self.torch.mm(self.queries[queries], documents.rows.T, out=as_floats(out))

    def bar(self, level: Floats, queries: slice, documents: Rounded) -> Bits:
        # Rounding keeps the order: a sum of at least the bar is rounded to at least the rounded bar.
        return as_bits(level.astype(np.float32))

    def numbers(self, table: Bits) -> npt.NDArray[Any]:
        numbers: Singles = as_floats(table).float().numpy()
        return numbers

    def scores(self, numbers: npt.NDArray[Any], query: Ints, documents: Rounded) -> tuple[Floats, Floats]:
        scores = numbers.astype(np.float64)
        return scores, np.abs(scores) * BFLOAT16_ROUNDING

    def adding(self, dim: int) -> float:
        return (2 * dim + 16) * UNIT_ROUNDOFF


def _padded(rows: Singles, kind: Any, scratch: Scratch) -> Table:
    """Room for as many rows of numbers of some kind, and rows of zeros after it."""
    count, dim = rows.shape
    room = scratch.room("coarse", (-(-count // _ROUND) * _ROUND, dim), kind)
    room[count:] = 0
    return room


class Prepared(NamedTuple):
    """A tile in float32 and in few bits, and bounds on the errors of scores: in float32, and in few bits for each
    query. ``patient`` where documents that pass can wait to be scored again."""

    format: Format
    rows: Singles
    rounded: Rounded
    fine: float
    coarse: Floats
    patient: bool = True


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
        rows: Singles = self.scratch.room("rows", (len(tile), tile.block.shape[1]), np.float32)
        longest = 0.0
        # A few at a time stay in the cache from one step to the next.
        for part, some in tile.parts(_DOCUMENTS):
            single = some.single(rows[part])
            if not np.shares_memory(single.rows, rows):
                rows[part] = single.rows
            longest = max(longest, single.longest)
        format = self.others or self.first
        if self.others is None:
            self.others = self._choose(rows, longest)
        return self._prepared(format, rows, longest)._replace(patient=tile.reader.at_hand is not None)

    def _prepared(self, format: Format, rows: Singles, longest: float) -> Prepared:
        dim = rows.shape[1]
        rounded = format.rounded(rows, longest, self.scratch)
        off = format.lost * (longest + rounded.off) + rounded.off + (format.adding(dim) + error_of(dim)) * longest
        return Prepared(format, rows, rounded, error_of(dim) * longest + 1e-30, 1.02 * off + 1e-30)

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

    def over(self, prepared: Prepared, floor: Floats, queries: slice) -> tuple[Ints, Ints, Floats, Floats]:
        parts = [
            self._over(prepared, floor[part], slice(queries.start + part.start, queries.start + part.stop), part.start)
            for part in slices(len(floor), _QUERIES)
        ]
        query, number, low, high = (np.concatenate(column) for column in zip(*parts, strict=True))
        return query, number, low, high

    def _over(self, prepared: Prepared, floor: Floats, queries: slice, start: int) -> tuple[Ints, Ints, Floats, Floats]:
        format, rows, rounded, fine, coarse, patient = prepared
        coarse = coarse[queries]
        table = self.scratch.room("scores", (len(floor), len(rounded.rows)), format.kind)
        format.products(queries, rounded, table)
        if np.isneginf(floor).any() and len(rows) >= self.k:
            best = kth_of_maxima(format.numbers(self._maxima(table[:, : len(rows)])), self.k)
            score, off = format.scores(best, np.arange(queries.start, queries.stop), rounded)
            floor = np.maximum(floor, score - off - coarse)
        bar = format.bar(floor - coarse, queries, rounded)
        over = self.scratch.room("over", table.shape, np.bool_)
        np.greater_equal(table, bar[:, None], out=over)
        over[:, len(rows) :] = False
        found = np.flatnonzero(over)
        query, number = np.divmod(found, table.shape[1])
        score, off = format.scores(format.numbers(table.ravel()[found]), query + queries.start, rounded)
        off += coarse[query]
        # Bounds are so wide that most of these are below the floor. Where that is likely they may stay as they are.
        likely = np.flatnonzero(score >= floor[query]) if patient else np.arange(len(query))
        score[likely] = self._dots(self.queries[queries], query[likely], rows, number[likely])
        off[likely] = fine
        good = score + off >= floor[query]
        query, number, score, off = query[good], number[good], score[good], off[good]
        return query + start, number, score - off, score + off

    def _maxima(self, table: Table) -> Table:
        """Of each query, products of different documents, the largest of stretches where there are many."""
        queries, documents = table.shape
        length = max(1, min(32, documents // (4 * self.k)))
        maxima: Table = table[:, : documents // length * length].reshape(queries, length, -1).max(axis=1)
        return maxima

    def _dots(self, queries: Singles, query: Ints, rows: Singles, number: Ints) -> Floats:
        """Scores of pairs in float32."""
        score: Singles = np.empty(len(query), np.float32)
        shape = min(_PAIRS, len(query)), rows.shape[1]
        left, right = (self.scratch.room(name, shape, np.float32) for name in ("exact", "whole"))
        for part in slices(len(query), _PAIRS):
            size = part.stop - part.start
            asked = rows_of(queries, query[part], left[:size])
            np.einsum("ij,ij->i", asked, rows_of(rows, number[part], right[:size]), out=score[part])
        return score.astype(np.float64)
