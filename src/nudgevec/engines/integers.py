"""Integers of 8 bits, through PyTorch: vectors rounded to them, their products, and what that loses.

Products of integers are exact, and several times as fast as those of float32; what rounding to them loses is measured.
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rounding import UNIT_ROUNDOFF
from nudgevec.arithmetic.rows import Floats, Ints, Singles
from nudgevec.arithmetic.scratch import Scratch
from nudgevec.engines.pytorch import import_torch

Whole = npt.NDArray[np.int32]
"""Products of queries and documents."""

# Sums of so many products of 8 bits fit into 32.
_MOST_DIMENSIONS = 1 << 17
# Queries rounded at a time: few enough to stay in the cache.
_QUERIES = 64
# Documents are multiplied in multiples of this: PyTorch makes ready for every new shape, and that takes a while.
ROUND = 128
# Scores made at a time: they are looked at while they are in the cache.
_SCORES = 1 << 19


class Rounded(NamedTuple):
    """Documents as integers, the unit of these, and how far each document is off at most."""

    rows: Any
    unit: float
    off: float

    def part(self, which: slice) -> Rounded:
        return self._replace(rows=self.rows[which])


class Asked:
    """Unit queries as integers, each with a unit of its own and off by ``lost``."""

    def __init__(self, queries: Floats) -> None:
        self.torch = import_torch()
        self.unit, self.lost = np.empty((2, len(queries)))
        whole = np.empty(queries.shape, np.int8)
        for part in slices(len(queries), _QUERIES):
            some = queries[part]
            unit = unit_for(np.maximum(some.max(axis=1), -some.min(axis=1)))
            rounded = np.rint(some / unit[:, None])
            whole[part], self.unit[part] = rounded, unit
            rounded *= unit[:, None]
            rounded -= some
            self.lost[part] = np.sqrt(np.einsum("ij,ij->i", rounded, rounded)) * (1 + 1e-6)
        self.rows = self.torch.from_numpy(whole)

    def only(self, queries: Ints) -> Asked:
        """Some of them."""
        some = copy(self)
        some.unit, some.lost = self.unit[queries], self.lost[queries]
        some.rows = self.rows[self.torch.from_numpy(queries)]
        return some

    def products(self, queries: slice, documents: Rounded, out: Whole) -> None:
        """Documents by rows and queries by columns, which is faster than the other way round."""
        self.torch._int_mm(documents.rows, self.rows[queries].T, out=self.torch.from_numpy(out))

    def off(self, documents: Rounded, longest: float) -> Floats:
        """What scores of each query are off by at most, for documents that are no longer than this.

        For a unit query q and a document x, that is |q - q'| |x'| + |q| |x - x'|.
        """
        return self.lost * (longest + documents.off) + documents.off


def integers_fit(dim: int) -> bool:
    """Whether vectors of so many numbers can be multiplied as integers. (Products of single numbers come out wrong:
    PyTorch takes a column of them for a row.)"""
    return 1 < dim <= _MOST_DIMENSIONS


def at_a_time(queries: int) -> int:
    """How many documents to multiply at a time."""
    return max(1, _SCORES // (ROUND * queries)) * ROUND


def unit_for(largest: Any) -> Any:
    """The unit of integers of 8 bits for numbers up to this."""
    return np.maximum(largest, 1e-30) * (1 + 1e-6) / 127


def put_rounded(rows: Singles, unit: float, into: npt.NDArray[np.int8], scratch: Scratch) -> float:
    """Put rows as integers into a table, and say how far the worst of them is off. They should be a few at a time."""
    dim = rows.shape[1]
    exact, whole = (scratch.room(name, rows.shape, np.float32) for name in ("exact", "whole"))
    np.multiply(rows, np.float32(1 / unit), out=exact)
    np.rint(exact, out=whole)
    np.copyto(into, whole, casting="unsafe")
    exact -= whole
    furthest = float(np.einsum("ij,ij->i", exact, exact).max()) ** 0.5
    # The numbers themselves were off by a few units in the last place.
    return float(unit * (1.001 * (1 + dim * UNIT_ROUNDOFF) * furthest + 127 * 4 * UNIT_ROUNDOFF * dim**0.5))


def in_units(level: Floats, unit: Floats) -> Whole:
    """The integers that products are no less than where they are at least these levels."""
    limits = np.iinfo(np.int32)
    return np.clip(np.floor(level / unit), limits.min, limits.max).astype(np.int32)
