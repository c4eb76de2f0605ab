"""Documents in tiles: stretches of the corpus without the rows to leave out, and their float32 version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.rounding import error_of
from nudgevec.arithmetic.rows import Array, Ints, Singles, lengths, rows_of
from nudgevec.corpus.reader import Reader, check_finite, check_nonzero
from nudgevec.errors import VectorError
from nudgevec.progress import Progress


class Single(NamedTuple):
    """Rows in float32 (of unit length for cosine) to filter with, and a bound on their length."""

    rows: Singles
    longest: float

    @property
    def margin(self) -> float:
        """A bound on the error of the inner product of a unit query and any row."""
        return error_of(self.rows.shape[1]) * self.longest + 1e-30


@dataclass(frozen=True)
class Tile:
    """A stretch of the corpus as it is, and which places of it count (all, where ``seen`` is None)."""

    reader: Reader
    first: int
    block: Array
    seen: Ints | None
    cosine: bool

    def __len__(self) -> int:
        return len(self.block) if self.seen is None else len(self.seen)

    def at(self, number: Ints) -> Ints:
        """The places in the block of documents counted among those that count."""
        return number if self.seen is None else self.seen[number]

    def single(self, room: Singles) -> Single:
        """The float32 version of the documents that count, checked. It may lie in ``room``, which is as large."""
        vectors = self.block
        if self.seen is not None:
            vectors = rows_of(vectors, self.seen, room if vectors.dtype == np.float32 else None)
        single = vectors
        if vectors.dtype != np.float32 or not vectors.flags.c_contiguous:
            single = room
            with np.errstate(over="ignore"):
                np.copyto(room, vectors, casting="same_kind")
        square = np.einsum("ij,ij->i", single, single)
        length = np.sqrt(square)
        odd = np.flatnonzero(~((square > 1e-30) & (square < 1e30)))
        unit = np.empty((0, single.shape[1]))
        if len(odd):
            where = self.first + self.at(odd)
            check_finite(vectors[odd], where, self.reader)
            exact = lengths(vectors[odd])
            if self.cosine:
                check_nonzero(exact, where, self.reader)
                unit = vectors[odd] / exact[:, None]
            elif (exact > 1e15).any():
                name = self.reader.name(int(where[exact > 1e15][0]))
                raise VectorError(f"documents: {name} is longer than 1e15; rescale the vectors")
            else:
                length[odd] = exact
        if not self.cosine:
            return Single(single, 1.01 * float(length.max()))
        with np.errstate(all="ignore"):
            np.divide(single, length[:, None], out=room)
        room[odd] = unit
        return Single(room, 1.0 + 1e-3)


def tiles(reader: Reader, skip: Ints, first_width: int, width: int, *, cosine: bool) -> Iterator[Tile]:
    """All documents but those in ``skip`` (sorted), at most ``width`` at a time, ``first_width`` the first time."""
    wanted = first_width
    with Progress("scanning documents") as progress:
        progress.begin(reader.rows)
        for first, block in reader.blocks():
            end = 0
            while end < len(block):
                offset, end = end, min(end + wanted, len(block))
                hidden = skip[slice(*np.searchsorted(skip, [first + offset, first + end]))]
                seen = np.delete(np.arange(end - offset), hidden - first - offset) if len(hidden) else None
                if seen is None or len(seen):
                    yield Tile(reader, first + offset, block[offset:end], seen, cosine)
                    wanted = width
                progress.step(end - offset)
