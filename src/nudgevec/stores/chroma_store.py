"""Chroma: a collection in a folder (``chroma:path#docs``) or on a server (``chroma://host:8000#docs``).

Vectors are written in pieces, after the ledger: a collection beside this one, ``NAME-nudgevec``, that counts once its
facts are in. Chroma keeps float32 exactly for ip and l2; for cosine numbers come back within a millionth or two. A
folder can be used by one process at a time; that is how Chroma is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, slices
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import told
from nudgevec.stores.ledger import Ledger
from nudgevec.stores.piecewise import PiecewiseStore

_METRICS = {"cosine": "cosine", "ip": "dot", "l2": "l2"}
_OURS = {"made by": "nudgevec"}


class ChromaStore(PiecewiseStore):
    """A collection of Chroma."""

    piece = 1000

    def __init__(self, address: Address, metric: str | None = None, tls: str = "no") -> None:
        try:
            import chromadb
        except ImportError:
            raise MissingExtraError("Chroma", "chroma") from None
        self.url, self.name = str(address), address.named("collection")
        self.guard(address, "CHROMA_API_KEY")
        self._asked_metric, self.place = metric, {}
        self._missing = chromadb.errors.NotFoundError
        if address.host:
            key = os.environ.get("CHROMA_API_KEY")
            headers = {"x-chroma-token": key} if key else None
            port = address.port or 8000
            try:
                self.client: Any = chromadb.HttpClient(address.host, port, ssl=tls == "yes", headers=headers)
            except ValueError as error:
                raise StoreError(f"{self.url}: {told(error)}") from None
        else:
            if not (Path(address.path) / "chroma.sqlite3").is_file():
                raise StoreError(f"there is no Chroma folder at {address.path}")
            self.client = chromadb.PersistentClient(address.path)
        self._ends_with(self.client.close)
        self.refresh()

    def look(self) -> None:
        found = self._collection(self.name)
        if found is None:
            there = ", ".join(each.name for each in self.client.list_collections()) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        self.collection = found
        settings = self.collection.configuration_json
        space = (settings.get("hnsw") or settings.get("spann") or {})["space"]
        self.metric = self.agreed_metric(self._asked_metric, _METRICS[space])
        self.slack = 2e-6 if space == "cosine" else 0.0
        first = self.collection.get(limit=1, include=["embeddings"])["embeddings"]
        if len(first) == 0:
            raise StoreError(f"{self.url} is empty")
        self.dim = len(first[0])

    def _collection(self, name: str) -> Any:
        try:
            return self.client.get_collection(name, embedding_function=None)
        except self._missing:
            return None

    def read_ids(self) -> list[Hashable]:
        ids: list[Hashable] = self.collection.get(include=[])["ids"]
        return ids

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._fetched(self.collection, ids)

    def _fetched(self, collection: Any, ids: Sequence[Any]) -> Iterator[tuple[list[Hashable], Array]]:
        for part in slices(len(ids), self.piece):
            found = collection.get(ids=list(ids[part]), include=["embeddings"])
            if found["ids"]:
                yield found["ids"], np.asarray(found["embeddings"], np.float32)

    def search(self, query: Array, count: int) -> list[Hashable]:
        found = self.collection.query(query_embeddings=query[None], n_results=count, include=[])
        return list(found["ids"][0])

    def put(self, ids: Sequence[Any], vectors: Array) -> None:
        self.collection.update(ids=list(ids), embeddings=vectors)

    def _ledger(self) -> Any:
        """The collection of the ledger, complete or not; an error where somebody else has one of this name."""
        found = self._collection(f"{self.name}-nudgevec")
        if found is not None and _OURS.items() - (found.metadata or {}).items():
            raise StoreError(f"{self.url}: the collection {found.name!r} is in the way, and nudgevec did not make it")
        return found

    def read_ledger(self) -> Ledger | None:
        found = self._ledger()
        if found is None or not found.metadata.get("facts"):
            return None
        ids: list[Any] = []
        parts = [np.empty((0, 2 * self.dim), np.float32)]
        for keys, vectors in self._fetched(found, found.get(include=[])["ids"]):
            ids += keys
            parts.append(vectors)
        return Ledger.split(json.loads(found.metadata["facts"]), ids, np.concatenate(parts))

    def make_ledger(self, ledger: Ledger) -> None:
        self.drop_ledger()
        made = self.client.create_collection(
            f"{self.name}-nudgevec", configuration={"hnsw": {"space": "ip"}}, metadata=_OURS, embedding_function=None
        )
        both = ledger.both
        for part in slices(len(both), self.piece):
            made.add(ids=ledger.ids[part], embeddings=both[part])
        # From here on it counts.
        made.modify(metadata={**_OURS, "facts": json.dumps(ledger.facts)})

    def drop_ledger(self) -> None:
        found = self._ledger()
        if found is not None:
            found.modify(metadata=_OURS)
            self.client.delete_collection(found.name)
