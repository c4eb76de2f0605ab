"""The ledger of a store: the applied patch with its rows, and the states of these rows in the collection.

A patch may move every row of a large collection. Its ids are in memory, its vectors are read in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

import nudgevec
from nudgevec import progress
from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import StoreError
from nudgevec.patch import Patch, method_name
from nudgevec.stores.messages import example_ids
from nudgevec.tensors import release_pages


@dataclass(frozen=True)
class Change:
    """Documents with an old and a new vector each, which are read in batches."""

    ids: list[Any]
    read: Callable[[Ints], tuple[Array, Array]]
    """Takes positions in ``ids``, and returns the old and the new vectors there, each of shape (positions, d)."""

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_arrays(cls, ids: list[Any], old: Array, new: Array) -> Change:
        """Return a change whose vectors are in arrays, which may be memory-mapped."""

        def read(positions: Ints) -> tuple[Array, Array]:
            vectors = old[positions], new[positions]
            release_pages(old)
            release_pages(new)
            return vectors

        return cls(ids, read)

    def batches(self, size: int, task: str) -> Iterator[tuple[list[Any], Array, Array]]:
        """Yield ids with their old and new vectors, ``size`` at a time; a progress bar shows the task."""
        with progress.bar(task, len(self)) as bar:
            for batch in slices(len(self), size):
                old, new = self.read(np.arange(batch.start, batch.stop))
                yield self.ids[batch], old, new
                bar.update(len(old))

    def subset(self, positions: Ints) -> Change:
        """Return the documents at these positions."""
        return Change(
            [self.ids[position] for position in positions.tolist()], lambda among: self.read(positions[among])
        )

    def reversed(self) -> Change:
        """Return the change from the new vectors to the old ones."""
        return Change(self.ids, lambda positions: self.read(positions)[::-1])


# What every ledger says about its patch; "place" is the stored name of the columns.
LEDGER_KEYS = frozenset({"patch", "method", "gamma", "rows", "when", "nudgevec", "place", "documents"})


@dataclass(frozen=True)
class Ledger:
    """The applied patch as a store records it: metadata, and the change from the original to the new vectors."""

    metadata: dict[str, Any]
    """Kept in the store as JSON under the keys of ``for_patch``, which therefore never change."""
    change: Change

    @property
    def ids(self) -> list[Any]:
        """The ids of the rows."""
        return self.change.ids

    @classmethod
    def for_patch(cls, patch: Patch, columns: dict[str, Any], n_documents: int) -> Ledger:
        """Return the ledger of a patch that is about to be applied."""
        metadata = {
            "patch": patch.identity,
            "method": patch.method,
            "similarity": patch.similarity,
            "gamma": patch.gamma,
            "metric": patch.metric,
            "rows": len(patch),
            "query_map": patch.query_map is not None,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "nudgevec": nudgevec.__version__,
            # The stored name of the columns.
            "place": columns,
            "documents": n_documents,
        }
        return cls(metadata, Change.from_arrays(list(patch.ids), patch.before, patch.after))

    @property
    def patch_identity(self) -> str:
        """The ``identity`` of the patch."""
        return str(self.metadata["patch"])

    @property
    def columns(self) -> dict[str, Any]:
        """The ``columns`` of the store that the patch was applied to."""
        columns: dict[str, Any] = self.metadata["place"]
        return columns

    @property
    def n_documents(self) -> int:
        """The number of documents in the collection when the patch was applied."""
        return int(self.metadata["documents"])


def join_pairs(old: Array, new: Array) -> Array:
    """Return vectors side by side, float32 of shape (n, 2 d), for stores with one vector per row."""
    pairs: Array = np.concatenate([old, new], axis=1).astype(np.float32)
    return pairs


def split_pairs(pairs: Array) -> tuple[Array, Array]:
    """Return the vectors that ``join_pairs`` put side by side."""
    dim = pairs.shape[1] // 2
    return pairs[:, :dim], pairs[:, dim:]


def in_order(keys: Sequence[Hashable], blocks: Iterable[tuple[Sequence[Hashable], Array]]) -> Array:
    """Return rows of a ledger, read by key in any order, in the order of these keys.

    Raises
    ------
    StoreError
        If a row is missing.
    """
    row_of = {key: row for found, rows in blocks for key, row in zip(found, rows, strict=True)}
    try:
        return np.stack([row_of[key] for key in keys])
    except KeyError:
        raise StoreError("the ledger changed while it was read: run the command again") from None


@dataclass(frozen=True)
class Status:
    """The state of a patch in a store. ``str(status)`` describes it in a sentence.

    Parameters
    ----------
    metadata : dict or None
        The ledger's record of the patch: "method", "gamma", "rows", "when" it was applied, the version of "nudgevec"
        and others; None if no patch is applied.
    applied : int
        Number of rows that have their new vectors.
    original : int
        Number of rows that have their old vectors.
    changed : tuple
        Ids of rows that have been changed by others; they are never overwritten.
    missing : tuple
        Ids of rows that have been removed by others.
    is_applied : bool
        Whether the store has a ledger, that is, a patch that is applied at least in part.

    Examples
    --------
    >>> print(Status(None))
    no patch is applied
    >>> print(Status({"rows": 3}, original=2, changed=("a",)))
    reverted: 2 of 3 rows have their original vectors; 1 changed by others and left as they are, for example 'a'
    """

    metadata: dict[str, Any] | None
    applied: int = 0
    original: int = 0
    changed: tuple[Hashable, ...] = ()
    missing: tuple[Hashable, ...] = ()
    is_applied: bool = False

    def __str__(self) -> str:
        if self.metadata is None:
            return "no patch is applied"
        n_rows = self.metadata["rows"]
        if self.is_applied:
            text = (
                f"{method_name(self.metadata['method'])} with gamma {self.metadata['gamma']:.4g}, applied "
                f"{self.metadata['when']} by nudgevec {self.metadata['nudgevec']}: {self.applied:,} of {n_rows:,} "
                "rows have their new vectors"
            )
            if self.metadata.get("query_map"):
                text += ", for queries that went through its map"
            if self.original:
                text += f", {self.original:,} still have their original ones: run apply or revert again"
        else:
            text = f"reverted: {self.original:,} of {n_rows:,} rows have their original vectors"
        for state, ids in (("changed by others and left as they are", self.changed), ("missing", self.missing)):
            if ids:
                text += f"; {len(ids):,} {state}, for example {example_ids(ids)}"
        return text


@dataclass(frozen=True)
class RowStates:
    """Positions in a ledger, by the vector that the store holds there."""

    applied: Ints
    original: Ints
    changed: Ints
    missing: Ints

    def status(self, ledger: Ledger, *, is_applied: bool = True) -> Status:
        """Return the numbers of rows, and the ids of rows that others have changed or removed."""
        changed, missing = (
            tuple(ledger.ids[position] for position in positions.tolist()) for positions in (self.changed, self.missing)
        )
        return Status(ledger.metadata, len(self.applied), len(self.original), changed, missing, is_applied)
