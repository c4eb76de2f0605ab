"""Documents in tiles: the original vectors, and a float32 version of known precision to filter with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Array, Ints, Reader, check_finite, check_nonzero, lengths
from nudgevec.errors import VectorError

Singles = npt.NDArray[np.float32]

UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Tile:
    """Some rows of the corpus: as they are, and in float32 (of unit length for cosine)."""

    rows: Ints
    vectors: Array
    single: Singles
    longest: float
    """A bound on the length of the float32 rows."""

    @property
    def margin(self) -> float:
        """A bound on the error of the float32 inner product of a unit query and any row.

        With u = 2^-24 and rows x of d numbers: rounding q and x costs at most u|x| each; a float32 inner
        product in any order at most d u/(1 - d u) |x|; normalising by a float32 length (itself off by
        (d/2 + 2) u) at most (d/2 + 4) u |x|. Together below (1.5 d + 16) u |x| (1 + 1e-2) for every d up
        to 100,000.
        """
        return error_of(self.single.shape[1]) * self.longest + 1e-30


def error_of(dim: int) -> float:
    """The bound above, per unit of length."""
    return 1.01 * (1.5 * dim + 16) * UNIT_ROUNDOFF


def tiles(reader: Reader, skip: Ints, width: Callable[[], int], *, cosine: bool) -> Iterator[Tile]:
    """All documents but those in ``skip`` (sorted), at most ``width()`` at a time."""
    for first, block in reader.blocks():
        end = 0
        while end < len(block):
            offset, end = end, end + width()
            vectors = block[offset:end]
            rows = np.arange(first + offset, first + offset + len(vectors))
            hidden = skip[np.searchsorted(skip, rows[0]) : np.searchsorted(skip, rows[-1], side="right")]
            if len(hidden):
                seen = np.delete(np.arange(len(vectors)), hidden - rows[0])
                vectors, rows = vectors[seen], rows[seen]
            if len(rows):
                yield _tile(rows, vectors, reader, cosine)


def _tile(rows: Ints, vectors: Array, reader: Reader, cosine: bool) -> Tile:
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(vectors, dtype=np.float32)
    square = np.einsum("ij,ij->i", single, single)
    length = np.sqrt(square)
    odd = np.flatnonzero(~((square > 1e-30) & (square < 1e30)))
    if len(odd):
        where = rows[odd]
        check_finite(vectors[odd], where, reader)
        exact = lengths(vectors[odd])
        if cosine:
            check_nonzero(exact, where, reader)
            single = np.array(single)
            single[odd] = vectors[odd] / exact[:, None]
            length[odd] = 1.0
        elif (exact > 1e15).any():
            name = reader.name(int(where[exact > 1e15][0]))
            raise VectorError(f"documents: {name} is longer than 1e15; rescale the vectors")
        else:
            length[odd] = exact
    if cosine:
        return Tile(rows, vectors, single / length[:, None], 1.0 + 1e-3)
    return Tile(rows, vectors, single, 1.01 * float(length.max()))
