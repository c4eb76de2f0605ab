"""Patches: the result of tuning, and a corpus seen through a patch.

A patch holds the rows that moved with their vectors before and after. It is saved as one safetensors file: arrays and a
JSON header. A patch may move every row of a large corpus, so its vectors may be memory-mapped, and are saved, checked
and compared in slices.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec import progress
from nudgevec.arrays import Array, Floats, Ints, as_matrix, slices
from nudgevec.core.curve import Curve
from nudgevec.core.linear_map import LinearMap
from nudgevec.corpus import ArrayCorpus, Corpus, Reader
from nudgevec.errors import LabelError, PatchError, VectorError
from nudgevec.files import write_file_atomically
from nudgevec.tensors import Tensor, as_bytes, map_tensors, release_pages, row_slices, write_tensors

_FORMAT = "nudgevec-patch-2"
# The ids were in the header, which has a limited length.
_OLD_FORMAT = "nudgevec-patch-1"
# The fields of a patch that are arrays, and the others.
_ARRAYS = ("rows", "before", "after", "labels", "distance")
_FACTS = ("method", "similarity", "gamma", "metric", "validation", "counts")
_BATCH_ROWS = 4096


def method_name(method: str) -> str:
    """Return what to call a method in a message."""
    return "Nudge" if method == "auto" else f"NUDGE-{method}"


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
    query_map : array of shape (d, d), optional
        The matrix of a map of queries; see ``adapt``.

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
    query_map: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        gain = ""
        if self.validation:
            before, after = self.validation["before"], self.validation["after"]
            gain = f", validation {self.metric} {before:.4f} -> {after:.4f}"
        moved = f"{len(self)} rows moved by gamma {self.gamma:.4g}"
        mapped = "" if self.query_map is None else ", queries mapped"
        return f"Patch({method_name(self.method)}, {moved}{mapped}{gain})"

    @property
    def fingerprint(self) -> str:
        """A hash of the ids and original vectors of the rows that moved."""
        digest = hashlib.sha256(repr(self.ids).encode())
        digest.update(str(self.before.dtype).encode())
        _update(digest, self.before)
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """A hash of the method and of the ids, original and new vectors; stores recognise a patch by it."""
        digest = hashlib.sha256(f"{self.method} {self.fingerprint}".encode())
        _update(digest, self.after)
        if self.query_map is not None:
            _update(digest, self.query_map)
        return digest.hexdigest()

    def adapt(self, queries: npt.ArrayLike) -> Array:
        """Return the vectors to search with where the patch is applied.

        Parameters
        ----------
        queries : array of shape (q, d) or (d,)
            Query vectors of the embedder.

        Returns
        -------
        array of the same shape
            x + x A, scaled back to the length of x, where the patch has a map A of queries; otherwise the queries as
            they are.

        Examples
        --------
        >>> from nudgevec import Nudge, demo
        >>> search = demo.load()
        >>> tuner = Nudge(side="queries").fit(search.documents, search.part(search.train))
        >>> tuner.patch_.adapt(search.queries[0]).shape
        (256,)
        """
        vectors = np.asarray(queries)
        if self.query_map is None:
            return vectors
        rows = as_matrix(vectors[None] if vectors.ndim == 1 else vectors, "queries")
        if rows.shape[1] != len(self.query_map):
            raise VectorError(f"queries have {rows.shape[1]} dimensions, the patch has {len(self.query_map)}")
        return LinearMap(self.query_map)(rows).reshape(vectors.shape)

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
        return PatchedCorpus(reader, self._locate(reader), self._new_vectors)

    def _new_vectors(self, current: Array, positions: Ints) -> Array:
        """Return the new vectors of these rows of the patch, which have their old ones."""
        old, new = self.before[positions], self.after[positions]
        release_pages(self.before)
        release_pages(self.after)
        if not np.array_equal(current, old.astype(current.dtype)):
            raise PatchError("documents have other vectors than the patch was made from")
        return new

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
        different = _different_rows(copy, rows, old)
        if len(rows) and len(different) == len(rows) and not len(_different_rows(copy, rows, new)):
            raise PatchError("nothing to do: the documents already have these vectors")
        if len(different):
            raise PatchError(
                f"{len(different)} of {len(self)} documents of the patch have other vectors here, "
                f"for example {reader.name(int(rows[different[0]]))}: {reason}"
            )
        for batch in slices(len(rows), _BATCH_ROWS):
            copy[rows[batch]] = new[batch]
            release_pages(new)
        return ArrayCorpus(copy, reader.corpus.ids) if reader.has_ids else copy

    def _locate(self, reader: Reader) -> Ints:
        """Return the rows of the patch among these documents."""
        try:
            rows = reader.locate(self.ids) if reader.has_ids else self.rows
        except LabelError as error:
            raise PatchError(f"the patch does not fit these documents: {error}") from None
        if len(rows) and (rows.max() >= reader.n_rows or reader.dim != self.before.shape[1]):
            raise PatchError(
                f"the patch moves rows up to {rows.max()} of {self.before.shape[1]} dimensions; "
                f"these documents have shape {(reader.n_rows, reader.dim)}"
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
        unsupported = [key for key in self.ids if not isinstance(key, (str, int))]
        if unsupported:
            raise PatchError(f"document ids must be strings or integers to be saved, not {unsupported[0]!r}")
        facts, arrays = self._facts(), self._arrays()
        metadata = {"nudgevec": json.dumps({**facts, "checksum": _checksum(facts, arrays)})}
        tensors = {name: Tensor.of(array) for name, array in arrays.items()}
        with write_file_atomically(Path(path)) as draft:
            write_tensors(draft, tensors, metadata, "writing the patch")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Patch:
        """Read a patch that ``save`` wrote. All of it is checked; its vectors stay in the file, which is memory-mapped.

        The file may be replaced or removed in the meantime, as ``save`` does, but not be overwritten in place.

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
        name = os.fspath(path)
        try:
            metadata, arrays = map_tensors(name)
            facts = json.loads(metadata.get("nudgevec", "{}"))
        except (ValueError, TypeError, RecursionError, OSError) as error:
            raise PatchError(f"{name} is not a readable patch: {error}") from None
        if not isinstance(facts, dict) or facts.get("format") not in (_FORMAT, _OLD_FORMAT):
            raise PatchError(f"{name} is not a nudgevec patch")
        checksum = facts.pop("checksum", None)
        if checksum != _checksum(facts, arrays):
            raise PatchError(f"{name} is damaged: its contents do not match their checksum")
        try:
            return cls._from_parts(facts, arrays)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PatchError(f"{name} is not a valid patch: {error}") from None

    def _facts(self) -> dict[str, Any]:
        """Return what a patch file holds beside its arrays."""
        facts = {name: getattr(self, name) for name in _FACTS}
        return {"format": _FORMAT, **facts, "curve.at_zero": None if self.curve is None else self.curve.at_zero}

    def _arrays(self) -> dict[str, Array]:
        """Return what a patch file holds as arrays: also the ids, as JSON."""
        arrays = {name: np.asarray(getattr(self, name)) for name in _ARRAYS}
        arrays["ids"] = np.frombuffer(json.dumps(self.ids).encode(), np.uint8)
        if self.curve is not None:
            arrays |= {"curve.edges": self.curve.edges, "curve.values": self.curve.values}
        if self.query_map is not None:
            arrays["query_map"] = np.ascontiguousarray(self.query_map)
        return arrays

    @classmethod
    def _from_parts(cls, facts: dict[str, Any], arrays: dict[str, Array]) -> Patch:
        """Return the patch of a file, and raise ValueError if its parts do not fit together."""
        curve = None
        if "curve.edges" in arrays:
            curve = Curve(arrays["curve.edges"], arrays["curve.values"], facts["curve.at_zero"])
            _require(curve.edges.shape == (len(curve.values) + 1,), "the curve has a wrong shape")
        ids = facts["ids"] if facts["format"] == _OLD_FORMAT else json.loads(arrays["ids"].tobytes())
        parts: dict[str, Any] = {**facts, **arrays, "ids": ids}
        given = {name: parts[name] for name in ("ids", *_ARRAYS, *_FACTS)}
        patch = cls(**given, curve=curve, query_map=arrays.get("query_map"))
        _check_facts(patch)
        _check_arrays(patch)
        return patch


def _check_facts(patch: Patch) -> None:
    """Raise ValueError if the facts of a patch file have a wrong type or value."""
    _require(isinstance(patch.method, str), "the method is not a name")
    _require(patch.similarity in ("cosine", "dot"), f"no similarity {patch.similarity!r}")
    _require(_is_finite(patch.gamma) and patch.gamma >= 0, "gamma is not a number of at least 0")
    _require(patch.metric is None or isinstance(patch.metric, str), "the metric is not a name")
    _require(isinstance(patch.validation, dict), "the result on the validation queries is not a table")
    if patch.validation:
        _require(all(_is_finite(patch.validation[key]) for key in ("before", "after")), "a metric is not a number")
    _require(
        isinstance(patch.counts, dict) and all(isinstance(count, int) for count in patch.counts.values()),
        "the counts are not whole numbers",
    )
    _require(isinstance(patch.ids, list), "the ids are not a list")
    _require(all(isinstance(key, (str, int)) for key in patch.ids), "an id is neither a string nor an integer")


def _check_arrays(patch: Patch) -> None:
    """Raise ValueError if the arrays of a patch file do not fit together."""
    n = len(patch.ids)
    _require(patch.before.ndim == 2 and patch.before.shape == patch.after.shape, "the vectors have a wrong shape")
    _require(
        all(getattr(patch, name).shape[:1] == (n,) for name in _ARRAYS)
        and all(getattr(patch, name).ndim == 1 for name in ("rows", "labels", "distance")),
        "rows, ids and vectors differ in number",
    )
    _require(patch.before.dtype == patch.after.dtype and patch.before.dtype.kind == "f", "the type is wrong")
    if patch.query_map is not None:
        shape = (patch.before.shape[1],) * 2
        _require(patch.query_map.shape == shape and patch.query_map.dtype.kind == "f", "the map has a wrong shape")
        _require(bool(np.isfinite(patch.query_map).all()), "the map is not finite")
    parts = (part for numbers in (patch.before, patch.after, patch.distance) for part in row_slices(numbers))
    _require(all(np.isfinite(part).all() for part in parts), "a vector is not finite")
    _require(len(set(patch.ids)) == n and len(set(patch.rows.tolist())) == n, "a document occurs twice")
    _require(patch.rows.dtype.kind == "i" and not (patch.rows < 0).any(), "a row number is negative or not an integer")
    _require(
        patch.labels.dtype.kind == "i" and not (patch.labels < 0).any(),
        "a label count is negative or not an integer",
    )


def _is_finite(value: object) -> bool:
    """Whether a fact of a patch file is a finite number."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _checksum(facts: dict[str, Any], arrays: dict[str, Array]) -> str:
    """Return a hash of all facts, and of the names, types, shapes and bytes of all arrays."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    with progress.bar("checking the patch", sum(array.nbytes for array in arrays.values())) as bar:
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            _update(digest, array)
            bar.update(array.nbytes)
    return digest.hexdigest()


def _update(digest: Any, array: Array) -> None:
    """Add the bytes of an array to a hash."""
    for part in row_slices(array):
        digest.update(as_bytes(part))


def _different_rows(documents: Array, rows: Ints, vectors: Array) -> Ints:
    """Return the positions of rows whose documents have other vectors than these."""
    different = np.zeros(len(rows), np.bool_)
    for batch in slices(len(rows), _BATCH_ROWS):
        different[batch] = (documents[rows[batch]] != vectors[batch].astype(documents.dtype)).any(axis=1)
        release_pages(vectors)
    return np.flatnonzero(different)


class PatchedCorpus:
    """A corpus with some vectors replaced as they are read. Made by ``Patch.over``.

    Parameters
    ----------
    reader : Reader
        The documents.
    rows : array of int, shape (n,)
        Rows to replace.
    replacement : function
        Takes the vectors of some of these rows and their positions in ``rows``; returns the vectors to read instead.

    Attributes
    ----------
    ids : sequence
        The id of every document.
    dim : int
        Number of dimensions.
    similarity : str or None
        That of the store that the documents are in, if they are in one.

    Examples
    --------
    >>> from nudgevec import NudgeN
    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> patch = NudgeN(gamma=0.1).fit(documents, train=(query, [[1]])).patch_
    >>> patch.over(documents).take([0, 1]).round(2).tolist()
    [[1.0, 0.0, 0.0], [0.31, 0.95, 0.0]]
    """

    def __init__(self, reader: Reader, rows: Ints, replacement: Callable[[Array, Ints], Array]) -> None:
        self._reader, self._replacement = reader, replacement
        self.ids, self.dim = reader.all_ids, reader.dim
        # A store seen through a patch is compared as the store is.
        self.similarity = getattr(reader.corpus, "similarity", None)
        self._order = np.argsort(rows)
        self._rows = rows[self._order]
        self._position_of = {self.ids[row]: position for position, row in enumerate(rows.tolist())}

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Read the vectors of some documents.

        Parameters
        ----------
        ids : sequence
            Ids of the corpus.

        Returns
        -------
        array of shape (len(ids), d)
            One vector per id, in the order of ``ids``.

        Raises
        ------
        PatchError
            If a document of the patch has another vector than it must have.
        """
        vectors = np.array(self._reader.corpus.take(ids))
        positions = np.array([self._position_of.get(key, -1) for key in ids], np.int64)
        replaced = np.flatnonzero(positions >= 0)
        if len(replaced):
            vectors[replaced] = self._replacement(vectors[replaced], positions[replaced])
        return vectors

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Iterate over all documents in blocks.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block.
        vectors : array of shape (rows, d)
            Their vectors.

        Raises
        ------
        PatchError
            If a document of the patch has another vector than it must have.
        """
        first = 0
        for ids, vectors in self._reader.corpus.blocks():
            replaced = slice(*np.searchsorted(self._rows, [first, first + len(ids)]))
            block, rows = np.array(vectors), self._rows[replaced] - first
            if len(rows):
                block[rows] = self._replacement(block[rows], self._order[replaced])
            yield ids, block
            first += len(ids)
