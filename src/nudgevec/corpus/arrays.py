"""An array as a corpus, in memory or memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere
from nudgevec.arithmetic.rows import Array, Ints, rows_of
from nudgevec.corpus.base import as_matrix, rows_among
from nudgevec.errors import VectorError

# Blocks of an array: this many bytes by default, of a memory-mapped file (which are brought in) and at most.
_BLOCK_BYTES = 96 << 20
_MAPPED_BLOCK_BYTES = 32 << 20
_LARGEST_BLOCK = 128 << 20
# One row of a memory-mapped file can bring in megabytes of neighbours.
_ROWS_BETWEEN_RELEASES = 64


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
        usual = _BLOCK_BYTES if shared_mapping(self.vectors) is None else _MAPPED_BLOCK_BYTES
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
        if shared_mapping(self.vectors) is None:

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
        mapping = shared_mapping(self.vectors)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)


def shared_mapping(vectors: Array) -> mmap.mmap | None:
    """The file mapping behind a memory-mapped array, when dropping its pages loses nothing."""
    base: Any = vectors
    while base is not None:
        if isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap):
            # Copy-on-write pages ("c") exist nowhere else and must stay.
            return base.base if base.mode in ("r", "r+") else None
        base = getattr(base, "base", None)
    return None
