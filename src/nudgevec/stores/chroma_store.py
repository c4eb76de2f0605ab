"""Chroma: a collection in a folder (``chroma:path#docs``) or on a server (``chroma://host:8000#docs``).

Vectors are written in pieces, after the ledger: a collection beside this one, ``NAME-nudgevec``, that counts once its
facts are in. Chroma keeps float32 exactly for ip and l2; for cosine it keeps unit vectors, so numbers come back within
a millionth. A folder can be used by one process at a time; that is how Chroma is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.corpus import Array
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Ledger, Store
from nudgevec.stores.lock import lock_for, locked

_BATCH = 1000
_METRICS = {"cosine": "cosine", "ip": "dot", "l2": "l2"}


class ChromaStore(Store):
    """A collection of Chroma."""

    def __init__(self, address: Address, metric: str | None = None, tls: str = "no") -> None:
        try:
            import chromadb
        except ImportError:
            raise MissingExtraError("Chroma", "chroma") from None
        self.url, self.name = str(address), address.named("collection")
        self._asked_metric = metric
        self._missing = chromadb.errors.NotFoundError
        if address.host:
            key = os.environ.get("CHROMA_API_KEY")
            try:
                self.client: Any = chromadb.HttpClient(
                    address.host,
                    address.port or 8000,
                    ssl=tls == "yes",
                    headers={"x-chroma-token": key} if key else None,
                )
            except ValueError as error:
                raise StoreError(f"{self.url}: {str(error).splitlines()[0]}") from None
            self._lock = lock_for(self.url)
        else:
            if not (Path(address.path) / "chroma.sqlite3").is_file():
                raise StoreError(f"there is no Chroma folder at {address.path}")
            self.client = chromadb.PersistentClient(address.path)
            self._lock = Path(address.path) / f".{self.name}.nudgevec-lock"
        self._ends_with(self.client.close)
        self.refresh()

    def refresh(self) -> None:
        found = self._collection(self.name)
        if found is None:
            there = ", ".join(each.name for each in self.client.list_collections()) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        self.collection = found
        self.ids = self.collection.get(include=[])["ids"]
        settings = self.collection.configuration_json
        space = (settings.get("hnsw") or settings.get("spann") or {})["space"]
        self.metric = self._asked_metric or _METRICS[space]
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

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._taken(self.ids, _BATCH)

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from _fetched(self.collection, ids)

    def search(self, query: Array, count: int) -> list[Hashable]:
        found = self.collection.query(query_embeddings=query[None], n_results=count, include=[])
        return list(found["ids"][0])

    def write(self, ids: Sequence[Any], vectors: Array) -> None:
        for start in range(0, len(ids), _BATCH):
            piece = slice(start, start + _BATCH)
            self.collection.update(ids=list(ids[piece]), embeddings=vectors[piece])

    def alone(self) -> AbstractContextManager[None]:
        return locked(self._lock, self.url)

    def settle(self) -> None:
        """Chroma's index follows by itself."""

    @property
    def _ledger(self) -> str:
        return f"{self.name}-nudgevec"

    def read_ledger(self) -> Ledger | None:
        found = self._collection(self._ledger)
        if found is None or not (found.metadata or {}).get("nudgevec"):
            return None
        ids, parts = [], [np.empty((0, 2 * self.dim), np.float32)]
        for keys, vectors in _fetched(found, found.get(include=[])["ids"]):
            ids += keys
            parts.append(vectors)
        both = np.concatenate(parts)
        return Ledger(json.loads(found.metadata["nudgevec"]), ids, both[:, : self.dim], both[:, self.dim :])

    def make_ledger(self, ledger: Ledger) -> None:
        self.drop_ledger()
        made = self.client.create_collection(
            self._ledger, configuration={"hnsw": {"space": "ip"}}, embedding_function=None
        )
        both = np.concatenate([ledger.before, ledger.after], axis=1).astype(np.float32)
        for start in range(0, len(ledger.ids), _BATCH):
            piece = slice(start, start + _BATCH)
            made.add(ids=ledger.ids[piece], embeddings=both[piece])
        # From here on it counts.
        made.modify(metadata={"nudgevec": json.dumps(ledger.facts)})

    def drop_ledger(self) -> None:
        found = self._collection(self._ledger)
        if found is not None:
            found.modify(metadata={"nudgevec": ""})
            self.client.delete_collection(self._ledger)


def _fetched(collection: Any, ids: Sequence[Any]) -> Iterator[tuple[list[Hashable], Array]]:
    for start in range(0, len(ids), _BATCH):
        found = collection.get(ids=list(ids[start : start + _BATCH]), include=["embeddings"])
        if found["ids"]:
            yield found["ids"], np.asarray(found["embeddings"], np.float32)
