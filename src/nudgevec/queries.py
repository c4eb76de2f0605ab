"""Query vectors: checked, with their lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere
from nudgevec.arithmetic.rows import Array, Floats, Ints, lengths
from nudgevec.arithmetic.sorting import numbered
from nudgevec.corpus.base import as_matrix
from nudgevec.errors import VectorError

# Vectors measured at a time, by one thread: so many that it need not come back to the interpreter, whose lock others
# may hold for long.
_MEASURED = 1 << 15
# Of 64 binary digits, all but the first 16.
_TO_FIRST = np.uint64(48)


@dataclass(frozen=True)
class Queries:
    """Query vectors in float32 or float64, and their lengths (to about the precision of that type)."""

    vectors: Array
    length: Floats

    def __len__(self) -> int:
        return len(self.vectors)

    def some(self, which: Ints) -> Array:
        """The vectors of some of them, in their order; all of them without a copy."""
        return self.vectors if len(which) == len(self) else self.vectors[which]

    def joined(self, later: Queries) -> Queries:
        """These queries followed by more."""
        vectors = np.concatenate([self.vectors.astype(np.float64), later.vectors])
        return Queries(vectors, np.concatenate([self.length, later.length]))

    def shared_with(self, others: Queries) -> int:
        """How many of these are among the others, number by number."""
        if not (len(self) and len(others)):
            return 0
        # Equal rows begin and end with equal numbers; others hardly ever do both.
        ours, theirs = _ends(self.vectors), _ends(others.vectors)
        # Most of them differ in their first digits already.
        known = np.zeros(1 << 16, np.bool_)
        known[ours >> _TO_FIRST] = True
        alike = np.flatnonzero(known[theirs >> _TO_FIRST])
        marks, which = numbered(theirs[alike])
        if len(marks) == 0:
            return 0
        closest = np.minimum(np.searchsorted(marks, ours), len(marks) - 1)
        same = np.flatnonzero(marks[closest] == ours)
        met = np.zeros(len(marks), np.bool_)
        met[closest[same]] = True
        wide = np.result_type(self.vectors, others.vectors)
        seen = set(_fingerprints(others.vectors[alike[met[which]]], wide))
        return sum(each in seen for each in _fingerprints(self.vectors[same], wide))


def as_queries(vectors: npt.ArrayLike, dim: int, what: str) -> Queries:
    """Query vectors, checked: finite, not zero, of the documents' dimension."""
    return measured(query_matrix(vectors, dim, what), what)


def query_matrix(vectors: npt.ArrayLike, dim: int, what: str) -> Array:
    """Query vectors of the documents' dimension, in float32 or float64."""
    matrix = as_matrix(vectors, what)
    if matrix.shape[1] != dim:
        raise VectorError(f"{what} have {matrix.shape[1]} dimensions, the documents have {dim}")
    # Arithmetic on float16 is slow, and queries are few.
    return matrix.astype(np.float32) if matrix.dtype == np.float16 else matrix


def measured(matrix: Array, what: str) -> Queries:
    """Such vectors, checked: finite, and not zero."""
    length: Floats = np.empty(len(matrix))

    def measure(part: slice) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            length[part] = np.sqrt(np.einsum("ij,ij->i", matrix[part], matrix[part]).astype(np.float64))

    everywhere(measure, len(matrix), _MEASURED)
    odd = np.flatnonzero(~((length > 1e-15) & (length < 1e15)))
    for row in odd:
        if not np.isfinite(matrix[row]).all():
            raise VectorError(f"{what}: row {row} holds NaN or infinity; remove or repair it")
        if not matrix[row].any():
            raise VectorError(f"{what}: row {row} is all zeros and points nowhere; remove it")
    if len(odd):
        length[odd] = lengths(matrix[odd])
    return Queries(matrix, length)


def _ends(vectors: Array) -> npt.NDArray[np.uint64]:
    """The first and the last number of every row, as one; adding zero makes -0.0 the same as 0.0."""
    first, last = ((vectors[:, place].astype(np.float64) + 0).view(np.uint64) for place in (0, -1))
    mixed: npt.NDArray[np.uint64] = first * np.uint64(0x9E3779B97F4A7C15) + last
    return mixed


def _fingerprints(vectors: Array, kind: npt.DTypeLike) -> Iterator[bytes]:
    """Of every row; adding zero makes -0.0 the same as 0.0."""
    for row in vectors:
        yield blake2b((row.astype(kind) + 0).tobytes(), digest_size=16).digest()
