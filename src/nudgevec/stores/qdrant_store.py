"""Qdrant: a collection in a folder (``qdrant:path#docs``) or on a server (``qdrant://host:6333#docs``).

Documents are identified by their point ids, or by a field of the payload (``?id=field``). Vectors are written in
batches, after the ledger: a collection ``NAME__nudgevec`` that is complete once it has the point with the metadata.
Qdrant keeps float32 exactly, except that it normalises for cosine: vectors are read with unit length, within 2e-6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from nudgevec.arrays import Array, Ints, slices
from nudgevec.core.exact import norms
from nudgevec.errors import StoreError
from nudgevec.stores.address import Address, parse_flag
from nudgevec.stores.backend import import_client, wrong_client
from nudgevec.stores.ledger import Change, Ledger, in_order, join_pairs, split_pairs
from nudgevec.stores.piecewise import IN_MEMORY, PiecewiseStore

_SIMILARITIES = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}
_METADATA_POINT = "6e756467-6576-4563-8000-000000000000"
"""The point of a ledger that holds the metadata, under "facts"; the other points hold their id under "key"."""
_LEDGER_VECTOR = "nudgevec_before_and_after"
"""The vector of a ledger, by which it is recognised."""


class QdrantStore(PiecewiseStore):
    """A collection of Qdrant."""

    client_package = "qdrant_client"
    default_port = 6333

    def __init__(
        self,
        client: Any,
        address: Address,
        id: str | None = None,
        vector: str | None = None,
        similarity: str | None = None,
    ) -> None:
        super().__init__(client, address, similarity)
        self.models: Any = import_client("qdrant_client", "Qdrant", "qdrant").models
        self.id_field, self.vector_name = id, vector
        self.unique_ids = id is None
        self._payload: Any = [id] if id else False

    @classmethod
    def connect(cls, address: Address, tls: str | bool = "no") -> Any:
        library = import_client("qdrant_client", "Qdrant", "qdrant")
        address.require_collection()
        address.refuse_credentials("QDRANT_API_KEY")
        if address.host:
            return library.QdrantClient(
                host=address.host,
                port=address.port or cls.default_port,
                https=parse_flag("tls", tls),
                api_key=os.environ.get("QDRANT_API_KEY"),
                check_compatibility=False,
            )
        if not (Path(address.path) / "meta.json").is_file():
            raise StoreError(f"there is no Qdrant folder at {address.path}")
        try:
            return library.QdrantClient(path=address.path)
        except RuntimeError:
            raise StoreError(
                f"{address}: another client has this folder open, and Qdrant allows only one at a time"
            ) from None

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        if not isinstance(client, import_client("qdrant_client", "Qdrant", "qdrant").QdrantClient):
            raise wrong_client("a QdrantClient", client)
        given = client.init_options
        if given["path"] is not None:
            return client, Address("qdrant", os.path.abspath(given["path"]), collection or "", {})
        if given["location"] == IN_MEMORY:
            return client, Address("qdrant", IN_MEMORY, collection or "", {})
        url = given["url"] or given["location"] or ""
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname or given["host"] or "localhost", parts.port or given["port"]
        return client, Address("qdrant", parts.path, collection or "", {}, host, port)

    def read_metadata(self) -> None:
        if not self.client.collection_exists(self.name):
            collections = self.client.get_collections().collections
            raise self.not_found("collection", self.name, [collection.name for collection in collections])
        params = self._vector_params()
        datatype = "float32" if params.datatype is None else params.datatype.value
        if params.multivector_config is not None or datatype != "float32":
            raise StoreError(f"{self.url} does not have one float32 vector per document")
        distance = params.distance.value
        if distance not in _SIMILARITIES:
            raise StoreError(f"{self.url} uses the distance {distance}; supported are {', '.join(_SIMILARITIES)}")
        self.dim = int(params.size)
        self.similarity = self.resolve_similarity(_SIMILARITIES[distance])
        self.tolerance = 2e-6 if distance == "Cosine" else 0.0
        self.columns = {"id": self.id_field, "vector": self.vector_name}

    def _vector_params(self) -> Any:
        """Return the definition of the vector to use."""
        params = self.client.get_collection(self.name).config.params.vectors
        if isinstance(params, dict):
            self.vector_name = self.resolve_name("vector", self.vector_name, list(params))
            return params[self.vector_name]
        if self.vector_name:
            raise StoreError(f"{self.url} has no vector {self.vector_name!r}; its only vector has no name")
        return params

    def read_ids(self) -> list[Hashable]:
        pairs = [(self._key(point), point.id) for point in self._scroll(self.name, with_payload=self._payload)]
        self._points = dict(pairs) if self.id_field else {}
        return [key for key, _ in pairs]

    def _point(self, key: Hashable) -> Any:
        """Return the point id of a document, or None if there is none."""
        return key if self.id_field is None else self._points.get(key)

    def _key(self, point: Any) -> Hashable:
        """Return the document id of a point."""
        key: Hashable = point.id if self.id_field is None else (point.payload or {}).get(self.id_field)
        if key is None:
            raise StoreError(f"{self.url}: point {point.id!r} has no field {self.id_field!r}")
        return key

    def _scroll(self, name: str, **options: Any) -> Iterator[Any]:
        """Yield all points of a collection."""
        offset = None
        while True:
            points, offset = self.client.scroll(name, limit=self.batch_size, offset=offset, **options)
            yield from points
            if offset is None:
                return

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        if self.id_field:
            # Sets the point of each document.
            _ = self.ids
        point_ids = [point for point in map(self._point, ids) if point is not None]
        with_vectors: Any = [self.vector_name] if self.vector_name else True
        for batch in slices(len(point_ids), self.batch_size):
            points = self.client.retrieve(
                self.name, point_ids[batch], with_payload=self._payload, with_vectors=with_vectors
            )
            if points:
                yield [self._key(point) for point in points], self._vectors(points)

    def _vectors(self, points: list[Any]) -> Array:
        vectors = np.array([self._vector(point) for point in points], np.float32)
        if self.tolerance:
            # Only servers normalise when vectors are uploaded; a folder does so when they are updated.
            vectors /= np.maximum(norms(vectors), np.finfo(np.float32).tiny)[:, None].astype(np.float32)
        return vectors

    def _vector(self, point: Any) -> list[float]:
        vector = (point.vector or {}).get(self.vector_name) if self.vector_name else point.vector
        if not vector:
            raise StoreError(f"{self.url}: point {point.id!r} has no vector")
        numbers: list[float] = vector
        return numbers

    def search(self, query: Array, k: int) -> list[Hashable]:
        result = self.client.query_points(
            self.name, query=query.tolist(), using=self.vector_name, limit=k, with_payload=self._payload
        )
        return [self._key(point) for point in result.points]

    def update(self, ids: Sequence[Any], vectors: Array) -> None:
        points = [
            self.models.PointVectors(
                id=self._point(key), vector={self.vector_name: vector} if self.vector_name else vector
            )
            for key, vector in zip(ids, vectors.tolist(), strict=True)
        ]
        self.client.update_vectors(self.name, points)

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def _ledger_exists(self) -> bool:
        """Whether there is a ledger, complete or not; raises if a collection of others has its name."""
        if not self.client.collection_exists(self._ledger):
            return False
        params = self.client.get_collection(self._ledger).config.params.vectors
        if not isinstance(params, dict) or set(params) != {_LEDGER_VECTOR}:
            raise self.name_taken("collection", self._ledger)
        return True

    def read_ledger(self) -> Ledger | None:
        if not self._ledger_exists():
            return None
        last = self.client.retrieve(self._ledger, [_METADATA_POINT], with_payload=True)
        if not last:
            return None
        points = self._scroll(self._ledger, with_payload=["key"])
        keys = [(point.id, point.payload["key"]) for point in points if str(point.id) != _METADATA_POINT]

        def read(positions: Ints) -> tuple[Array, Array]:
            point_ids = [keys[position][0] for position in positions.tolist()]
            return split_pairs(in_order(point_ids, self._read_pairs(point_ids)))

        return Ledger(json.loads(last[0].payload["facts"]), Change([key for _, key in keys], read))

    def _read_pairs(self, point_ids: list[Any]) -> Iterator[tuple[list[Any], Array]]:
        """Yield points of the ledger with their vectors."""
        for batch in slices(len(point_ids), self.batch_size):
            points = self.client.retrieve(self._ledger, point_ids[batch], with_payload=False, with_vectors=True)
            pairs = np.array([point.vector[_LEDGER_VECTOR] for point in points], np.float32)
            yield [point.id for point in points], pairs

    def create_ledger(self, ledger: Ledger) -> None:
        # Removes an incomplete one.
        self.drop_ledger()
        params = self.models.VectorParams(size=2 * self.dim, distance=self.models.Distance.DOT)
        self.client.create_collection(self._ledger, vectors_config={_LEDGER_VECTOR: params})
        for ids, old, new in ledger.change.batches(self.batch_size, "writing the ledger"):
            points = [
                self.models.PointStruct(id=self._point(key), vector={_LEDGER_VECTOR: pair}, payload={"key": key})
                for key, pair in zip(ids, join_pairs(old, new).tolist(), strict=True)
            ]
            self.client.upsert(self._ledger, points)
        # The last point makes the ledger complete.
        payload, zeros = {"facts": json.dumps(ledger.metadata)}, [0.0] * (2 * self.dim)
        last = self.models.PointStruct(id=_METADATA_POINT, vector={_LEDGER_VECTOR: zeros}, payload=payload)
        self.client.upsert(self._ledger, [last])

    def drop_ledger(self) -> None:
        if self._ledger_exists():
            self.client.delete(self._ledger, [_METADATA_POINT])
            self.client.delete_collection(self._ledger)
