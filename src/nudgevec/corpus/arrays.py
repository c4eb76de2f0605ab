"""An array as a corpus, in memory or memory-mapped."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, as_ids, as_list, as_matrix, rows_of, slices
from nudgevec.errors import VectorError
from nudgevec.tensors import mapping_of, release_pages

_BLOCK_BYTES = 32 << 20
# Reading a row of a memory-mapped file can map megabytes of its neighbours.
_ROWS_BETWEEN_RELEASES = 64


class ArrayCorpus:
    """An array of vectors, with or without ids.

    Parameters
    ----------
    vectors : array_like of shape (n, d)
        float16, float32 or float64; a NumPy array (also memory-mapped), a tensor, nested lists, a data frame.
    ids : sequence, optional
        One id per row: a list, array, tensor or column. Without ids, documents are named by their rows.
    block_rows : int, optional
        Rows per block; about 32 MB by default.

    Attributes
    ----------
    vectors : array of shape (n, d)
        The vectors, not copied if they were an array.
    ids : sequence
        The id of every document; a range without ids.

    Raises
    ------
    VectorError
        If the vectors are no matrix of floats, or there is another number of ids.

    Examples
    --------
    >>> corpus = ArrayCorpus(np.eye(2, dtype=np.float32), ids=["a", "b"])
    >>> corpus.take(["b"])
    array([[0., 1.]], dtype=float32)
    """

    random_access = True

    def __init__(
        self, vectors: npt.ArrayLike, ids: Sequence[Hashable] | None = None, block_rows: int | None = None
    ) -> None:
        self.vectors = as_matrix(vectors, "documents")
        self.ids: Sequence[Hashable] = range(len(self.vectors)) if ids is None else as_ids(ids)
        if len(self.ids) != len(self.vectors):
            raise VectorError(f"{len(self.ids)} ids do not match {len(self.vectors)} document vectors")
        self._row_of: dict[Hashable, int] | None = None
        self.block_rows = block_rows or max(1, _BLOCK_BYTES // max(1, self.vectors.shape[1] * self.vectors.itemsize))

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: Any) -> Any:
        """Return the vectors of these rows, as of an array."""
        return self.vectors[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.vectors, dtype) if copy else np.asarray(self.vectors, dtype)

    def __repr__(self) -> str:
        named = "by row" if isinstance(self.ids, range) else f"with ids like {self.ids[0]!r}" if len(self) else "empty"
        return f"ArrayCorpus({len(self)} documents of {self.dim} dimensions, {named})"

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Return a copy of the vectors of some documents.

        Parameters
        ----------
        ids : sequence
            Document ids, in any order, with or without repetitions.

        Returns
        -------
        array of shape (len(ids), d)
            One vector per id, in the order of ``ids``.

        Raises
        ------
        KeyError, IndexError
            If there is no document with one of the ids (without ids: no such row).
        """
        if self.ids == range(len(self)):
            rows = rows_of(ids, len(self))
        else:
            self._row_of = self._row_of or {key: row for row, key in enumerate(self.ids)}
            rows = np.array([self._row_of[key] for key in as_list(ids)], dtype=np.int64)
        if mapping_of(self.vectors) is None:
            return self.vectors[rows]
        taken = np.empty((len(rows), self.dim), self.vectors.dtype)
        for part in slices(len(rows), _ROWS_BETWEEN_RELEASES):
            taken[part] = self.vectors[rows[part]]
            release_pages(self.vectors)
        return taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Iterate over all documents in blocks.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block.
        vectors : array of shape (rows, d)
            Their vectors, not copied.
        """
        for begin in range(0, len(self), self.block_rows):
            end = begin + self.block_rows
            yield self.ids[begin:end], self.vectors[begin:end]
            release_pages(self.vectors)
