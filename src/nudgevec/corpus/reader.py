"""The library's view of a corpus: documents by row, checked.

Ids are translated to rows here when they come in, and back when they go out; the core knows rows only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec import progress
from nudgevec.arrays import Array, Floats, Ints, as_matrix
from nudgevec.core.exact import compilable, norms
from nudgevec.core.scan import Block
from nudgevec.corpus.arrays import ArrayCorpus
from nudgevec.corpus.base import Corpus
from nudgevec.errors import LabelError, VectorError


class Reader:
    """A corpus, or an array as a corpus, seen by row."""

    def __init__(self, documents: Corpus | npt.ArrayLike) -> None:
        # Checking a protocol is slow, and most corpora are arrays.
        if isinstance(documents, np.ndarray) or not isinstance(documents, Corpus):
            documents = ArrayCorpus(documents)
        self.corpus: Corpus = documents
        self.all_ids = self.corpus.ids
        self.n_rows = len(self.all_ids)
        self.dim = int(self.corpus.dim)
        if self.n_rows == 0 or self.dim == 0:
            raise VectorError(f"the corpus is empty: {self.n_rows} documents of {self.dim} dimensions")
        self.has_ids = not (isinstance(self.all_ids, range) and self.all_ids == range(self.n_rows))
        self._skipped: dict[int, Array] = {}

    def ids(self, rows: Ints) -> list[Hashable]:
        """Return the ids of rows, as plain Python objects."""
        if not self.has_ids:
            return list(rows.tolist())
        ids = [self.all_ids[row] for row in rows.tolist()]
        return [key.item() if isinstance(key, np.generic) else key for key in ids]

    def name(self, row: int) -> str:
        """Return what to call a row in a message."""
        return f"row {row}" if not self.has_ids else f"row {row} (id {self.all_ids[row]!r})"

    def locate(self, wanted: Sequence[Hashable]) -> Ints:
        """Return the row of each id.

        Raises
        ------
        LabelError
            If an id is not in the corpus, or more than once.
        """
        if not self.has_ids:
            return self._checked_rows(wanted)
        row_of = dict.fromkeys(wanted, -1)
        for row, key in enumerate(self.all_ids):
            if key in row_of:
                if row_of[key] >= 0:
                    raise LabelError(
                        f"document id {key!r} is not unique in the corpus: rows {row_of[key]} and {row} have it"
                    )
                row_of[key] = row
        rows = np.fromiter((row_of[key] for key in wanted), np.int64, len(wanted))
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise LabelError(
                f"{len(missing)} document id(s) are not in the corpus, for example {wanted[missing[0]]!r}; "
                f"its ids look like {self.all_ids[0]!r}"
            )
        return rows

    def _checked_rows(self, wanted: Sequence[Any]) -> Ints:
        for key in wanted:
            if not isinstance(key, (int, np.integer)) or isinstance(key, bool) or not 0 <= key < self.n_rows:
                hint = "; grades go into a dict {row: grade}" if isinstance(key, tuple) else ""
                raise LabelError(
                    f"label {key!r} is not a row of the {self.n_rows} documents "
                    f"(rows are whole numbers from 0 to {self.n_rows - 1}){hint}"
                )
        return np.fromiter(wanted, np.int64, len(wanted))

    def take(self, rows: Ints) -> Array:
        """Return a copy of the vectors of these rows, checked, in the type of the corpus.

        Rows that the last pass over ``blocks`` skipped are in memory if the corpus has no random access.
        """
        if len(rows) and all(row in self._skipped for row in rows.tolist()):
            vectors = np.stack([self._skipped[row] for row in rows.tolist()])
        elif self.has_ids:
            vectors = self.corpus.take([self.all_ids[row] for row in rows.tolist()])
        else:
            vectors = self.corpus.take(rows)  # type: ignore[arg-type]
        vectors = np.ascontiguousarray(vectors)
        if vectors.shape != (len(rows), self.dim):
            raise VectorError(f"the corpus returned {vectors.shape} for {len(rows)} ids of {self.dim} dimensions")
        self._check(norms(vectors), rows, cosine=False)
        return vectors

    def raw_blocks(self) -> Iterator[tuple[int, Array]]:
        """Yield all documents as (first row, vectors), and check that they come in the order of the ids."""
        first = 0
        for ids, block in self.corpus.blocks():
            vectors = as_matrix(block, "documents")
            if vectors.ndim != 2 or vectors.shape != (len(ids), self.dim):
                raise VectorError(
                    f"a block of {len(ids)} ids has vectors of shape {vectors.shape}, expected {self.dim} columns"
                )
            if self.has_ids and list(ids) != list(self.all_ids[first : first + len(ids)]):
                raise VectorError(f"the corpus streams its documents in another order than its ids, from row {first}")
            yield first, vectors
            first += len(ids)
        if first != self.n_rows:
            raise VectorError(f"the corpus has {self.n_rows} ids but streamed {first} documents")

    def blocks(self, skip: Ints | None = None, *, cosine: bool) -> Iterator[Block]:
        """Yield all documents as the scan takes them, checked.

        Parameters
        ----------
        skip : array of int, optional
            Rows to leave out, ascending. Their vectors are remembered for ``take`` if the corpus has no random access.
        cosine : bool
            Refuse vectors without a direction.
        """
        skip = np.empty(0, np.int64) if skip is None else skip
        remember = not getattr(self.corpus, "random_access", False)
        self._skipped = {}
        with progress.bar("scanning documents", self.n_rows) as bar:
            yield from self._checked_blocks(skip, remember, cosine, bar)

    def _checked_blocks(self, skip: Ints, remember: bool, cosine: bool, bar: Any) -> Iterator[Block]:
        for first, vectors in self.raw_blocks():
            left_out = skip[slice(*np.searchsorted(skip, [first, first + len(vectors)]))]
            if remember:
                self._skipped.update(zip(left_out.tolist(), vectors[left_out - first], strict=True))
            keep = np.ones(len(vectors), np.bool_)
            keep[left_out - first] = False
            vectors = compilable(vectors)
            lengths = norms(vectors)
            rows = np.arange(first, first + len(vectors))
            self._check(lengths, rows, cosine)
            yield Block(rows, vectors, lengths, keep)
            bar.update(len(vectors))

    def _check(self, lengths: Floats, rows: Ints, cosine: bool) -> None:
        bad = np.flatnonzero(~np.isfinite(lengths))
        if len(bad):
            where = self.name(int(rows[bad[0]]))
            problem = "holds NaN or infinity" if np.isnan(lengths[bad[0]]) else "is too long for float64"
            raise VectorError(f"documents: {where} {problem}; remove or repair it")
        zero = np.flatnonzero(lengths == 0)
        if cosine and len(zero):
            raise VectorError(
                f"documents: {self.name(int(rows[zero[0]]))} is all zeros and has no direction for cosine similarity; "
                "remove it, or use inner product (NudgeM, similarity='dot')"
            )

    def copy(self) -> Array:
        """Return all vectors as one new array."""
        if isinstance(self.corpus, ArrayCorpus):
            return np.array(self.corpus.vectors)
        return np.concatenate([np.array(vectors) for _, vectors in self.raw_blocks()])
