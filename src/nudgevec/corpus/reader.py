"""The library's side of a corpus: documents by their row in the stream, and the checks every one of them passes."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere
from nudgevec.arithmetic.rows import Array, Floats, Ints
from nudgevec.corpus.arrays import ArrayCorpus, shared_mapping
from nudgevec.corpus.base import Corpus
from nudgevec.errors import LabelError, VectorError


class Reader:
    """A corpus seen by row: inside the library there are no ids; they come in and go out here."""

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
        return None if vectors is None or shared_mapping(vectors) is not None else vectors

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
