"""Patches: the result of tuning, and a corpus seen through a patch.

A patch holds the rows that moved with their vectors before and after. It is saved as one safetensors file: arrays and a
JSON header.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, Floats, Ints
from nudgevec.core.curve import Curve
from nudgevec.corpus import ArrayCorpus, Corpus, Reader
from nudgevec.errors import LabelError, PatchError
from nudgevec.files import write_file_atomically

_FORMAT = "nudgevec-patch-1"


@dataclass(frozen=True, eq=False, repr=False)
class Patch:
    """The documents that moved, with their vectors before and after. Made by the ``fit`` of a tuner.

    Parameters
    ----------
    rows : array of int, shape (n,)
        Rows that moved, in the corpus that was tuned.
    ids : list
        Their ids; equal to ``rows`` for a corpus without ids.
    before, after : array of shape (n, d)
        Their vectors, in the type of the corpus.
    labels : array of int, shape (n,)
        Number of training labels of each row.
    distance : array of float, shape (n,)
        How far each row moved: the angle in radians, or the length of the step for NUDGE-M.
    method : str
        The method that made the patch, for example "N".
    similarity : {"cosine", "dot"}
        The similarity that the new vectors are meant for.
    gamma : float
        Size of the step.
    metric : str, optional
        The metric that chose gamma.
    validation : dict
        Mean metric "before" and "after" on the validation queries, and the evidence for the step.
    counts : dict
        Numbers of documents, of queries and labels given, and of queries used.
    curve : Curve, optional
        The metric as a function of gamma.

    Examples
    --------
    >>> from nudgevec import NudgeN
    >>> documents = np.eye(3, dtype=np.float32)
    >>> query = np.array([[0.8, 0.6, 0.0]], dtype=np.float32)
    >>> patch = NudgeN(gamma=0.1).fit(documents, train=(query, [[1]])).patch_
    >>> patch
    Patch(NUDGE-N, 1 rows moved by gamma 0.1)
    >>> moved = patch.apply(documents)
    >>> moved[1].round(2)
    array([0.31, 0.95, 0.  ], dtype=float32)
    >>> bool((patch.revert(moved) == documents).all())
    True
    """

    rows: Ints
    ids: list[Hashable]
    before: Array
    after: Array
    labels: Ints
    distance: Floats
    method: str
    similarity: str
    gamma: float
    metric: str | None = None
    validation: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    curve: Curve | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        gain = ""
        if self.validation:
            before, after = self.validation["before"], self.validation["after"]
            gain = f", validation {self.metric} {before:.4f} -> {after:.4f}"
        return f"Patch(NUDGE-{self.method}, {len(self)} rows moved by gamma {self.gamma:.4g}{gain})"

    @property
    def fingerprint(self) -> str:
        """A hash of the ids and original vectors of the rows that moved."""
        digest = hashlib.sha256(repr(self.ids).encode())
        digest.update(str(self.before.dtype).encode())
        digest.update(np.ascontiguousarray(self.before).tobytes())
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """A hash of the method and of the ids, original and new vectors; stores recognise a patch by it."""
        digest = hashlib.sha256(f"{self.method} {self.fingerprint}".encode())
        digest.update(np.ascontiguousarray(self.after).tobytes())
        return digest.hexdigest()

    def apply(self, documents: Corpus | npt.ArrayLike) -> Any:
        """Return a copy of the documents with the new vectors; all other rows are bit-identical.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            The documents that were tuned. There may be more of them by now.

        Returns
        -------
        array or ArrayCorpus
            An array for an array; for a corpus with ids, an ``ArrayCorpus`` with the same ids.

        Raises
        ------
        PatchError
            If the documents are missing or have other vectors than the patch was made from, or the patch is applied
            already.
        """
        return self._swap(documents, self.before, self.after, "they are not the vectors it was made from")

    def over(self, documents: Corpus | npt.ArrayLike) -> PatchedCorpus:
        """Return the documents with the new vectors as a corpus, without a copy.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            The documents that were tuned.

        Returns
        -------
        PatchedCorpus
            A corpus that replaces vectors as they are read. Reading raises PatchError if a document has another vector
            than the patch was made from.

        Raises
        ------
        PatchError
            If documents of the patch are missing, or have another number of dimensions.
        """
        reader = Reader(documents)
        return PatchedCorpus(reader, self._locate(reader), self.before, self.after)

    def revert(self, documents: Corpus | npt.ArrayLike) -> Any:
        """Return a copy of the documents with the original vectors, bit for bit; the inverse of ``apply``.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            Documents that the patch is applied to.

        Returns
        -------
        array or ArrayCorpus
            An array for an array; for a corpus with ids, an ``ArrayCorpus`` with the same ids.

        Raises
        ------
        PatchError
            If the documents are missing, or the patch is not applied to them.
        """
        return self._swap(documents, self.after, self.before, "the patch is not applied to them")

    def _swap(self, documents: Corpus | npt.ArrayLike, old: Array, new: Array, reason: str) -> Any:
        """Return a copy with old vectors replaced by new ones."""
        reader = Reader(documents)
        copy, rows = reader.copy(), self._locate(reader)
        if len(rows):
            different = np.flatnonzero((copy[rows] != old.astype(copy.dtype)).any(axis=1))
            if len(different) == len(self) and np.array_equal(copy[rows], new.astype(copy.dtype)):
                raise PatchError("nothing to do: the documents already have these vectors")
            if len(different):
                raise PatchError(
                    f"{len(different)} of {len(self)} documents of the patch have other vectors here, "
                    f"for example {reader.name(int(rows[different[0]]))}: {reason}"
                )
            copy[rows] = new
        return ArrayCorpus(copy, reader.corpus.ids) if reader.has_ids else copy

    def _locate(self, reader: Reader) -> Ints:
        """Return the rows of the patch among these documents."""
        try:
            rows = reader.locate(self.ids) if reader.has_ids else self.rows
        except LabelError as error:
            raise PatchError(f"the patch does not fit these documents: {error}") from None
        if len(rows) and (rows.max() >= reader.rows or reader.dim != self.before.shape[1]):
            raise PatchError(
                f"the patch moves rows up to {rows.max()} of {self.before.shape[1]} dimensions; "
                f"these documents have shape {(reader.rows, reader.dim)}"
            )
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the patch to a file, atomically.

        Parameters
        ----------
        path : path-like
            A safetensors file; an existing one is replaced.

        Raises
        ------
        PatchError
            If an id is neither a string nor an integer.
        """
        from safetensors.numpy import save

        tensors = {
            "rows": self.rows,
            "before": np.ascontiguousarray(self.before),
            "after": np.ascontiguousarray(self.after),
            "labels": self.labels,
            "distance": self.distance,
        }
        header: dict[str, Any] = {
            "format": _FORMAT,
            "ids": self.ids,
            "method": self.method,
            "similarity": self.similarity,
            "gamma": self.gamma,
            "metric": self.metric,
            "validation": self.validation,
            "counts": self.counts,
            "fingerprint": self.fingerprint,
            "checksum": self._checksum(),
        }
        if self.curve is not None:
            tensors["curve.edges"] = self.curve.edges
            tensors["curve.values"] = self.curve.values
            header["curve.at_zero"] = self.curve.at_zero
        unsupported = [key for key in self.ids if not isinstance(key, (str, int))]
        if unsupported:
            raise PatchError(f"document ids must be strings or integers to be saved, not {unsupported[0]!r}")
        metadata = {"nudgevec": json.dumps(header)}
        with write_file_atomically(Path(path)) as draft:
            draft.write_bytes(save(tensors, metadata=metadata))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Patch:
        """Read a patch that ``save`` wrote.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        Patch
            Equal to the one that was saved.

        Raises
        ------
        PatchError
            If the file is not a patch, or is damaged.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(os.fspath(path), framework="numpy") as file:
                header = json.loads((file.metadata() or {}).get("nudgevec", "{}"))
                if header.get("format") != _FORMAT:
                    raise PatchError(f"{os.fspath(path)} is not a nudgevec patch")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError, OSError) as error:
            raise PatchError(f"{os.fspath(path)} is not a readable patch: {error}") from None
        curve = None
        if "curve.edges" in tensors:
            curve = Curve(tensors.pop("curve.edges"), tensors.pop("curve.values"), header["curve.at_zero"])
        fields = ("ids", "method", "similarity", "gamma", "metric", "validation", "counts")
        patch = cls(curve=curve, **tensors, **{name: header[name] for name in fields})
        if patch.fingerprint != header["fingerprint"] or patch._checksum() != header["checksum"]:
            raise PatchError(f"{os.fspath(path)} is damaged: its contents do not match their checksum")
        return patch

    def _checksum(self) -> str:
        """Return a hash of the arrays."""
        digest = hashlib.sha256()
        for array in (self.rows, self.before, self.after, self.labels, self.distance):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class PatchedCorpus:
    """A corpus with some vectors replaced as they are read.

    Parameters
    ----------
    reader : Reader
        The documents.
    rows : array of int, shape (n,)
        Rows to replace.
    old, new : array of shape (n, d)
        The vectors that the documents must have, and those to return.
    """

    def __init__(self, reader: Reader, rows: Ints, old: Array, new: Array) -> None:
        self._reader = reader
        self.ids, self.dim = reader.all_ids, reader.dim
        order = np.argsort(rows)
        self._rows, self._old, self._new = rows[order], old[order], new[order]
        self._index = {self.ids[row]: index for index, row in enumerate(self._rows.tolist())}

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Return the vectors of these documents."""
        vectors = np.array(self._reader.corpus.take(ids))
        replaced = [(position, self._index[key]) for position, key in enumerate(ids) if key in self._index]
        if replaced:
            positions, indices = map(list, zip(*replaced, strict=True))
            vectors[positions] = self._replacement(vectors[positions], indices)
        return vectors

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield all documents once."""
        first = 0
        for ids, vectors in self._reader.corpus.blocks():
            indices = slice(*np.searchsorted(self._rows, [first, first + len(ids)]))
            block = np.array(vectors)
            positions = self._rows[indices] - first
            block[positions] = self._replacement(block[positions], indices)
            yield ids, block
            first += len(ids)

    def _replacement(self, current: Array, indices: Any) -> Array:
        if not np.array_equal(current, self._old[indices].astype(current.dtype)):
            raise PatchError("documents have other vectors than the patch was made from")
        new: Array = self._new[indices]
        return new
