"""The ledger of a store: the applied patch with its rows, and the states of these rows in the collection."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

import nudgevec
from nudgevec.arrays import Array, Ints
from nudgevec.patch import Patch
from nudgevec.stores.messages import example_ids

# What every ledger says about its patch; "place" is the stored name of the columns.
LEDGER_KEYS = frozenset({"patch", "method", "gamma", "rows", "when", "nudgevec", "place", "documents"})


@dataclass(frozen=True)
class Ledger:
    """The applied patch as a store records it: metadata and rows."""

    metadata: dict[str, Any]
    """Kept in the store as JSON under the keys of ``for_patch``, which therefore never change."""
    ids: list[Any]
    before: Array
    after: Array

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
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "nudgevec": nudgevec.__version__,
            # The stored name of the columns.
            "place": columns,
            "documents": n_documents,
        }
        return cls(metadata, list(patch.ids), patch.before, patch.after)

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

    @property
    def pairs(self) -> Array:
        """Old and new vectors side by side, float32 of shape (n, 2 d), for stores with one vector per row."""
        pairs: Array = np.concatenate([self.before, self.after], axis=1).astype(np.float32)
        return pairs

    @classmethod
    def from_pairs(cls, metadata: dict[str, Any], ids: list[Any], pairs: Array) -> Ledger:
        """Return the ledger whose ``pairs`` were read from a store."""
        dim = pairs.shape[1] // 2
        return cls(metadata, ids, pairs[:, :dim], pairs[:, dim:])


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
                f"NUDGE-{self.metadata['method']} with gamma {self.metadata['gamma']:.4g}, applied "
                f"{self.metadata['when']} by nudgevec {self.metadata['nudgevec']}: {self.applied:,} of {n_rows:,} "
                "rows have their new vectors"
            )
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
