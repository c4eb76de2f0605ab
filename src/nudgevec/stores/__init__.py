"""Vector stores: read them as a corpus, put a patch on, take it back. One file per store, found by ``open_store``."""

from __future__ import annotations

import inspect
from importlib import import_module

from nudgevec.errors import NudgeError, OptionError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store, told
from nudgevec.stores.ledger import Status
from nudgevec.stores.recall import recall

__all__ = ["SCHEMES", "Address", "Status", "Store", "is_store", "open_store", "recall", "told"]

_STORES = {
    "lancedb": "lancedb_store.LanceStore",
    "postgresql": "pgvector_store.PgStore",
    "postgres": "pgvector_store.PgStore",
    "qdrant": "qdrant_store.QdrantStore",
    "chroma": "chroma_store.ChromaStore",
    "milvus": "milvus_store.MilvusStore",
    "faiss": "faiss_store.FaissStore",
}
SCHEMES = tuple(_STORES)


def is_store(text: str) -> bool:
    """True for something that looks like the url of a store, known or not."""
    scheme, colon, rest = text.partition(":")
    known = scheme.lower() in SCHEMES or rest.startswith("//")
    # Where there is something like a password, it is no path to be looked for and repeated.
    return bool(colon) and (known or "@" in rest.partition("/")[0])


def open_store(url: str) -> Store:
    """The store at this url, for example ``lancedb:///data/db#docs`` or ``postgresql://me@host/db#docs``.

    The collection comes after the ``#``. Names that differ from the usual ones are options of the url:
    ``lancedb:///data/db?id=key&vector=embedding&metric=dot#docs``.
    """
    address = Address.parse(url)
    if address.scheme not in _STORES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise OptionError(f"unknown store {address}: urls begin with one of {known}")
    module, _, name = _STORES[address.scheme].partition(".")
    kind = getattr(import_module(f"nudgevec.stores.{module}"), name)
    parameters = inspect.signature(kind).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    odd = [name for name in address.options if name not in names]
    if odd and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        raise OptionError(f"{address}: unknown option {odd[0]!r}; this store takes {', '.join(names)}")
    try:
        store: Store = kind(address, **address.options)
    except NudgeError:
        raise
    except Exception as error:
        raise StoreError(f"{address} cannot be opened: {address.hidden(told(error))}") from error
    return store
