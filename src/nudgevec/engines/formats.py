"""Numbers of few bits, through PyTorch: vectors rounded to them, their products, and what that loses.

Products of small integers are exact and twice as fast as those of bfloat16; what rounding to them loses is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.engines.bfloat16 import BFLOAT16_ROUNDING, Bits, as_bits, as_floats, in_bfloat16
from nudgevec.engines.pytorch import import_torch
from nudgevec.parallel import slices
from nudgevec.rows import Floats, Ints
from nudgevec.scratch import Scratch
from nudgevec.tiles import UNIT_ROUNDOFF, Singles

Table = npt.NDArray[Any]
"""Products of queries and documents, as integers in the order of the scores where these are positive."""

# Tiles are padded to a multiple of this: PyTorch makes ready for every new shape, and that takes a while.
_ROUND = 128
# Queries and documents rounded at a time: few enough to stay in the cache.
_QUERIES = 64
_DOCUMENTS = 512


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
        for part in slices(len(queries), _QUERIES):
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
        for part in slices(count, _DOCUMENTS):
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
