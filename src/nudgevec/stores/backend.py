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

    The constructor does not read anything yet: ``open_store`` calls ``refresh`` after it.

    Parameters
    ----------
    client : object
        A connected client of the store's library.
    address : Address
        Where the collection is.
    similarity : str, optional
        How vectors are compared, if the store does not know it. Subclasses add the other options of the collection.
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
        """Return the address of a store on this machine without a host, if the url may mean either.

        Parameters
        ----------
        address : Address
            The address as it is in the url.

        Returns
        -------
        Address
            By default the same.
        """
        return address

    @classmethod
    @abstractmethod
    def connect(cls, address: Address) -> Any:
        """Connect to a store. Subclasses add parameters for the options of the url that this needs.

        Parameters
        ----------
        address : Address
            Where the store is.

        Returns
        -------
        object
            A new client.

        Raises
        ------
        StoreError
            If the store cannot be reached. ``open_store`` turns errors of the client library into this one too.
        """

    @staticmethod
    def disconnect(client: Any) -> None:
        """Close a client.

        Parameters
        ----------
        client : object
            A client made by ``connect``.
        """
        client.close()

    @classmethod
    def accepts(cls, client: object) -> bool:
        """Whether an object comes from the client library of this store.

        Parameters
        ----------
        client : object
            Any object that is passed to ``open_store``.

        Returns
        -------
        bool
            By default, whether its class or a base class of it is from ``client_package``.
        """
        packages = {base.__module__.partition(".")[0] for base in type(client).__mro__}
        return bool(cls.client_package) and cls.client_package in packages

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        """Return the client to use, and the address of a collection of a client that the caller opened.

        Parameters
        ----------
        client : object
            A client that the caller opened, of a class that ``accepts`` takes.
        collection : str or None
            The name of the collection, unless the client object names it.

        Returns
        -------
        (object, Address)
            A client that is not the given object is closed together with the store.

        Raises
        ------
        OptionError
            If the object cannot be used as a client.
        """
        raise OptionError(f"{cls.__name__} is opened by its url only")

    @abstractmethod
    def read_metadata(self) -> None:
        """Read how the collection is defined now: set ``dim``, ``similarity``, ``columns`` and ``tolerance``.

        Raises
        ------
        StoreError
            If the collection does not exist, or cannot be used.
        OptionError
            If an option contradicts the collection.
        """

    @abstractmethod
    def read_ids(self) -> list[Hashable]:
        """Read the ids of all documents with a vector.

        Returns
        -------
        list
            Strings or integers, in the order of ``blocks``.
        """

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Read all documents once.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block of any size; blocks come in the order of the attribute ``ids``.
        vectors : array of shape (rows, d)
            Their vectors.
        """

    @abstractmethod
    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Read the vectors of some documents, any number of them, in blocks of about ``batch_size``.

        Parameters
        ----------
        ids : sequence
            Ids, of which some may not exist.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block that exist, in any order.
        vectors : array of shape (rows, d)
            Their vectors.
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
        """Replace old vectors by new ones.

        Documents that do not exist, or whose vector is not the old one, are left as they are.

        Parameters
        ----------
        change : Change
            Ids of documents with their vectors before and after, which are read in batches.
        """

    @abstractmethod
    def read_ledger(self) -> Ledger | None:
        """Read the ledger; its vectors are read later, in batches.

        Returns
        -------
        Ledger or None
            None if there is no complete one.
        """

    @abstractmethod
    def create_ledger(self, ledger: Ledger) -> None:
        """Write the ledger atomically. Called under ``exclusive`` if there is none.

        Parameters
        ----------
        ledger : Ledger
            What ``read_ledger`` is to return from now on.
        """

    @abstractmethod
    def drop_ledger(self) -> None:
        """Remove the ledger."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other processes from applying or reverting patches.

        Returns
        -------
        context manager
            Entering it raises StoreError if another process applies or reverts a patch.
        """

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
        """Read the vectors of some documents by id.

        Parameters
        ----------
        ids : sequence
            Ids, of which some may not exist.

        Returns
        -------
        dict of id to array of shape (d,)
            Without the ids that do not exist.
        """
        vectors: dict[Hashable, Array] = {}
        for keys, rows in self.fetch(ids):
            vectors.update(zip(keys, rows, strict=True))
        return vectors

    def take_batches(self, ids: Sequence[Hashable], size: int) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Read some documents in their order, for stores that have no faster way to read all.

        Parameters
        ----------
        ids : sequence
            Ids of the collection.
        size : int
            How many to read at a time.

        Yields
        ------
        ids : sequence
            The next ids.
        vectors : array of shape (rows, d)
            Their vectors.
        """
        for batch in slices(len(ids), size):
            yield ids[batch], self.take(ids[batch])

    def positions_unchanged(self, ids: Sequence[Any], old: Array) -> list[int]:
        """Read some documents, and return which of them have the old vectors.

        Parameters
        ----------
        ids : sequence
            Ids, of which some may not exist.
        old : array of shape (len(ids), d)
            The vectors that they are expected to have.

        Returns
        -------
        list of int
            Positions in ``ids``.
        """
        current = self.fetch_dict(ids)
        positions = [position for position, key in enumerate(ids) if key in current]
        if not positions:
            return []
        equal = self.equal_rows(np.stack([current[ids[position]] for position in positions]), old[positions])
        return [position for position, is_equal in zip(positions, equal.tolist(), strict=True) if is_equal]

    def equal_rows(self, stored: Array, expected: Array) -> Mask:
        """Return which rows are equal up to the precision of the store (``tolerance``).

        Parameters
        ----------
        stored : array of shape (n, d)
            Vectors that were read from the store.
        expected : array of shape (n, d)
            Vectors to compare them with.

        Returns
        -------
        array of bool, shape (n,)
        """
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
        """Return the similarity of the store, or the one given as an option if the store does not know its own.

        Parameters
        ----------
        own : str or None
            The similarity that the collection states.

        Returns
        -------
        {"cosine", "dot", "l2"} or None

        Raises
        ------
        OptionError
            If the option contradicts the collection, or is no similarity.
        """
        requested = self._requested_similarity
        if requested not in (None, *SIMILARITIES):
            raise OptionError(f"{self.url}: unknown similarity {requested!r}: use one of {', '.join(SIMILARITIES)}")
        if requested and own and requested != own:
            raise OptionError(f"{self.url} uses {own} similarity, not {requested}: remove the option similarity")
        return requested or own

    def resolve_name(self, option: str, requested: str | None, names: Sequence[str]) -> str:
        """Return the column or vector to use: the requested one, or the only one.

        Parameters
        ----------
        option : str
            The option that names it, for the message.
        requested : str or None
            The value of the option.
        names : sequence of str
            What there is to choose from.

        Returns
        -------
        str

        Raises
        ------
        StoreError
            If the requested one does not exist, or none is requested and there is not exactly one.
        """
        if requested is None and len(names) == 1:
            return names[0]
        if requested is not None and requested in names:
            return requested
        raise StoreError(
            f"{self.url}: cannot choose the {option}: set {option}=NAME to one of: {', '.join(names) or '(none)'}"
        )

    def not_found(self, kind: str, name: str, names: Iterable[str]) -> StoreError:
        """Return the error for a collection that does not exist.

        Parameters
        ----------
        kind : str
            What the store calls a collection, for example "table".
        name : str
            The one that does not exist.
        names : iterable of str
            Those that do.

        Returns
        -------
        StoreError
        """
        return StoreError(f"{self.url}: there is no {kind} {name!r}; {kind}s here: {', '.join(names) or 'none'}")

    def name_taken(self, kind: str, name: str) -> StoreError:
        """Return the error for a collection of others that has the name of a ledger.

        Parameters
        ----------
        kind : str
            What the store calls a collection, for example "table".
        name : str
            The name of the ledger.

        Returns
        -------
        StoreError
        """
        return StoreError(
            f"{self.url}: the {kind} {name!r} has the name of nudgevec's ledger, and was not created by nudgevec"
        )

    def warn_without_vector(self, count: int) -> None:
        """Warn once that documents without a vector are skipped.

        Parameters
        ----------
        count : int
            How many there are; with 0 there is no warning.
        """
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
