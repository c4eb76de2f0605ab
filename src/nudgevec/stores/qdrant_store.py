"""Qdrant: a collection in a folder (``qdrant:path#docs``) or on a server (``qdrant://host:6333#docs``).

Documents are named by their point ids, or by a field of the payload (``?id=field``). Vectors are written in pieces,
after the ledger: a collection beside this one, ``NAME__nudgevec``, that counts once the point with its facts is in.
Qdrant keeps float32 exactly, but for cosine it makes vectors unit vectors, so numbers come back within a millionth.
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

_BATCH = 500
_METRICS = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}
_FACTS = "6e756467-6576-4563-8000-000000000000"
"""The point of a ledger that holds the facts."""


class QdrantStore(Store):
    """A collection of Qdrant."""

    def __init__(
        self,
        address: Address,
        id: str | None = None,
        vector: str | None = None,
        metric: str | None = None,
        tls: str = "no",
    ) -> None:
        try:
            import qdrant_client
        except ImportError:
            raise MissingExtraError("Qdrant", "qdrant") from None
        self.models: Any = qdrant_client.models
        self.url, self.name = str(address), address.named("collection")
        self.id_field, self.vector_name, self._asked_metric = id, vector, metric
        if address.host:
            self.client: Any = qdrant_client.QdrantClient(
                host=address.host,
                port=address.port or 6333,
                https=tls == "yes",
                api_key=os.environ.get("QDRANT_API_KEY"),
                check_compatibility=False,
            )
            self._lock = lock_for(self.url)
        else:
            if not (Path(address.path) / "meta.json").is_file():
                raise StoreError(f"there is no Qdrant folder at {address.path}")
            try:
                self.client = qdrant_client.QdrantClient(path=address.path)
            except RuntimeError:
                raise StoreError(
                    f"{self.url}: somebody else has this folder open, and Qdrant lets in only one"
                ) from None
            self._lock = Path(address.path) / f".{self.name}.nudgevec-lock"
        self._ends_with(self.client.close)
        self.refresh()

    def refresh(self) -> None:
        if not self.client.collection_exists(self.name):
            there = ", ".join(each.name for each in self.client.get_collections().collections) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        kind = self._vectors()
        if (
            kind.multivector_config is not None
            or str(kind.datatype or "float32").rpartition(".")[2].lower() != "float32"
        ):
            raise StoreError(f"{self.url} does not keep one float32 vector per document")
        if kind.distance.value not in _METRICS:
            raise StoreError(f"{self.url} compares by {kind.distance.value}; cosine, dot and Euclid are understood")
        self.dim = int(kind.size)
        self.metric = self._asked_metric or _METRICS[kind.distance.value]
        self.slack = 2e-6 if kind.distance.value == "Cosine" else 0.0
        self._point: dict[Hashable, Any] = {}
        self.ids = []
        for point in self._scrolled(self.name, with_payload=[self.id_field] if self.id_field else False):
            key = self._key(point)
            self.ids.append(key)
            self._point[key] = point.id

    def _vectors(self) -> Any:
        """How the vectors are kept, of the name that was asked for or the only one."""
        kinds = self.client.get_collection(self.name).config.params.vectors
        if not isinstance(kinds, dict):
            if self.vector_name:
                raise StoreError(f"{self.url} has no vector {self.vector_name!r}; it has one, without a name")
            return kinds
        named = self.vector_name or (next(iter(kinds)) if len(kinds) == 1 else None)
        if named not in kinds:
            raise StoreError(f"{self.url}: which vector? say ?vector=NAME ({', '.join(kinds) or 'there is none'})")
        self.vector_name = named
        return kinds[named]

    def _key(self, point: Any) -> Hashable:
        if self.id_field is None:
            key: Hashable = point.id
            return key
        if (point.payload or {}).get(self.id_field) is None:
            raise StoreError(f"{self.url}: point {point.id!r} has no field {self.id_field!r}")
        field: Hashable = point.payload[self.id_field]
        return field

    def _scrolled(self, name: str, **options: Any) -> Iterator[Any]:
        place = None
        while True:
            points, place = self.client.scroll(name, limit=_BATCH, offset=place, **options)
            yield from points
            if place is None:
                return

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._taken(self.ids, _BATCH)

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        shown = [self.id_field] if self.id_field else False
        wanted = [self._point[key] for key in ids if key in self._point]
        for start in range(0, len(wanted), _BATCH):
            piece = wanted[start : start + _BATCH]
            named = [self.vector_name] if self.vector_name else True
            points = self.client.retrieve(self.name, piece, with_payload=shown, with_vectors=named)
            if points:
                yield [self._key(point) for point in points], np.array(list(map(self._vector, points)), np.float32)

    def _vector(self, point: Any) -> list[float]:
        vector = (point.vector or {}).get(self.vector_name) if self.vector_name else point.vector
        if not vector:
            raise StoreError(f"{self.url}: point {point.id!r} has no vector")
        numbers: list[float] = vector
        return numbers

    def search(self, query: Array, count: int) -> list[Hashable]:
        shown = [self.id_field] if self.id_field else False
        found = self.client.query_points(
            self.name, query=query.tolist(), using=self.vector_name, limit=count, with_payload=shown
        )
        return [self._key(point) for point in found.points]

    def write(self, ids: Sequence[Any], vectors: Array) -> None:
        for start in range(0, len(ids), _BATCH):
            piece = zip(ids[start : start + _BATCH], vectors[start : start + _BATCH].tolist(), strict=True)
            points = [
                self.models.PointVectors(
                    id=self._point[key], vector={self.vector_name: numbers} if self.vector_name else numbers
                )
                for key, numbers in piece
            ]
            self.client.update_vectors(self.name, points)

    def alone(self) -> AbstractContextManager[None]:
        return locked(self._lock, self.url)

    def settle(self) -> None:
        """Qdrant's index follows by itself."""

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def read_ledger(self) -> Ledger | None:
        if not self.client.collection_exists(self._ledger):
            return None
        facts = self.client.retrieve(self._ledger, [_FACTS], with_payload=True)
        if not facts:
            return None
        points = [point for point in self._scrolled(self._ledger, with_vectors=True) if str(point.id) != _FACTS]
        both = np.array([point.vector for point in points], np.float32).reshape(len(points), 2 * self.dim)
        ids = [point.payload["key"] for point in points]
        return Ledger(json.loads(facts[0].payload["facts"]), ids, both[:, : self.dim], both[:, self.dim :])

    def make_ledger(self, ledger: Ledger) -> None:
        self.drop_ledger()
        size = self.models.VectorParams(size=2 * self.dim, distance=self.models.Distance.DOT)
        self.client.create_collection(self._ledger, vectors_config=size)
        both = np.concatenate([ledger.before, ledger.after], axis=1).astype(np.float32)
        for start in range(0, len(ledger.ids), _BATCH):
            piece = zip(ledger.ids[start : start + _BATCH], both[start : start + _BATCH].tolist(), strict=True)
            points = [
                self.models.PointStruct(id=self._point[key], vector=numbers, payload={"key": key})
                for key, numbers in piece
            ]
            self.client.upsert(self._ledger, points)
        # From here on it counts.
        facts = {"facts": json.dumps(ledger.facts)}
        seal = self.models.PointStruct(id=_FACTS, vector=[0.0] * (2 * self.dim), payload=facts)
        self.client.upsert(self._ledger, [seal])

    def drop_ledger(self) -> None:
        if self.client.collection_exists(self._ledger):
            self.client.delete(self._ledger, [_FACTS])
            self.client.delete_collection(self._ledger)
