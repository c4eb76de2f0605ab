"""Chroma: a collection in a folder (``chroma:path#docs``) or on a server (``chroma://host:8000#docs``).

Vectors are written in batches, after the ledger: a collection ``NAME-nudgevec`` that is complete once its metadata has
the record of the patch. Chroma keeps float32 exactly for ip and l2, and within 2e-6 for cosine. Chroma allows one
process at a time to use a folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import OptionError, StoreError
from nudgevec.stores.address import Address, parse_flag
from nudgevec.stores.backend import import_client, wrong_client
from nudgevec.stores.ledger import Change, Ledger, in_order, join_pairs, split_pairs
from nudgevec.stores.messages import error_text
from nudgevec.stores.piecewise import IN_MEMORY, PiecewiseStore

_SIMILARITIES = {"cosine": "cosine", "ip": "dot", "l2": "l2"}
_LEDGER_MARK = {"made by": "nudgevec"}
"""Metadata by which a ledger is recognised; the record of the patch is under "facts"."""


class ChromaStore(PiecewiseStore):
    """A collection of Chroma."""

    client_package = "chromadb"
    unique_ids = True
    default_port = 8000
    batch_size = 1000

    def __init__(self, client: Any, address: Address, similarity: str | None = None) -> None:
        super().__init__(client, address, similarity)
        self._not_found = _library().errors.NotFoundError

    @classmethod
    def resolve(cls, address: Address) -> Address:
        """Take ``chroma://folder`` for a folder if it is one, and for a server otherwise."""
        if address.host and address.port is None and _is_folder(address.local_path):
            return replace(address, host="", path=address.local_path)
        return address

    @classmethod
    def connect(cls, address: Address, tls: str | bool = "no") -> Any:
        library = _library()
        address.require_collection()
        address.refuse_credentials("CHROMA_API_KEY")
        if not address.host:
            if not _is_folder(address.path):
                raise StoreError(f"there is no Chroma folder at {address.path}")
            return library.PersistentClient(address.path)
        key = os.environ.get("CHROMA_API_KEY")
        headers = {"x-chroma-token": key} if key else None
        port = address.port or cls.default_port
        try:
            return library.HttpClient(address.host, port, ssl=parse_flag("tls", tls), headers=headers)
        except ValueError as error:
            server = f"{address}: no Chroma server answers at {address.host}:{port} ({error_text(error)})"
            folder = "" if address.port else f", and there is no Chroma folder at {address.local_path}"
            raise StoreError(f"{server}{folder}") from None

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        library = _library()
        if isinstance(client, library.Collection):
            if collection not in (None, client.name):
                raise OptionError(f"collection={collection!r} contradicts the Chroma collection {client.name!r}")
            collection = client.name
            # The ledger needs a client; clients with the same settings share one connection.
            settings = client._client.get_settings()
            client = library.Client(settings, tenant=client.tenant, database=client.database)
        elif not isinstance(client, library.ClientAPI):
            raise wrong_client("a Chroma client or collection", client)
        settings = client.get_settings()
        if settings.chroma_server_host:
            host = settings.chroma_server_host.rpartition("://")[2]
            return client, Address("chroma", "", collection or "", {}, host, settings.chroma_server_http_port)
        path = os.path.abspath(settings.persist_directory) if settings.is_persistent else IN_MEMORY
        return client, Address("chroma", path, collection or "", {})

    def read_metadata(self) -> None:
        collection = self._find(self.name)
        if collection is None:
            names = [other.name for other in self.client.list_collections()]
            raise self.not_found("collection", self.name, names)
        self.collection = collection
        configuration = self.collection.configuration_json
        space = (configuration.get("hnsw") or configuration.get("spann") or {})["space"]
        self.similarity = self.resolve_similarity(_SIMILARITIES[space])
        self.tolerance = 2e-6 if space == "cosine" else 0.0
        first = self.collection.get(limit=1, include=["embeddings"])["embeddings"]
        if len(first) == 0:
            raise StoreError(f"{self.url} is empty")
        self.dim = len(first[0])

    def _find(self, name: str) -> Any:
        """Return a collection, or None if it does not exist."""
        try:
            return self.client.get_collection(name, embedding_function=None)
        except self._not_found:
            return None

    def read_ids(self) -> list[Hashable]:
        ids: list[Hashable] = self.collection.get(include=[])["ids"]
        return ids

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._fetch_from(self.collection, ids)

    def _fetch_from(self, collection: Any, ids: Sequence[Any]) -> Iterator[tuple[list[Hashable], Array]]:
        for batch in slices(len(ids), self.batch_size):
            result = collection.get(ids=list(ids[batch]), include=["embeddings"])
            if result["ids"]:
                yield result["ids"], np.asarray(result["embeddings"], np.float32)

    def search(self, query: Array, k: int) -> list[Hashable]:
        result = self.collection.query(query_embeddings=query[None], n_results=k, include=[])
        return list(result["ids"][0])

    def update(self, ids: Sequence[Any], vectors: Array) -> None:
        self.collection.update(ids=list(ids), embeddings=vectors)

    @property
    def _ledger(self) -> str:
        return f"{self.name}-nudgevec"

    def _find_ledger(self) -> Any:
        """Return the collection of the ledger, complete or not; raises if a collection of others has its name."""
        collection = self._find(self._ledger)
        if collection is not None and _LEDGER_MARK.items() - (collection.metadata or {}).items():
            raise self.name_taken("collection", self._ledger)
        return collection

    def read_ledger(self) -> Ledger | None:
        collection = self._find_ledger()
        if collection is None or not collection.metadata.get("facts"):
            return None
        ids: list[Any] = collection.get(include=[])["ids"]

        def read(positions: Ints) -> tuple[Array, Array]:
            keys = [ids[position] for position in positions.tolist()]
            return split_pairs(in_order(keys, self._fetch_from(collection, keys)))

        return Ledger(json.loads(collection.metadata["facts"]), Change(ids, read))

    def create_ledger(self, ledger: Ledger) -> None:
        # Removes an incomplete one.
        self.drop_ledger()
        space = {"hnsw": {"space": "ip"}}
        created = self.client.create_collection(
            self._ledger, configuration=space, metadata=_LEDGER_MARK, embedding_function=None
        )
        for ids, old, new in ledger.change.batches(self.batch_size, "writing the ledger"):
            created.add(ids=ids, embeddings=join_pairs(old, new))
        # The metadata makes the ledger complete.
        created.modify(metadata={**_LEDGER_MARK, "facts": json.dumps(ledger.metadata)})

    def drop_ledger(self) -> None:
        collection = self._find_ledger()
        if collection is not None:
            collection.modify(metadata=_LEDGER_MARK)
            self.client.delete_collection(collection.name)


def _is_folder(path: str) -> bool:
    return (Path(path) / "chroma.sqlite3").is_file()


def _library() -> Any:
    return import_client("chromadb", "Chroma", "chroma")
