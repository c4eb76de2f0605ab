"""What a store class implements: its connection, reading and writing vectors, and its ledger."""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from nudgevec.arrays import Array, Mask, slices
from nudgevec.errors import MissingExtraError, NudgeWarning, OptionError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.ledger import Change, Ledger

SIMILARITIES = ("cosine", "dot", "l2")


class Backend(ABC):
    """A collection in a vector store: the part that differs from store to store.

    The constructor takes a connected client, the address of the collection, and the options of the collection by name,
    and does not read anything yet: ``open_store`` calls ``refresh`` after it.
    """

    client_package: ClassVar[str] = ""
    """Top-level package of the client objects that ``adopt_client`` takes; empty if there are none."""
    dim: int
    """Number of dimensions."""
    similarity: str | None = None
    """How the store compares vectors: "cosine", "dot", "l2", or None if this is not known."""
    embedder: str | None = None
    """Name of the embedder that made the vectors, if the collection records it."""
    columns: dict[str, Any]
    """What identifies the vectors within the collection, such as column names; a ledger is valid for these only."""
    unique_ids: bool = False
    """Whether the store itself sees to it that no id occurs twice."""
    batch_size: int = 2048
    """Rows that are read or written at a time."""
    tolerance: float = 0.0
    """Difference between a vector that is written and the one read back, relative to its largest number."""

    def __init__(self, client: Any, address: Address, similarity: str | None = None) -> None:
        self.client, self.address, self.url = client, address, str(address)
        self.columns = {}
        self._requested_similarity = similarity
        self._ids: list[Hashable] | None = None
        self._finalizer: Callable[[], object] | None = None
        self._warned = False

    @classmethod
    def resolve(cls, address: Address) -> Address:
        """Return the address of a store on this machine without a host, if the url may mean either."""
        return address

    @classmethod
    @abstractmethod
    def connect(cls, address: Address) -> Any:
        """Return a new client for an address. Subclasses add parameters for the options that this needs."""

    @staticmethod
    def disconnect(client: Any) -> None:
        """Close a client made by ``connect``."""
        client.close()

    @classmethod
    def accepts(cls, client: object) -> bool:
        """Whether an object comes from the client library of this store."""
        packages = {base.__module__.partition(".")[0] for base in type(client).__mro__}
        return bool(cls.client_package) and cls.client_package in packages

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        """Return the client to use, and the address of a collection of a client that the caller opened.

        A client that is not the given object is closed together with the store.
        """
        raise OptionError(f"{cls.__name__} is opened by its url only")

    @abstractmethod
    def read_metadata(self) -> None:
        """Read how the collection is defined now: set ``dim``, ``similarity``, ``columns`` and ``tolerance``."""

    @abstractmethod
    def read_ids(self) -> list[Hashable]:
        """Return all ids, in the order of ``blocks``."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Read all documents once.

        Yields
        ------
        (ids, vectors)
            A block of any size; blocks come in the order of ``ids``.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield the vectors of these documents, any number of them, in blocks of about ``batch_size``.

        Documents come in any order, and ids that do not exist are skipped.
        """

    @abstractmethod
    def search(self, query: Array, k: int) -> list[Hashable]:
        """Search with the store's own index.

        Parameters
        ----------
        query : array of shape (d,)
            A query vector.
        k : int
            Number of results.

        Returns
        -------
        list
            Ids of at most ``k`` documents, best first.
        """

    @abstractmethod
    def write(self, change: Change) -> None:
        """Replace old vectors by new ones; documents whose vector is not the old one are left as they are."""

    @abstractmethod
    def read_ledger(self) -> Ledger | None:
        """Return the ledger, or None if there is no complete one. Its vectors are read later, in batches."""

    @abstractmethod
    def create_ledger(self, ledger: Ledger) -> None:
        """Write the ledger atomically. Called under ``exclusive`` if there is none."""

    @abstractmethod
    def drop_ledger(self) -> None:
        """Remove the ledger."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from applying or reverting patches; raise StoreError if one is active."""

    def update_index(self) -> None:
        """Bring an index up to date that does not follow writes by itself."""
        return

    def refresh(self) -> None:
        """Discard what is cached, since others may have written."""
        self._ids = None
        self.read_metadata()

    @property
    def ids(self) -> Sequence[Hashable]:
        """The ids of all documents with a vector, in the order of ``blocks``.

        Returns
        -------
        sequence
            Strings or integers, read once and again after ``refresh``.
        """
        if self._ids is None:
            self._ids = self.read_ids()
        return self._ids

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Read the vectors of some documents.

        Parameters
        ----------
        ids : sequence
            Ids of the collection.

        Returns
        -------
        array of shape (len(ids), d)
            One row per id, in their order.

        Raises
        ------
        StoreError
            If a document does not exist or has no vector.
        """
        vectors = self.fetch_dict(ids)
        missing = [key for key in ids if key not in vectors]
        if missing:
            raise StoreError(f"{self.url} has no document {missing[0]!r}")
        return np.stack([vectors[key] for key in ids])

    def fetch_dict(self, ids: Sequence[Hashable]) -> dict[Hashable, Array]:
        """Return the vectors of these documents by id; ids that do not exist are skipped."""
        vectors: dict[Hashable, Array] = {}
        for keys, rows in self.fetch(ids):
            vectors.update(zip(keys, rows, strict=True))
        return vectors

    def take_batches(self, ids: Sequence[Hashable], size: int) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield these documents in this order, ``size`` at a time."""
        for batch in slices(len(ids), size):
            yield ids[batch], self.take(ids[batch])

    def positions_unchanged(self, ids: Sequence[Any], old: Array) -> list[int]:
        """Read these documents, and return the positions of the documents that have the old vectors."""
        current = self.fetch_dict(ids)
        positions = [position for position, key in enumerate(ids) if key in current]
        if not positions:
            return []
        equal = self.equal_rows(np.stack([current[ids[position]] for position in positions]), old[positions])
        return [position for position, is_equal in zip(positions, equal.tolist(), strict=True) if is_equal]

    def equal_rows(self, stored: Array, expected: Array) -> Mask:
        """Return which rows are equal up to the precision of the store."""
        expected = expected.astype(stored.dtype)
        difference = np.abs(stored - expected).max(axis=1, initial=0)
        equal: Mask = difference <= self.tolerance * np.abs(expected).max(axis=1, initial=0)
        return equal

    @property
    def owns_client(self) -> bool:
        """Whether the client is closed together with the store."""
        return self._finalizer is not None

    def own_client(self) -> None:
        """Close the client together with the store."""
        self._finalizer = weakref.finalize(self, self.disconnect, self.client)

    def close(self) -> None:
        """Close the connection, unless the caller opened it.

        A store is also closed at the end of a ``with`` block, and when it is no longer referenced.
        """
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resolve_similarity(self, own: str | None) -> str | None:
        """Return the similarity of the store, or the one given as an option if the store does not know its own."""
        requested = self._requested_similarity
        if requested not in (None, *SIMILARITIES):
            raise OptionError(f"{self.url}: unknown similarity {requested!r}: use one of {', '.join(SIMILARITIES)}")
        if requested and own and requested != own:
            raise OptionError(f"{self.url} uses {own} similarity, not {requested}: remove the option similarity")
        return requested or own

    def resolve_name(self, option: str, requested: str | None, names: Sequence[str]) -> str:
        """Return the column or vector to use: the requested one, or the only one."""
        if requested is None and len(names) == 1:
            return names[0]
        if requested is not None and requested in names:
            return requested
        raise StoreError(
            f"{self.url}: cannot choose the {option}: set {option}=NAME to one of: {', '.join(names) or '(none)'}"
        )

    def not_found(self, kind: str, name: str, names: Iterable[str]) -> StoreError:
        """Return the error for a collection that does not exist."""
        return StoreError(f"{self.url}: there is no {kind} {name!r}; {kind}s here: {', '.join(names) or 'none'}")

    def name_taken(self, kind: str, name: str) -> StoreError:
        """Return the error for a collection of others that has the name of a ledger."""
        return StoreError(
            f"{self.url}: the {kind} {name!r} has the name of nudgevec's ledger, and was not created by nudgevec"
        )

    def warn_without_vector(self, count: int) -> None:
        """Warn once that documents without a vector are skipped."""
        if count and not self._warned:
            self._warned = True
            message = f"{self.url}: {count} documents have no vector and are left out"
            warnings.warn(message, NudgeWarning, stacklevel=4)


def import_client(module: str, name: str, extra: str) -> Any:
    """Import the client library of a store."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(name, extra) from None


def wrong_client(expected: str, client: object) -> OptionError:
    """Return the error for a client of the right library and the wrong class."""
    kind = type(client)
    return OptionError(f"expected {expected}, not {kind.__module__}.{kind.__qualname__}")
