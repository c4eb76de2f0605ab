"""The result of tuning: the few rows that moved, what they were, what they are, and why.

It is applied to arrays and taken back from them, and saved as one safetensors file: arrays and a JSON
header, no pickle, readable by anything.
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
    """Moved rows and everything needed to explain them.

    ``before`` and ``after`` are in the type of the corpus, one row per entry of ``rows`` and ``ids``
    (the ids are the rows themselves where the corpus has no ids). ``labels`` counts the training labels
    behind each row and ``distance`` is how far it went: the angle in radians, or the length of the step
    for NUDGE-M.

    >>> from nudgevec import NudgeN
    >>> documents = np.eye(3, dtype=np.float32)
    >>> query = np.array([[0.8, 0.6, 0.0]], dtype=np.float32)
    >>> patch = NudgeN(gamma=0.1).fit(documents, train=(query, [[1]])).patch_
    >>> patch
    Patch(NUDGE-N, 1 rows moved by gamma 0.1)
    >>> bool((patch.revert(patch.apply(documents)) == documents).all())
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
    """How the tuned vectors are to be searched: "cosine" or "dot"."""
    gamma: float
    metric: str | None = None
    validation: dict[str, Any] = field(default_factory=dict)
    """Mean metric ``before`` and ``after`` on the validation queries, and the evidence for the step."""
    counts: dict[str, int] = field(default_factory=dict)
    """Documents, queries, labels and how many of them were used."""
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
        """A hash of the ids and original vectors of the moved rows."""
        digest = hashlib.sha256(repr(self.ids).encode())
        digest.update(str(self.before.dtype).encode())
        digest.update(np.ascontiguousarray(self.before).tobytes())
        return digest.hexdigest()

    @property
    def identity(self) -> str:
        """A hash of what the patch does: which rows, from where, and to where."""
        digest = hashlib.sha256(f"{self.method} {self.fingerprint}".encode())
        digest.update(np.ascontiguousarray(self.after).tobytes())
        return digest.hexdigest()

    def apply(self, documents: Corpus | npt.ArrayLike) -> Any:
        """A copy of the documents with the moved rows replaced; every other row is bit-identical.

        An array for an array; for a corpus with ids, an ``ArrayCorpus`` with the same ids.
        """
        return self._swap(documents, self.before, self.after, "they are not the vectors it was made from")

    def over(self, documents: Corpus | npt.ArrayLike) -> Patched:
        """The documents with the moved rows replaced, as a corpus that is read through the patch: no copy is made."""
        reader = Reader(documents)
        return Patched(reader, self._located(reader), self.before, self.after)

    def revert(self, documents: Corpus | npt.ArrayLike) -> Any:
        """The inverse of ``apply``: a copy with the original rows put back, bit for bit."""
        return self._swap(documents, self.after, self.before, "the patch is not applied to them")

    def _swap(self, documents: Corpus | npt.ArrayLike, old: Array, new: Array, otherwise: str) -> Any:
        reader = Reader(documents)
        swapped = self._swapped_rows(reader, old, new, otherwise)
        return ArrayCorpus(swapped, reader.corpus.ids) if reader.has_ids else swapped

    def _swapped_rows(self, reader: Reader, old: Array, new: Array, otherwise: str) -> Array:
        copy, rows = reader.copy(), self._located(reader)
        if len(rows) == 0:
            return copy
        different = np.flatnonzero((copy[rows] != old.astype(copy.dtype)).any(axis=1))
        if len(different) == len(self) and np.array_equal(copy[rows], new.astype(copy.dtype)):
            raise PatchError("these documents are in that state already: there is nothing to do")
        if len(different):
            raise PatchError(
                f"{len(different)} of {len(self)} documents of the patch have other vectors here, "
                f"for example {reader.name(int(rows[different[0]]))}: {otherwise}"
            )
        copy[rows] = new
        return copy

    def _located(self, reader: Reader) -> Ints:
        """The rows of the patch among these documents."""
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
        """Write the patch to one file; a crash leaves the old file or the new one, never half of it."""
        from safetensors.numpy import save

        tensors = {
            "rows": self.rows,
            "before": np.ascontiguousarray(self.before),
            "after": np.ascontiguousarray(self.after),
            "labels": self.labels,
            "distance": self.distance,
        }
        facts: dict[str, Any] = {
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
            facts["curve.at_zero"] = self.curve.at_zero
        odd = [key for key in self.ids if not isinstance(key, (str, int))]
        if odd:
            raise PatchError(f"document ids must be strings or whole numbers to be saved, not {odd[0]!r}")
        header = json.dumps(facts)
        with write_file_atomically(Path(path)) as draft:
            draft.write_bytes(save(tensors, metadata={"nudgevec": header}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Patch:
        """Read a patch written by ``save``."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(os.fspath(path), framework="numpy") as file:
                facts = json.loads((file.metadata() or {}).get("nudgevec", "{}"))
                if facts.get("format") != _FORMAT:
                    raise PatchError(f"{os.fspath(path)} is not a nudgevec patch")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError, OSError) as error:
            raise PatchError(f"{os.fspath(path)} is not a readable patch: {error}") from None
        curve = None
        if "curve.edges" in tensors:
            curve = Curve(tensors.pop("curve.edges"), tensors.pop("curve.values"), facts["curve.at_zero"])
        known = ("ids", "method", "similarity", "gamma", "metric", "validation", "counts")
        patch = cls(curve=curve, **tensors, **{name: facts[name] for name in known})
        if patch.fingerprint != facts["fingerprint"] or patch._checksum() != facts["checksum"]:
            raise PatchError(f"{os.fspath(path)} is damaged: its contents do not match their checksum")
        return patch

    def _checksum(self) -> str:
        """A hash of every array."""
        digest = hashlib.sha256()
        for array in (self.rows, self.before, self.after, self.labels, self.distance):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


class Patched:
    """A corpus with new vectors in the place of old ones, which must be there."""

    def __init__(self, reader: Reader, rows: Ints, old: Array, new: Array) -> None:
        self._reader = reader
        self.ids, self.dim = reader.all_ids, reader.dim
        order = np.argsort(rows)
        self._rows, self._old, self._new = rows[order], old[order], new[order]
        self._place = {self.ids[row]: place for place, row in enumerate(self._rows.tolist())}

    def take(self, ids: Sequence[Hashable]) -> Array:
        """The vectors of these documents."""
        taken = np.array(self._reader.corpus.take(ids))
        moved = [(place, self._place[key]) for place, key in enumerate(ids) if key in self._place]
        if moved:
            there, here = map(list, zip(*moved, strict=True))
            taken[there] = self._moved(taken[there], here)
        return taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """All documents once."""
        start = 0
        for ids, vectors in self._reader.corpus.blocks():
            some = slice(*np.searchsorted(self._rows, [start, start + len(ids)]))
            block = np.array(vectors)
            there = self._rows[some] - start
            block[there] = self._moved(block[there], some)
            yield ids, block
            start += len(ids)

    def _moved(self, found: Array, places: Any) -> Array:
        if not np.array_equal(found, self._old[places].astype(found.dtype)):
            raise PatchError("these documents have other vectors than the patch was made from")
        new: Array = self._new[places]
        return new
