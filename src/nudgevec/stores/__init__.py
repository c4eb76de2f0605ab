"""Vector stores: read a collection as a corpus, apply a patch to it, revert it. ``open_store`` opens one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nudgevec.errors import NudgeError, OptionError, StoreError
from nudgevec.registry import Registry
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store
from nudgevec.stores.index_recall import evaluate_index, recall
from nudgevec.stores.ledger import Change, Ledger, Status
from nudgevec.stores.messages import error_text

__all__ = [
    "SCHEMES",
    "STORES",
    "Address",
    "Change",
    "Ledger",
    "Status",
    "Store",
    "error_text",
    "evaluate_index",
    "is_store",
    "open_store",
    "recall",
]

STORES: Registry[type[Store]] = Registry(
    "store",
    {
        "lancedb": "nudgevec.stores.lancedb_store:LanceStore",
        "postgresql": "nudgevec.stores.pgvector_store:PgStore",
        "postgres": "nudgevec.stores.pgvector_store:PgStore",
        "qdrant": "nudgevec.stores.qdrant_store:QdrantStore",
        "chroma": "nudgevec.stores.chroma_store:ChromaStore",
        "milvus": "nudgevec.stores.milvus_store:MilvusStore",
        "faiss": "nudgevec.stores.faiss_store:FaissStore",
    },
)
"""Store classes by url scheme; packages add theirs by entry points in the group ``nudgevec.stores``."""
SCHEMES = STORES.keys()
"""The schemes of store urls."""


def is_store(text: str) -> bool:
    """Whether a text looks like the url of a store, registered or not."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        return False
    # A text with an @ may hold a password, and must not be reported as a path that does not exist.
    return rest.startswith("//") or "@" in rest.partition("/")[0] or scheme.lower() in SCHEMES


def open_store(store: Any, collection: str | None = None, **options: Any) -> Store:
    """Open a collection in a vector store, by its url or with a client that is already connected.

    Parameters
    ----------
    store : str or client object
        A url such as ``lancedb:///data/db#docs`` or ``postgresql://me@host/db#docs``, with the collection after the #;
        or a LanceDB table or connection, a ``psycopg.Connection``, a ``QdrantClient``, a Chroma client or collection,
        or a ``MilvusClient``. A client stays open when the store is closed.
    collection : str, optional
        The table or collection, unless the url or the client object names it.
    **options
        Options of the store, such as ``id``, ``vector`` and ``similarity``; they can also be in the query of a url:
        ``lancedb:db?id=key&similarity=dot#docs``.

    Returns
    -------
    Store
        A corpus that can be patched, and a context manager.

    Raises
    ------
    OptionError
        If the url is malformed, no registered store handles it or the client, or an option is unknown.
    StoreError
        If the collection cannot be opened or used.
    MissingExtraError
        If the client library is not installed.

    Examples
    --------
    >>> import lancedb, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> table = lancedb.connect(folder).create_table("docs", [{"id": "a", "vector": [1.0, 0.0]}])
    >>> with open_store(f"lancedb:{folder}#docs") as store:
    ...     store.take(["a"])
    array([[1., 0.]], dtype=float32)
    >>> open_store(table, similarity="dot").similarity
    'dot'
    """
    if isinstance(store, str):
        return _open_url(Address.parse(store).updated(collection, options))
    return _open_client(store, collection, options)


def _open_url(address: Address) -> Store:
    if address.scheme not in STORES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        if not address.scheme:
            raise OptionError(f"{address} has no scheme: write lancedb:{address}, or another of {known}")
        raise OptionError(f"unknown store {address}: urls begin with one of {known}")
    kind = STORES[address.scheme]
    address = kind.resolve(address)
    store_names, _ = _option_names(kind, skip=2)
    connection_names, takes_others = _option_names(kind.connect, skip=1)
    if not takes_others:
        _check_names(address.options, [*store_names, *connection_names], str(address))
    store_options = {name: value for name, value in address.options.items() if name in store_names}
    connection_options = {name: value for name, value in address.options.items() if name not in store_names}
    with _library_errors(address):
        return _create(kind, kind.connect(address, **connection_options), address, store_options, owned=True)


def _open_client(client: Any, collection: str | None, options: dict[str, Any]) -> Store:
    name = f"{type(client).__module__}.{type(client).__qualname__}"
    kind = next((kind for kind in STORES.values() if kind.accepts(client)), None)
    if kind is None:
        raise OptionError(f"expected a store url or a client object, not {name}; see help(open_store)")
    _check_names(options, _option_names(kind, skip=2)[0], name)
    adopted, address = kind.adopt_client(client, collection)
    with _library_errors(address):
        return _create(kind, adopted, address, options, owned=adopted is not client)


def _create(kind: type[Store], client: Any, address: Address, options: dict[str, Any], *, owned: bool) -> Store:
    """Return a store that has read the metadata of its collection; on failure, close the client if it is ours."""
    try:
        store = kind(client, address, **options)
        store.refresh()
    except BaseException:
        if owned:
            kind.disconnect(client)
        raise
    if owned:
        store.own_client()
    return store


@contextmanager
def _library_errors(address: Address) -> Iterator[None]:
    """Raise errors of a client library as StoreError."""
    try:
        yield
    except NudgeError:
        raise
    except Exception as error:
        raise StoreError(f"{address} cannot be opened: {address.hide_password(error_text(error))}") from error


def _option_names(function: Callable[..., Any], *, skip: int) -> tuple[list[str], bool]:
    """Return the names of the parameters after the first ones, and whether there can be others."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return names, len(names) < len(parameters)


def _check_names(options: dict[str, Any], names: list[str], where: str) -> None:
    unknown = [name for name in options if name not in names]
    if unknown:
        raise OptionError(f"{where}: unknown option {unknown[0]!r}; the options of this store are {', '.join(names)}")
