"""What the library needs of documents, whatever holds them; what every array of vectors, and of rows, has to be."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Array, Ints
from nudgevec.errors import VectorError


@runtime_checkable
class Corpus(Protocol):
    """What the library needs of a collection of documents.

    Where ``random_access`` is an attribute of it and true, single vectors are quick to ``take``: labelled documents
    are looked at before the others, and much of the scan can be left out. Otherwise all documents stream by once.
    Where there is ``take_rows``, they are asked for by their places in ``ids``, and nobody has to look those up again.
    """

    @property
    def ids(self) -> Sequence[Hashable]:
        """The id of every document, in the order of ``blocks``."""

    @property
    def dim(self) -> int:
        """The number of dimensions of every vector."""

    def take(self, ids: Sequence[Hashable]) -> Array:
        """The vectors of these documents, one row each, in the order asked for."""

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """All documents once, as (ids, vectors) of any convenient size.

        Several blocks are in use at a time, so each needs memory of its own.
        """


def rows_among(ids: Sequence[Hashable], count: int) -> Ints:
    """Rows that documents without other ids are asked for by."""
    rows = np.asarray(ids, dtype=np.int64)
    odd = rows[(rows < 0) | (rows >= count)]
    if len(odd):
        raise IndexError(f"there is no row {odd[0]}: the rows of these documents are 0 to {count - 1}")
    return rows


def as_matrix(vectors: npt.ArrayLike, what: str) -> Array:
    """A two-dimensional float array, without a copy where it is one already."""
    try:
        matrix = np.asarray(vectors)
    except ValueError as error:
        raise VectorError(f"{what} must be rows of equal length: {error}") from None
    if matrix.dtype.kind in "US" or isinstance(vectors, os.PathLike):
        raise VectorError(
            f"{what} must be vectors, not texts or a path: embed the texts, np.load the file, "
            "or open Parquet files with nudgevec.ParquetCorpus, first"
        )
    if matrix.ndim != 2:
        raise VectorError(
            f"{what} must be a two-dimensional array (rows, dimensions), not {matrix.ndim}-dimensional "
            f"({type(vectors).__name__})"
        )
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize not in (2, 4, 8):
        raise VectorError(f"{what} must be float16, float32 or float64, not {matrix.dtype}")
    return matrix if matrix.dtype.isnative else matrix.astype(matrix.dtype.newbyteorder("="))
