"""What all stores promise, and how: nothing half-done, nothing lost, nothing put on top of something else.

Beside the collection a store keeps a *ledger*: the rows of the patch that is in force with their old and new
vectors, and what is known of its run. It is written before the first vector and goes when the last one is back. So
whatever happens in between, the next command sees from the ledger and the vectors themselves how far it came, and
finishes the work or takes it back. Of two at once, one wins and the other is told (``alone``).
"""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, slices
from nudgevec.corpus import Corpus, Reader
from nudgevec.errors import NudgeError, NudgeWarning, OptionError, StoreError
from nudgevec.patch import Patch, Patched
from nudgevec.stores.compatibility import check_suits
from nudgevec.stores.ledger import Ledger, Standing, Status, facts_of, named

METRICS = ("cosine", "dot", "l2")


class Store(ABC):
    """A collection in a vector store, as a corpus that can be patched."""

    url: str
    metric: str | None
    """How the store compares vectors: "cosine", "dot", "l2", or None where it does not say."""
    dim: int
    place: dict[str, Any]
    """Which part of the collection this is about, such as the names of its columns: a ledger is for one place."""
    slack: float = 0.0
    """How far numbers that were written may be from those that are read back; 0 where float32 is kept exactly."""
    _ids: list[Hashable] | None = None
    _end: Callable[[], object] | None = None
    _told: bool = False

    @abstractmethod
    def look(self) -> None:
        """Look at the collection as it is now: how it is made, how it compares."""

    @abstractmethod
    def read_ids(self) -> list[Hashable]:
        """All ids, as ``blocks`` has them."""

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
    def write(self, ids: Sequence[Any], old: Array, new: Array) -> None:
        """Give those of these documents that have the old vectors the new ones, and leave everything else alone."""

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
    def alone(self) -> AbstractContextManager[None]:
        """Keep others from putting patches on or taking them back meanwhile; an error if somebody is at it."""

    def settle(self) -> None:
        """Let the index catch up with what was written, where it does not do so by itself."""
        return

    def refresh(self) -> None:
        """Look again: others may have written."""
        self._ids = None
        self.look()

    @property
    def ids(self) -> Sequence[Hashable]:
        """The ids of all documents."""
        if self._ids is None:
            self._ids = self.read_ids()
        return self._ids

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
        found = self.found(ids)
        missing = [key for key in ids if key not in found]
        if missing:
            raise StoreError(f"{self.url} has no document {missing[0]!r}")
        return np.stack([found[key] for key in ids])

    def found(self, ids: Sequence[Hashable]) -> dict[Hashable, Array]:
        """The vectors of those of these documents that are there."""
        vectors: dict[Hashable, Array] = {}
        for keys, rows in self.fetch(ids):
            vectors.update(zip(keys, rows, strict=True))
        return vectors

    def taken(self, ids: Sequence[Hashable], count: int) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """These documents in this order, so many at a time."""
        for part in slices(len(ids), count):
            yield ids[part], self.take(ids[part])

    def apply(self, patch: Patch) -> Status:
        """Put a patch on. What a run that died left behind is finished."""
        with self._explained(), self.alone():
            self.refresh()
            return self._apply(patch)

    def _apply(self, patch: Patch) -> Status:
        ledger = self.read_ledger()
        if ledger is not None:
            self.check_ledger(ledger)
            if ledger.facts["patch"] != patch.identity:
                raise StoreError(self._other(ledger) + "; take it back first (revert)")
        elif len(patch) == 0:
            return Status(None)
        else:
            check_suits(patch, self.url, self.metric)
            self._check_rows(patch)
            ledger = self._new_ledger(patch)
            self.make_ledger(ledger)
        before = self._standing(ledger)
        if len(before.original):
            self._write(ledger, before.original, ledger.before, ledger.after)
        self._settle()
        now = self._standing(ledger)
        if len(before.original) and not len(now.applied):
            raise StoreError(f"{self.url} does not keep vectors as they are written: take the patch back (revert)")
        return now.status(ledger)

    def _new_ledger(self, patch: Patch) -> Ledger:
        facts = {**facts_of(patch), "place": self.place, "documents": len(self.ids)}
        return Ledger(facts, list(patch.ids), patch.before, patch.after)

    def _carries(self, patch: Patch) -> bool:
        """Whether rows stand as this patch leaves them, and not as it found them."""
        if not len(patch) or patch.before.shape[1] != self.dim:
            return False
        return len(self._standing(self._new_ledger(patch), reverted=True).applied) > 0

    def verify(self, patch: Patch) -> Status:
        """Whether the patch is in force, row by row."""
        with self._explained():
            self.refresh()
            ledger = self.read_ledger()
            if ledger is None or ledger.facts["patch"] != patch.identity:
                raise StoreError(f"{self.url}: this patch is not in force")
            self.check_ledger(ledger)
            return self._standing(ledger).status(ledger)

    def revert(self, patch: Patch | None = None, *, force: bool = False) -> Status:
        """Take back the patch in force. Rows that others have changed or removed since are left alone, and listed.

        Where less than half of the rows are as the patch left or found them, something else is wrong, and nothing is
        done; with ``force`` what can be is taken back all the same, and the rest forgotten.
        """
        with self._explained(), self.alone():
            self.refresh()
            return self._revert(patch, force)

    def _revert(self, patch: Patch | None, force: bool) -> Status:
        ledger = self.read_ledger()
        if ledger is None and patch is not None and self._carries(patch):
            # Somebody removed the ledger; the run has all that was in it.
            ledger = self._new_ledger(patch)
        if ledger is None:
            raise StoreError(f"{self.url}: no patch is in force, so there is nothing to take back")
        if patch is not None and ledger.facts["patch"] != patch.identity:
            raise StoreError(self._other(ledger) + "; leave the run out to take that one back")
        self.check_ledger(ledger)
        now = self._standing(ledger)
        known = len(now.applied) + len(now.original)
        if not force and known < len(ledger.ids) / 2:
            raise StoreError(
                f"{self.url}: only {known:,} of the {len(ledger.ids):,} rows of the patch are as it left or found "
                "them; is this the right collection? Nothing was done, and the old vectors are kept; --force takes "
                "back what can be, and forgets the rest"
            )
        if len(now.applied):
            self._write(ledger, now.applied, ledger.after, ledger.before)
        left = self._standing(ledger, reverted=True)
        if len(left.applied):
            raise StoreError(f"{self.url}: {len(left.applied)} rows still carry the patch; run revert again")
        self.drop_ledger()
        self._settle()
        return left.status(ledger, in_force=False)

    def _write(self, ledger: Ledger, places: npt.NDArray[np.int64], old: Array, new: Array) -> None:
        self.write([ledger.ids[place] for place in places], old[places], new[places])
        # See what was written.
        self.refresh()

    def _settle(self) -> None:
        """An index that is behind still finds what is there, so this is no reason to fail."""
        try:
            self.settle()
        except Exception as error:
            message = f"{self.url}: the patch is in place, but the index could not be brought up to date: {told(error)}"
            warnings.warn(message, NudgeWarning, stacklevel=4)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of a store's own library say where they come from and what to do."""
        try:
            yield
        except (NudgeError, OSError):
            raise
        except Exception as error:
            raise StoreError(
                f"{self.url}: {told(error)} (nothing is lost: the next command goes on from there)"
            ) from error

    def status(self) -> Status:
        """What is in force."""
        with self._explained():
            self.refresh()
            ledger = self.read_ledger()
            if ledger is None:
                return Status(None)
            self.check_ledger(ledger)
            return self._standing(ledger).status(ledger)

    def original(self) -> Corpus:
        """The collection as it was before the patch in force: where tuning starts, always."""
        ledger = self.read_ledger()
        if ledger is None or ledger.facts["place"] != self.place:
            # No patch, or one on other vectors of the same collection.
            return self
        applied, reader = self._standing(ledger).applied, Reader(self)
        ids = [ledger.ids[place] for place in applied]
        now = self.take(ids) if ids else ledger.after[:0]
        return Patched(reader, reader.locate(ids), now, ledger.before[applied])

    def _other(self, ledger: Ledger) -> str:
        return f"{self.url}: another patch is in force ({self._standing(ledger).status(ledger)})"

    def _standing(self, ledger: Ledger, *, reverted: bool = False) -> Standing:
        """How the rows stand; one that is as near to both its vectors counts as applied, or as original if reverted."""
        found = self.found(ledger.ids)
        there = np.array([key in found for key in ledger.ids], dtype=np.bool_)
        here = np.flatnonzero(there)
        vectors = np.stack([found[ledger.ids[place]] for place in here]) if len(here) else ledger.before[:0]
        after, before = (self.same(vectors, meant[here]) for meant in (ledger.after, ledger.before))
        applied, original = (after & ~before, before) if reverted else (after, before & ~after)
        return Standing(here[applied], here[original], here[~after & ~before], np.flatnonzero(~there))

    def same(self, stored: Array, meant: Array) -> npt.NDArray[np.bool_]:
        """Which rows are what they are meant to be, as exactly as the store keeps them."""
        meant = meant.astype(stored.dtype)
        far = np.abs(stored - meant).max(axis=1, initial=0)
        alike: npt.NDArray[np.bool_] = far <= self.slack * np.abs(meant).max(axis=1, initial=0)
        return alike

    def check_ledger(self, ledger: Ledger) -> None:
        """A ledger must be about the same part of the collection."""
        for name, value in ledger.facts["place"].items():
            if self.place.get(name) != value:
                raise StoreError(
                    f"{self.url}: the patch in force is about {name} {value!r}, and this url about "
                    f"{name} {self.place.get(name)!r}: use the url it was put on with"
                )

    def _check_rows(self, patch: Patch) -> None:
        """The collection must be the one the patch was made from."""
        if patch.before.shape[1] != self.dim:
            raise StoreError(f"{self.url} has {self.dim} dimensions, the patch has {patch.before.shape[1]}")
        seen = Counter(self.ids)
        gone = [key for key in patch.ids if key not in seen]
        if gone:
            names = named(gone)
            raise StoreError(
                f"{self.url}: {len(gone)} documents of the patch are gone, for example {names}; tune again"
            )
        twice = [key for key in patch.ids if seen[key] > 1]
        if twice:
            raise StoreError(f"{self.url}: {len(twice)} ids stand there twice, for example {named(twice)}")
        now = self.take(patch.ids)
        # Rows that carry this very patch are fine too: its ledger was lost.
        other = np.flatnonzero(~self.same(now, patch.before) & ~self.same(now, patch.after))
        if len(other):
            names = named([patch.ids[place] for place in other.tolist()])
            raise StoreError(
                f"{self.url}: {len(other)} of {len(patch)} documents have other vectors than the patch was made from, "
                f"for example {names}; tune again"
            )

    def leave_out(self, count: int) -> None:
        """Documents that have no vector yet are no part of this; that is said once."""
        if count and not self._told:
            self._told = True
            warnings.warn(f"{self.url}: {count} documents have no vector and are left out", NudgeWarning, stacklevel=4)

    def agreed_metric(self, asked: str | None, own: str | None) -> str | None:
        """The metric of the store, or what the url says where the store does not; never one against the other."""
        if asked not in (None, *METRICS):
            raise OptionError(f"{self.url}: unknown metric {asked!r}: use one of {', '.join(METRICS)}")
        if asked and own and asked != own:
            raise OptionError(f"{self.url} compares by {own}, not by {asked}: leave metric={asked} out of the url")
        return asked or own


def told(error: Exception) -> str:
    """The first line of an error, and its kind."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
