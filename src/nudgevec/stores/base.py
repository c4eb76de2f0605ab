"""What all stores promise, and how: nothing half-done, nothing lost, nothing put on top of something else.

Beside the collection a store keeps a *ledger*: the rows of the patch that is in force with their old and new
vectors, and what is known of its run. It is written before the first vector and goes when the last one is back. So
whatever happens in between, the next command sees from the ledger and the vectors themselves how far it came, and
finishes the work or takes it back. Of two at once, one wins and the other is told (``alone``).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import nudgevec
from nudgevec.corpus import Array, Corpus, Reader, lengths
from nudgevec.errors import NudgeError, StoreError
from nudgevec.patch import Patch, Patched

# Vectors are of unit length when they are so close to it.
_UNIT = 1e-3
_NAMED = 5


@dataclass(frozen=True)
class Ledger:
    """The patch that is in force: facts about its run, and its rows."""

    facts: dict[str, Any]
    ids: list[Any]
    before: Array
    after: Array


@dataclass(frozen=True)
class Status:
    """What is in force in a store, and how the rows of it stand."""

    facts: dict[str, Any] | None
    applied: int = 0
    original: int = 0
    changed: tuple[Hashable, ...] = ()
    """Rows that somebody else has changed since."""
    gone: tuple[Hashable, ...] = ()

    def __str__(self) -> str:
        if self.facts is None:
            return "no patch is in force"
        words = (
            f"NUDGE-{self.facts['method']} with gamma {self.facts['gamma']:.4g}, put on {self.facts['when']} by "
            f"nudgevec {self.facts['nudgevec']}: {self.applied:,} of {self.facts['rows']:,} rows carry it"
        )
        if self.original:
            words += f", {self.original:,} do not yet: apply or revert it once more"
        for what, rows in (("changed by others", self.changed), ("gone", self.gone)):
            if rows:
                words += f"; {len(rows):,} {what}, for example {_named(rows)}"
        return words


class Store(ABC):
    """A collection in a vector store, as a corpus that can be patched."""

    url: str
    metric: str | None
    """How the store compares vectors: "cosine", "dot", "l2", or None where it does not say."""
    ids: Sequence[Hashable]
    dim: int
    slack: float = 0.0
    """How far numbers that were written may be from those that are read back; 0 where float32 is kept exactly."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """All documents, in the order of ``ids``."""

    @abstractmethod
    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """These documents, in any order, in blocks; those that are not there are left out."""

    @abstractmethod
    def search(self, query: Array, count: int) -> list[Hashable]:
        """What the store itself finds nearest to a query, with whatever index it has."""

    @abstractmethod
    def refresh(self) -> None:
        """Look again: others may have written."""

    @abstractmethod
    def write(self, ids: Sequence[Any], vectors: Array) -> None:
        """Give these documents new vectors and leave everything else as it is; atomic where the store can be."""

    @abstractmethod
    def read_ledger(self) -> Ledger | None:
        """The ledger, if there is one."""

    @abstractmethod
    def make_ledger(self, ledger: Ledger) -> None:
        """Write the ledger, all of it or nothing. Called alone, and where there is none."""

    @abstractmethod
    def drop_ledger(self) -> None:
        """Remove the ledger."""

    @abstractmethod
    def settle(self) -> None:
        """Let the index catch up with what was written."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """Keep others from putting patches on or taking them back meanwhile; an error if somebody is at it."""

    _end: Callable[[], object] | None = None

    def _ends_with(self, close: Callable[[], object]) -> None:
        """What lets go of a connection: called once, by ``close`` or when nobody uses the store any more."""
        self._end = weakref.finalize(self, close)

    def close(self) -> None:
        """Let go of connections and locks; a store that is no longer used does so by itself."""
        if self._end is not None:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, ids: Sequence[Hashable]) -> Array:
        """The vectors of these documents."""
        found: dict[Hashable, Array] = {}
        for keys, vectors in self.fetch(ids):
            found.update(zip(keys, vectors, strict=True))
        missing = [key for key in ids if key not in found]
        if missing:
            raise StoreError(f"{self.url} has no document {missing[0]!r}")
        return np.stack([found[key] for key in ids])

    def _taken(self, ids: Sequence[Hashable], count: int) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """These documents in this order, so many at a time."""
        for start in range(0, len(ids), count):
            piece = ids[start : start + count]
            yield piece, self.take(piece)

    def apply(self, patch: Patch) -> Status:
        """Put a patch on. What a run that died left behind is finished."""
        with self._explained(), self.alone():
            return self._apply(patch)

    def _apply(self, patch: Patch) -> Status:
        self.refresh()
        self._check_metric(patch)
        ledger = self.read_ledger()
        if ledger is not None and ledger.facts["fingerprint"] != patch.fingerprint:
            raise StoreError(f"{self.url}: another patch is in force ({self._status(ledger)}): revert it first")
        if ledger is None:
            self._check_rows(patch)
            ledger = Ledger(_facts(patch), list(patch.ids), patch.before, patch.after)
            self.make_ledger(ledger)
        now = self._standing(ledger)
        if len(now.original):
            self.write([ledger.ids[place] for place in now.original], ledger.after[now.original])
            self.settle()
        return self.verify(patch)

    def verify(self, patch: Patch) -> Status:
        """Whether the patch is in force, row by row."""
        self.refresh()
        ledger = self.read_ledger()
        if ledger is None or ledger.facts["fingerprint"] != patch.fingerprint:
            raise StoreError(f"{self.url}: this patch is not in force")
        return self._status(ledger)

    def revert(self, patch: Patch | None = None) -> Status:
        """Take the patch back. Rows that others have changed or removed since are left alone, and listed."""
        with self._explained(), self.alone():
            return self._revert(patch)

    def _revert(self, patch: Patch | None) -> Status:
        self.refresh()
        ledger = self.read_ledger()
        if ledger is None:
            raise StoreError(f"{self.url}: no patch is in force, so there is nothing to take back")
        if patch is not None and ledger.facts["fingerprint"] != patch.fingerprint:
            raise StoreError(f"{self.url}: another patch is in force ({self._status(ledger)})")
        now = self._standing(ledger)
        if len(now.applied):
            self.write([ledger.ids[place] for place in now.applied], ledger.before[now.applied])
        self.refresh()
        left = self._status(ledger)
        if left.applied:
            raise StoreError(f"{self.url}: {left.applied} rows still carry the patch; run revert again")
        self.drop_ledger()
        self.settle()
        return left

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of a store's own library say where they come from and what to do."""
        try:
            yield
        except (NudgeError, OSError):
            raise
        except Exception as error:
            raise StoreError(f"{self.url}: {told(error)}; run the command again, it goes on from there") from error

    def status(self) -> Status:
        """What is in force."""
        self.refresh()
        ledger = self.read_ledger()
        return Status(None) if ledger is None else self._status(ledger)

    def original(self) -> Corpus:
        """The collection as it was before the patch in force: where tuning starts, always."""
        ledger = self.read_ledger()
        if ledger is None:
            return self
        applied, reader = self._standing(ledger).applied, Reader(self)
        ids = [ledger.ids[place] for place in applied]
        now = self.take(ids) if ids else ledger.after[:0]
        return Patched(reader, reader.locate(ids), now, ledger.before[applied])

    def _status(self, ledger: Ledger) -> Status:
        now = self._standing(ledger)
        return Status(
            ledger.facts,
            len(now.applied),
            len(now.original),
            tuple(ledger.ids[place] for place in now.changed.tolist()),
            tuple(ledger.ids[place] for place in now.gone.tolist()),
        )

    def _standing(self, ledger: Ledger) -> _Standing:
        known = set(self.ids)
        there = np.array([key in known for key in ledger.ids], dtype=np.bool_)
        here = np.flatnonzero(there)
        vectors = self.take([ledger.ids[place] for place in here]) if len(here) else ledger.before[:0]
        after = self._same(vectors, ledger.after[here])
        before = self._same(vectors, ledger.before[here]) & ~after
        return _Standing(here[after], here[before], here[~after & ~before], np.flatnonzero(~there))

    def _same(self, stored: Array, meant: Array) -> npt.NDArray[np.bool_]:
        meant = meant.astype(stored.dtype)
        far = np.abs(stored - meant).max(axis=1, initial=0)
        same: npt.NDArray[np.bool_] = far <= self.slack * np.abs(meant).max(axis=1, initial=0)
        return same

    def _check_rows(self, patch: Patch) -> None:
        """The collection must be the one the patch was made from."""
        if len(patch) and patch.before.shape[1] != self.dim:
            raise StoreError(f"{self.url} has {self.dim} dimensions, the patch has {patch.before.shape[1]}")
        seen = Counter(self.ids)
        gone = [key for key in patch.ids if key not in seen]
        if gone:
            raise StoreError(f"{self.url}: {len(gone)} documents of the patch are gone, for example {_named(gone)}")
        twice = [key for key in patch.ids if seen[key] > 1]
        if twice:
            raise StoreError(f"{self.url}: {len(twice)} ids stand there twice, for example {_named(twice)}")
        if len(patch) == 0:
            return
        other = np.flatnonzero(~self._same(self.take(patch.ids), patch.before))
        if len(other):
            names = _named([patch.ids[place] for place in other.tolist()])
            raise StoreError(
                f"{self.url}: {len(other)} of {len(patch)} documents have other vectors than the patch was made from, "
                f"for example {names}; tune again"
            )

    def _check_metric(self, patch: Patch) -> None:
        if patch.similarity == "dot" and self.metric in ("cosine", "l2"):
            raise StoreError(
                f"{self.url} compares by {self.metric}, and NUDGE-{patch.method} is right for inner product only: "
                "tune with --method N"
            )
        if patch.similarity == "cosine" and self.metric in ("dot", "l2") and len(patch):
            far = np.abs(lengths(patch.before) - 1).max()
            if far > _UNIT:
                raise StoreError(
                    f"{self.url} compares by {self.metric}, and NUDGE-{patch.method} is right there for unit vectors "
                    f"only (these are off by up to {far:.2g}): normalise the vectors, or tune with --method M for dot"
                )


@dataclass(frozen=True)
class _Standing:
    """Places in a ledger by what the store holds for them."""

    applied: npt.NDArray[np.int64]
    original: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    gone: npt.NDArray[np.int64]


def _facts(patch: Patch) -> dict[str, Any]:
    return {
        "fingerprint": patch.fingerprint,
        "method": patch.method,
        "similarity": patch.similarity,
        "gamma": patch.gamma,
        "metric": patch.metric,
        "rows": len(patch),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "nudgevec": nudgevec.__version__,
    }


def told(error: Exception) -> str:
    """The first line of an error, and its kind."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _named(keys: Sequence[Hashable]) -> str:
    return ", ".join(repr(key) for key in keys[:_NAMED])
