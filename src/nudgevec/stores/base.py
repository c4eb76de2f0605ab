"""Applying and reverting patches, the same for all stores.

Beside the collection a store keeps a *ledger*: the rows of the applied patch with their old and new vectors, and its
metadata. The ledger is written before the first vector and removed after the last one is restored. If a process dies
in between, the next command reads from the ledger and the vectors how far it came, and completes or reverts the patch.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array, Ints
from nudgevec.corpus import Corpus, Reader
from nudgevec.errors import NudgeError, NudgeWarning, PatchError, StoreError
from nudgevec.patch import Patch, PatchedCorpus
from nudgevec.stores.backend import Backend
from nudgevec.stores.compatibility import check_similarity
from nudgevec.stores.ledger import Ledger, RowStates, Status
from nudgevec.stores.messages import error_text, example_ids


class Store(Backend):
    """A collection in a vector store: a corpus that can be patched. Made by ``open_store``.

    A store has the members of a corpus (``ids``, ``dim``, ``take``, ``blocks``), so tuners and ``evaluate`` accept it.
    It is a context manager.

    Parameters
    ----------
    client : object
        A connected client of the store's library.
    address : Address
        Where the collection is.
    similarity : str, optional
        How vectors are compared, if the store does not know it. Subclasses have more options.

    Attributes
    ----------
    url : str
        The address without password and options.
    similarity : {"cosine", "dot", "l2"} or None
        How the store compares vectors, if this is known.

    Examples
    --------
    >>> import tempfile, faiss
    >>> from nudgevec import NudgeN, open_store
    >>> index = faiss.IndexFlatIP(3)
    >>> index.add(np.eye(3, dtype=np.float32))
    >>> path = tempfile.mkdtemp() + "/docs.faiss"
    >>> faiss.write_index(index, path)
    >>> store = open_store(f"faiss:{path}")
    >>> query = np.array([[0.8, 0.6, 0.0]], dtype=np.float32)
    >>> patch = NudgeN(gamma=0.1).fit(store, train=(query, [[1]])).patch_
    >>> store.apply(patch).applied, store.verify(patch).applied
    (1, 1)
    >>> store.take([1]).round(2)
    array([[0.31, 0.95, 0.  ]], dtype=float32)
    >>> store.status().is_applied
    True
    >>> print(store.revert())
    reverted: 1 of 1 rows have their original vectors
    >>> store.take([1]), store.search(query[0], k=2)
    (array([[0., 1., 0.]], dtype=float32), [0, 1])
    >>> store.close()
    """

    def apply(self, patch: Patch) -> Status:
        """Write the new vectors of a patch.

        If a process died while it applied or reverted this patch, the rest is written. A second ``apply`` of the same
        patch changes nothing.

        Parameters
        ----------
        patch : Patch
            A patch that was tuned on this collection.

        Returns
        -------
        Status
            The state of the rows; without metadata if the patch is empty.

        Raises
        ------
        StoreError
            If another patch is applied, the patch does not match the collection or its similarity, or another process
            is applying or reverting a patch.
        """
        with self._library_errors(), self.exclusive():
            self.refresh()
            return self._apply(patch)

    def _apply(self, patch: Patch) -> Status:
        ledger = self.read_ledger()
        is_new = ledger is None
        if ledger is not None:
            self.check_ledger(ledger)
            if ledger.patch_identity != patch.identity:
                raise StoreError(self._describe_other(ledger) + "; revert it first")
        elif len(patch) == 0:
            return Status(None)
        else:
            check_similarity(patch, self.url, self.similarity)
            self._check_ids(patch)
            ledger = self._ledger_for(patch)
        before = self._row_states(ledger)
        if is_new:
            self._refuse_other_vectors(ledger, before)
            self.create_ledger(ledger)
        if len(before.original):
            self.write(ledger.change.subset(before.original))
            # Later reads must see what was written.
            self.refresh()
        self._update_index()
        after = self._row_states(ledger)
        if len(before.original) and not len(after.applied):
            raise StoreError(f"{self.url} returns other vectors than were written: revert the patch")
        return after.status(ledger)

    def verify(self, patch: Patch) -> Status:
        """Read all rows of an applied patch.

        Parameters
        ----------
        patch : Patch
            The patch that should be applied.

        Returns
        -------
        Status
            The state of the rows.

        Raises
        ------
        StoreError
            If this patch is not applied.
        """
        with self._library_errors():
            self.refresh()
            ledger = self.read_ledger()
            if ledger is None or ledger.patch_identity != patch.identity:
                raise StoreError(f"{self.url}: this patch is not applied")
            self.check_ledger(ledger)
            return self._row_states(ledger).status(ledger)

    def revert(self, patch: Patch | None = None, *, force: bool = False) -> Status:
        """Restore the original vectors of the applied patch.

        Rows that others have changed or removed are left as they are and listed in the status.

        Parameters
        ----------
        patch : Patch, optional
            The patch that should be applied; any by default. If the ledger was lost, the original vectors are taken
            from the patch.
        force : bool
            Revert even if less than half of the rows have their old or new vectors, or ids occur more than once, and
            drop the ledger.

        Returns
        -------
        Status
            The state of the rows.

        Raises
        ------
        StoreError
            If no patch or another one is applied, the rows look like those of another collection or ids of the patch
            occur more than once (see ``force``), or another process is applying or reverting a patch.
        """
        with self._library_errors(), self.exclusive():
            self.refresh()
            return self._revert(patch, force)

    def _revert(self, patch: Patch | None, force: bool) -> Status:
        ledger = self.read_ledger()
        if ledger is None and patch is not None and self._has_rows_of(patch):
            # The ledger was removed, and the patch holds the same vectors.
            ledger = self._ledger_for(patch)
        if ledger is None:
            raise StoreError(f"{self.url}: no patch is applied, so there is nothing to revert")
        if patch is not None and ledger.patch_identity != patch.identity:
            raise StoreError(self._describe_other(ledger) + "; revert without naming a patch or run to revert that one")
        self.check_ledger(ledger)
        if not force:
            self._refuse_repeated_ids(ledger)
        before = self._row_states(ledger)
        known = len(before.applied) + len(before.original)
        if not force and known < len(ledger.ids) / 2:
            raise StoreError(
                f"{self.url}: only {known:,} of the {len(ledger.ids):,} rows of the patch have their old or new "
                "vectors; is this the right collection? Nothing was changed, and the ledger is kept. With force "
                "(--force), these rows are reverted and the ledger is dropped"
            )
        if len(before.applied):
            self.write(ledger.change.reversed().subset(before.applied))
            self.refresh()
        after = self._row_states(ledger, reverted=True)
        if len(after.applied):
            raise StoreError(f"{self.url}: {len(after.applied)} rows still have their new vectors; revert again")
        if not force:
            # Others may have added documents since.
            self._refuse_repeated_ids(ledger)
        self.drop_ledger()
        self._update_index()
        return after.status(ledger, is_applied=False)

    def status(self) -> Status:
        """Read which patch is applied, and the state of its rows.

        Returns
        -------
        Status
            Without metadata if no patch is applied.
        """
        with self._library_errors():
            self.refresh()
            ledger = self.read_ledger()
            if ledger is None:
                return Status(None)
            self.check_ledger(ledger)
            return self._row_states(ledger).status(ledger)

    def original(self) -> Corpus:
        """Return the collection with its original vectors, the corpus to tune on.

        Returns
        -------
        Corpus
            The store itself if no patch is applied; otherwise a view of it, without a copy.
        """
        ledger = self.read_ledger()
        # A ledger may be about other vectors of the same collection.
        if ledger is None or ledger.columns != self.columns:
            return self
        applied, reader = ledger.change.subset(self._row_states(ledger).applied), Reader(self)

        def original_vectors(current: Array, positions: Ints) -> Array:
            try:
                before, after = applied.read(positions)
            except Exception as error:
                problem = self.address.hide_password(error_text(error))
                raise StoreError(f"{self.url}: the ledger is gone; was the patch reverted? ({problem})") from error
            if not self.equal_rows(current, after).all():
                raise PatchError(f"{self.url}: documents have changed since their original vectors were requested")
            return before

        return PatchedCorpus(reader, reader.locate(applied.ids), original_vectors)

    def _update_index(self) -> None:
        """Update the index; an index that lags behind still finds every document, so a failure is only a warning."""
        try:
            self.update_index()
        except Exception as error:
            message = f"{self.url}: the vectors are written, but the index could not be updated: {error_text(error)}"
            warnings.warn(message, NudgeWarning, stacklevel=4)

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Raise errors of a client library as StoreError."""
        try:
            yield
        except (NudgeError, OSError):
            raise
        except Exception as error:
            problem = self.address.hide_password(error_text(error))
            raise StoreError(f"{self.url}: {problem} (no vectors are lost: run the command again to go on)") from error

    def _ledger_for(self, patch: Patch) -> Ledger:
        return Ledger.for_patch(patch, self.columns, len(self.ids))

    def _has_rows_of(self, patch: Patch) -> bool:
        """Whether any row has its new vector and not its old one."""
        if not len(patch) or patch.before.shape[1] != self.dim:
            return False
        return len(self._row_states(self._ledger_for(patch), reverted=True).applied) > 0

    def _describe_other(self, ledger: Ledger) -> str:
        return f"{self.url}: another patch is already applied ({self._row_states(ledger).status(ledger)})"

    def _row_states(self, ledger: Ledger, *, reverted: bool = False) -> RowStates:
        """Compare the rows of a ledger with the store.

        A step below the store's precision makes old and new vectors equal: such rows count as applied, or as original
        if ``reverted``. Which row of an id is the one of the ledger is not known if the id occurs more than once: it
        counts as changed.
        """
        position_of = {key: position for position, key in enumerate(ledger.ids)}
        exists, is_old, is_new = (np.zeros(len(ledger.ids), np.bool_) for _ in range(3))
        with progress.bar("comparing vectors", len(ledger.ids)) as bar:
            for keys, vectors in self.fetch(ledger.ids):
                positions = np.array([position_of.get(key, -1) for key in keys], np.int64)
                positions, vectors = positions[positions >= 0], vectors[positions >= 0]
                if len(positions):
                    exists[positions] = True
                    old, new = ledger.change.read(positions)
                    is_old[positions], is_new[positions] = self.equal_rows(vectors, old), self.equal_rows(vectors, new)
                bar.update(len(keys))
        repeated = [position_of[key] for key in self._repeated_ids(ledger.ids)]
        is_old[repeated] = is_new[repeated] = False
        applied, original = (is_new & ~is_old, is_old) if reverted else (is_new, is_old & ~is_new)
        changed = exists & ~is_new & ~is_old
        return RowStates(*(np.flatnonzero(state) for state in (applied, original, changed, ~exists)))

    def _repeated_ids(self, ids: Sequence[Any]) -> list[Any]:
        """Return those of some ids that occur more than once in the store."""
        if self.unique_ids:
            return []
        occurrences = Counter(self.ids)
        return [key for key in ids if occurrences[key] > 1]

    def _refuse_repeated_ids(self, ledger: Ledger) -> None:
        repeated = self._repeated_ids(ledger.ids)
        if repeated:
            raise StoreError(
                f"{self.url}: {len(repeated)} ids of the patch occur more than once by now, for example "
                f"{example_ids(repeated)}, so the rows with the new vectors are unknown. These rows are left as they "
                "are, and the ledger is kept: remove the rows that were added, and revert again. With force (--force), "
                "the other rows are reverted and the ledger is dropped"
            )

    def check_ledger(self, ledger: Ledger) -> None:
        """Check that a ledger is about these vectors of the collection.

        Parameters
        ----------
        ledger : Ledger

        Raises
        ------
        StoreError
            If the patch was applied to other columns.
        """
        for name, value in ledger.columns.items():
            if self.columns.get(name) != value:
                raise StoreError(
                    f"{self.url}: a patch is applied to {name} {value!r}, and the store was opened with {name} "
                    f"{self.columns.get(name)!r}: open it with the same options"
                )

    def _check_ids(self, patch: Patch) -> None:
        """Raise StoreError if documents of the patch are missing or ambiguous, or have another number of dimensions."""
        if patch.before.shape[1] != self.dim:
            raise StoreError(f"{self.url} has {self.dim} dimensions, the patch has {patch.before.shape[1]}")
        known = set(self.ids)
        missing = [key for key in patch.ids if key not in known]
        if missing:
            raise StoreError(
                f"{self.url}: {len(missing)} documents of the patch are missing, for example {example_ids(missing)}; "
                "tune again"
            )
        repeated = self._repeated_ids(patch.ids)
        if repeated:
            raise StoreError(
                f"{self.url}: {len(repeated)} ids occur more than once, for example {example_ids(repeated)}"
            )

    def _refuse_other_vectors(self, ledger: Ledger, states: RowStates) -> None:
        """Raise StoreError if the patch was not made from these vectors.

        Rows with the new vectors of this patch are accepted too: its ledger was lost.
        """
        other = np.sort(np.concatenate([states.changed, states.missing]))
        if len(other):
            examples = example_ids([ledger.ids[position] for position in other.tolist()])
            raise StoreError(
                f"{self.url}: {len(other)} of {len(ledger.ids)} documents have other vectors than the patch was made "
                f"from, for example {examples}; tune again"
            )
