"""The ledger of a store: the patch that is in force with its rows, and how these rows stand in the collection."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

import nudgevec
from nudgevec.arrays import Array
from nudgevec.patch import Patch

_NAMED = 5


@dataclass(frozen=True)
class Ledger:
    """The patch that is in force: facts about its run, and its rows."""

    facts: dict[str, Any]
    ids: list[Any]
    before: Array
    after: Array

    @property
    def both(self) -> Array:
        """Old and new vectors side by side, as one row each."""
        joined: Array = np.concatenate([self.before, self.after], axis=1).astype(np.float32)
        return joined

    @classmethod
    def split(cls, facts: dict[str, Any], ids: list[Any], both: Array) -> Ledger:
        """The opposite of ``both``."""
        dim = both.shape[1] // 2
        return cls(facts, ids, both[:, :dim], both[:, dim:])


@dataclass(frozen=True)
class Status:
    """What is in force in a store, and how the rows of it stand."""

    facts: dict[str, Any] | None
    applied: int = 0
    original: int = 0
    changed: tuple[Hashable, ...] = ()
    """Rows that somebody else has changed since."""
    gone: tuple[Hashable, ...] = ()
    in_force: bool = False

    def __str__(self) -> str:
        if self.facts is None:
            return "no patch is in force"
        if self.in_force:
            words = (
                f"NUDGE-{self.facts['method']} with gamma {self.facts['gamma']:.4g}, put on {self.facts['when']} by "
                f"nudgevec {self.facts['nudgevec']}: {self.applied:,} of {self.facts['rows']:,} rows carry it"
            )
            if self.original:
                words += f", {self.original:,} do not yet: apply or revert it once more"
        else:
            words = f"taken back: {self.original:,} of {self.facts['rows']:,} rows have their old vectors"
        for what, rows in (("changed by others and left alone", self.changed), ("gone", self.gone)):
            if rows:
                words += f"; {len(rows):,} {what}, for example {named(rows)}"
        return words


@dataclass(frozen=True)
class Standing:
    """Places in a ledger by what the store holds for them."""

    applied: npt.NDArray[np.int64]
    original: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    gone: npt.NDArray[np.int64]

    def status(self, ledger: Ledger, *, in_force: bool = True) -> Status:
        """The same with ids and facts."""
        changed, gone = (tuple(ledger.ids[place] for place in each.tolist()) for each in (self.changed, self.gone))
        return Status(ledger.facts, len(self.applied), len(self.original), changed, gone, in_force)


def facts_of(patch: Patch) -> dict[str, Any]:
    """What a ledger says of a patch, beside its rows."""
    return {
        "patch": patch.identity,
        "method": patch.method,
        "similarity": patch.similarity,
        "gamma": patch.gamma,
        "metric": patch.metric,
        "rows": len(patch),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "nudgevec": nudgevec.__version__,
    }


def named(keys: Sequence[Hashable]) -> str:
    """The first few ids, for a message."""
    return ", ".join(repr(key) for key in keys[:_NAMED])
