"""Documents as one stream of blocks, whatever holds them, and the checks every vector passes.

A corpus is ``ids`` + ``dim`` + ``take(ids)`` + ``blocks()``. A NumPy array (in memory or memory-mapped)
becomes one through ``ArrayCorpus``, a folder of Parquet files through ``parquet.ParquetCorpus``. Inside the
library a document is its row in the stream; ids come in and go out through ``Reader`` only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from nudgevec.errors import LabelError, VectorError
from nudgevec.parallel import everywhere
from nudgevec.rows import Array, Floats, Ints, rows_of

# Blocks of an array: this many bytes by default, of a memory-mapped file (which are brought in) and at most.
_BLOCK_BYTES = 96 << 20
_MAPPED_BLOCK_BYTES = 32 << 20
_LARGEST_BLOCK = 128 << 20
# One row of a memory-mapped file can bring in megabytes of neighbours.
_ROWS_BETWEEN_RELEASES = 64


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


class ArrayCorpus:
    """An (n, d) array of float16, float32 or float64, with or without ids.

    >>> corpus = ArrayCorpus(np.eye(2, dtype=np.float32), ids=["a", "b"])
    >>> corpus.take(["b"])
    array([[0., 1.]], dtype=float32)
    """

    random_access = True

    def __init__(
        self,
        vectors: npt.ArrayLike,
        ids: Sequence[Hashable] | None = None,
        block_rows: int | None = None,
    ) -> None:
        self.vectors = as_matrix(vectors, "documents")
        rows = len(self.vectors)
        if ids is not None and len(ids) != rows:
            raise VectorError(f"{len(ids)} ids do not match {rows} document vectors")
        # A copy, by position: some sequences (a pandas Series) would look ids up by label.
        self._ids = ids if ids is None or isinstance(ids, range) else list(ids)
        self._row_of: dict[Hashable, int] | None = None
        row_bytes = max(1, self.vectors.shape[1] * self.vectors.itemsize)
        usual = _BLOCK_BYTES if _shared_mapping(self.vectors) is None else _MAPPED_BLOCK_BYTES
        wanted = block_rows or usual // row_bytes
        self.block_rows = max(1, min(wanted, _LARGEST_BLOCK // row_bytes))

    @property
    def ids(self) -> Sequence[Hashable]:
        return range(len(self.vectors)) if self._ids is None else self._ids

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: Any) -> Any:
        """The vectors of these rows, as of an array."""
        return self.vectors[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.vectors, dtype) if copy else np.asarray(self.vectors, dtype)

    def __repr__(self) -> str:
        named = "by row" if self._ids is None else f"with ids like {self._ids[0]!r}" if len(self) else "empty"
        return f"ArrayCorpus({len(self)} documents of {self.dim} dimensions, {named})"

    def take(self, ids: Sequence[Hashable]) -> Array:
        if self._ids is None:
            return self.take_rows(rows_among(ids, len(self)))
        if self._row_of is None:
            self._row_of = {key: row for row, key in enumerate(self._ids)}
        return self.take_rows(np.array([self._row_of[key] for key in ids], dtype=np.int64))

    def take_rows(self, rows: Ints) -> Array:
        """The vectors of these rows."""
        taken = np.empty((len(rows), self.dim), self.vectors.dtype)
        if _shared_mapping(self.vectors) is None:

            def copy(part: slice) -> None:
                rows_of(self.vectors, rows[part], taken[part])

            everywhere(copy, len(rows))
            return taken
        for start in range(0, len(rows), _ROWS_BETWEEN_RELEASES):
            some = slice(start, start + _ROWS_BETWEEN_RELEASES)
            taken[some] = self.vectors[rows[some]]
            self._release()
        return taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for start in range(0, len(self.vectors), self.block_rows):
            stop = start + self.block_rows
            yield self.ids[start:stop], self.vectors[start:stop]
            self._release()

    def _release(self) -> None:
        """Hand back the pages of a memory-mapped file: they stay in the system's file cache, but stop
        counting as ours."""
        mapping = _shared_mapping(self.vectors)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


class Reader:
    """A corpus seen by row: the library's side of the ids."""

    def __init__(self, documents: Corpus | npt.ArrayLike) -> None:
        # What is no array is looked at more closely, which takes longer.
        if isinstance(documents, np.ndarray) or not isinstance(documents, Corpus):
            documents = ArrayCorpus(documents)
        self.corpus: Corpus = documents
        self.all_ids = self.corpus.ids
        self.rows = len(self.all_ids)
        self.dim = int(self.corpus.dim)
        if self.rows == 0 or self.dim == 0:
            raise VectorError(f"the corpus is empty: {self.rows} documents of {self.dim} dimensions")
        self.has_ids = not (isinstance(self.all_ids, range) and self.all_ids == range(self.rows))
        self._watched = np.empty(0, np.int64)
        self._seen: dict[int, Array] = {}

    def ids(self, rows: Ints) -> list[Hashable]:
        """The ids of these rows, as the corpus spells them (NumPy numbers as plain ones)."""
        if not self.has_ids:
            return list(rows.tolist())
        picked = [self.all_ids[row] for row in rows.tolist()]
        return [key.item() if isinstance(key, np.generic) else key for key in picked]

    def locate(self, wanted: Sequence[Hashable]) -> Ints:
        """The row of each wanted id; unknown and ambiguous ids are errors."""
        if not self.has_ids:
            return self._checked_rows(wanted)
        row_of = dict.fromkeys(wanted, -1)
        for row, key in enumerate(self.all_ids):
            if key in row_of:
                if row_of[key] >= 0:
                    raise LabelError(f"document id {key!r} stands twice in the corpus, at rows {row_of[key]} and {row}")
                row_of[key] = row
        found = np.fromiter((row_of[key] for key in wanted), dtype=np.int64, count=len(wanted))
        missing = np.flatnonzero(found < 0)
        if len(missing):
            raise LabelError(
                f"{len(missing)} document id(s) are not in the corpus, for example {wanted[missing[0]]!r}; "
                f"its ids look like {self.all_ids[0]!r}"
            )
        return found

    def _checked_rows(self, wanted: Sequence[Any]) -> Ints:
        if set(map(type, wanted)) == {int}:
            with contextlib.suppress(OverflowError):
                rows = np.fromiter(wanted, dtype=np.int64, count=len(wanted))
                if rows.min() >= 0 and rows.max() < self.rows:
                    return rows
        odd = [key for key in wanted if not (_is_row(key) and 0 <= key < self.rows)]
        if odd:
            hint = "; grades go into a dict {row: grade}" if isinstance(odd[0], tuple) else ""
            raise LabelError(
                f"label {odd[0]!r} is not a row of the {self.rows} documents "
                f"(rows are whole numbers from 0 to {self.rows - 1}){hint}"
            )
        return np.fromiter(map(int, wanted), dtype=np.int64, count=len(wanted))

    def watch(self, rows: Ints) -> None:
        """Put these rows (sorted) aside when ``blocks`` comes by them, for ``take``."""
        self._watched, self._seen = rows, {}

    @property
    def streams(self) -> bool:
        """True where asking for single rows may be slow: then all of them are read once."""
        return not getattr(self.corpus, "random_access", False)

    @property
    def keeps_blocks(self) -> bool:
        """True where blocks are parts of what stays, and not memory of their own, which had better be let go."""
        return isinstance(self.corpus, ArrayCorpus)

    @property
    def at_hand(self) -> Array | None:
        """All vectors, where any of them can be read at any time at no cost: those of an array in memory."""
        vectors = self.corpus.vectors if isinstance(self.corpus, ArrayCorpus) else None
        return None if vectors is None or _shared_mapping(vectors) is not None else vectors

    def take(self, rows: Ints) -> Array:
        """The vectors of these rows, checked, as a copy in the type the corpus keeps."""
        if len(rows) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        # Counted first: a set of many rows takes a while to make.
        if len(self._seen) >= len(rows) and self._seen.keys() >= set(rows.tolist()):
            vectors = np.stack([self._seen[row] for row in rows.tolist()])
        else:
            vectors = self._fetched(rows)
        everywhere(lambda part: check_finite(vectors[part], rows[part], self), len(rows))
        return vectors

    def _fetched(self, rows: Ints) -> Array:
        take_rows = getattr(self.corpus, "take_rows", None)
        if take_rows is None:
            keys: Any = rows if not self.has_ids else [self.all_ids[row] for row in rows.tolist()]
            vectors = np.ascontiguousarray(self.corpus.take(keys))
        else:
            vectors = np.ascontiguousarray(take_rows(rows))
        if vectors.shape != (len(rows), self.dim):
            raise VectorError(f"the corpus returned {vectors.shape} for {len(rows)} ids of {self.dim} dimensions")
        return vectors

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """All documents as (first row, vectors). The order of ``corpus.ids`` is verified on the way."""
        start = 0
        for ids, vectors in self.corpus.blocks():
            if vectors.ndim != 2 or vectors.shape != (len(ids), self.dim):
                raise VectorError(
                    f"a block of {len(ids)} ids has vectors of shape {vectors.shape}, expected {self.dim} columns"
                )
            if self.has_ids and list(ids) != list(self.all_ids[start : start + len(ids)]):
                raise VectorError(f"the corpus streams its documents in another order than its ids, from row {start}")
            wanted = self._watched[slice(*np.searchsorted(self._watched, [start, start + len(ids)]))]
            self._seen.update(zip(wanted.tolist(), vectors[wanted - start], strict=True))
            yield start, vectors
            start += len(ids)
        if start != self.rows:
            raise VectorError(f"the corpus has {self.rows} ids but streamed {start} documents")

    def copy(self) -> Array:
        """All vectors as one new array."""
        if isinstance(self.corpus, ArrayCorpus):
            return np.array(self.corpus.vectors)
        return np.concatenate([np.array(block) for _, block in self.blocks()])

    def name(self, row: int) -> str:
        """How to call this row in a message."""
        return f"row {row}" if not self.has_ids else f"row {row} (id {self.all_ids[row]!r})"


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
            "or open Parquet files with nudgevec.parquet.ParquetCorpus, first"
        )
    if matrix.ndim != 2:
        raise VectorError(
            f"{what} must be a two-dimensional array (rows, dimensions), not {matrix.ndim}-dimensional "
            f"({type(vectors).__name__})"
        )
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize not in (2, 4, 8):
        raise VectorError(f"{what} must be float16, float32 or float64, not {matrix.dtype}")
    return matrix if matrix.dtype.isnative else matrix.astype(matrix.dtype.newbyteorder("="))


def check_finite(vectors: Array, rows: Ints, reader: Reader) -> None:
    """Refuse NaN and infinity, naming the document."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise VectorError(f"documents: {reader.name(int(rows[bad[0]]))} holds NaN or infinity; remove or repair it")


def check_nonzero(length: Floats, rows: Ints, reader: Reader) -> None:
    """Refuse all-zero rows where a direction is needed, naming the document."""
    zero = np.flatnonzero(length == 0)
    if len(zero):
        raise VectorError(
            f"documents: {reader.name(int(rows[zero[0]]))} is all zeros and has no direction for cosine similarity; "
            "remove it, or use inner product (NudgeM, similarity='dot')"
        )


def _is_row(key: Hashable) -> bool:
    return isinstance(key, (int, np.integer)) and not isinstance(key, bool)


def _shared_mapping(vectors: Array) -> mmap.mmap | None:
    """The file mapping behind a memory-mapped array, when dropping its pages loses nothing."""
    base: Any = vectors
    while base is not None:
        if isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap):
            # Copy-on-write pages ("c") exist nowhere else and must stay.
            return base.base if base.mode in ("r", "r+") else None
        base = getattr(base, "base", None)
    return None
