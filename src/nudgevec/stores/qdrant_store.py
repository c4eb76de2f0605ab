"""Qdrant: a collection in a folder (``qdrant:path#docs``) or on a server (``qdrant://host:6333#docs``).

Documents are named by their point ids, or by a field of the payload (``?id=field``). Vectors are written in pieces,
after the ledger: a collection beside this one, ``NAME__nudgevec``, that counts once the point with its facts is in.
Qdrant keeps float32 exactly, but for cosine it keeps directions: vectors come back with length one, within a millionth
or two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, slices
from nudgevec.core.exact import norms
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.ledger import Ledger
from nudgevec.stores.piecewise import PiecewiseStore

_METRICS = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}
_FACTS = "6e756467-6576-4563-8000-000000000000"
"""The point of a ledger that holds the facts."""
_OURS = "nudgevec_before_and_after"
"""The vector of a ledger, by which it is known."""


class QdrantStore(PiecewiseStore):
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
        self.guard(address, "QDRANT_API_KEY")
        self.id_field, self.vector_name, self._asked_metric = id, vector, metric
        if address.host:
            self.client: Any = qdrant_client.QdrantClient(
                host=address.host,
                port=address.port or 6333,
                https=tls == "yes",
                api_key=os.environ.get("QDRANT_API_KEY"),
                check_compatibility=False,
            )
        else:
            if not (Path(address.path) / "meta.json").is_file():
                raise StoreError(f"there is no Qdrant folder at {address.path}")
            try:
                self.client = qdrant_client.QdrantClient(path=address.path)
            except RuntimeError:
                raise StoreError(
                    f"{self.url}: somebody else has this folder open, and Qdrant lets in only one"
                ) from None
        self._ends_with(self.client.close)
        self.refresh()

    def look(self) -> None:
        if not self.client.collection_exists(self.name):
            there = ", ".join(each.name for each in self.client.get_collections().collections) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        kind = self._kind()
        number = "float32" if kind.datatype is None else kind.datatype.value
        if kind.multivector_config is not None or number != "float32":
            raise StoreError(f"{self.url} does not keep one float32 vector per document")
        if kind.distance.value not in _METRICS:
            raise StoreError(f"{self.url} compares by {kind.distance.value}; cosine, dot and Euclid are understood")
        self.dim = int(kind.size)
        self.metric = self.agreed_metric(self._asked_metric, _METRICS[kind.distance.value])
        self.slack = 2e-6 if kind.distance.value == "Cosine" else 0.0
        self.place = {"id": self.id_field, "vector": self.vector_name}
        self._shown: Any = [self.id_field] if self.id_field else False

    def read_ids(self) -> list[Hashable]:
        pairs = [(self._key(point), point.id) for point in self._scrolled(self.name, with_payload=self._shown)]
        self._points = dict(pairs) if self.id_field else {}
        return [key for key, _ in pairs]

    def _point(self, key: Hashable) -> Any:
        """The id of a document's point; None where it has none."""
        return key if self.id_field is None else self._points.get(key)

    def _kind(self) -> Any:
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
            points, place = self.client.scroll(name, limit=self.piece, offset=place, **options)
            yield from points
            if place is None:
                return

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        if self.id_field:
            # Which points these are is known from all ids.
            _ = self.ids
        wanted = [point for point in map(self._point, ids) if point is not None]
        named: Any = [self.vector_name] if self.vector_name else True
        for part in slices(len(wanted), self.piece):
            points = self.client.retrieve(self.name, wanted[part], with_payload=self._shown, with_vectors=named)
            if points:
                yield [self._key(point) for point in points], self._vectors(points)

    def _vectors(self, points: list[Any]) -> Array:
        vectors = np.array([self._vector(point) for point in points], np.float32)
        if self.slack:
            # A folder gives the lengths that were written, until a vector is updated; a server never does.
            vectors /= np.maximum(norms(vectors), np.finfo(np.float32).tiny)[:, None].astype(np.float32)
        return vectors

    def _vector(self, point: Any) -> list[float]:
        vector = (point.vector or {}).get(self.vector_name) if self.vector_name else point.vector
        if not vector:
            raise StoreError(f"{self.url}: point {point.id!r} has no vector")
        numbers: list[float] = vector
        return numbers

    def search(self, query: Array, count: int) -> list[Hashable]:
        found = self.client.query_points(
            self.name, query=query.tolist(), using=self.vector_name, limit=count, with_payload=self._shown
        )
        return [self._key(point) for point in found.points]

    def put(self, ids: Sequence[Any], vectors: Array) -> None:
        points = [
            self.models.PointVectors(
                id=self._point(key), vector={self.vector_name: numbers} if self.vector_name else numbers
            )
            for key, numbers in zip(ids, vectors.tolist(), strict=True)
        ]
        self.client.update_vectors(self.name, points)

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def _there(self) -> bool:
        """Whether there is a ledger, complete or not; an error where somebody else has a collection of this name."""
        if not self.client.collection_exists(self._ledger):
            return False
        kind = self.client.get_collection(self._ledger).config.params.vectors
        if not isinstance(kind, dict) or set(kind) != {_OURS}:
            raise StoreError(f"{self.url}: the collection {self._ledger!r} is in the way, and nudgevec did not make it")
        return True

    def read_ledger(self) -> Ledger | None:
        facts = self.client.retrieve(self._ledger, [_FACTS], with_payload=True) if self._there() else []
        if not facts:
            return None
        points = [point for point in self._scrolled(self._ledger, with_vectors=True) if str(point.id) != _FACTS]
        both = np.array([point.vector[_OURS] for point in points], np.float32).reshape(len(points), -1)
        return Ledger.split(json.loads(facts[0].payload["facts"]), [point.payload["key"] for point in points], both)

    def make_ledger(self, ledger: Ledger) -> None:
        self.drop_ledger()
        both = ledger.both
        size = self.models.VectorParams(size=both.shape[1], distance=self.models.Distance.DOT)
        self.client.create_collection(self._ledger, vectors_config={_OURS: size})
        for part in slices(len(both), self.piece):
            points = [
                self.models.PointStruct(id=self._point(key), vector={_OURS: numbers}, payload={"key": key})
                for key, numbers in zip(ledger.ids[part], both[part].tolist(), strict=True)
            ]
            self.client.upsert(self._ledger, points)
        # From here on it counts.
        facts = {"facts": json.dumps(ledger.facts)}
        seal = self.models.PointStruct(id=_FACTS, vector={_OURS: [0.0] * both.shape[1]}, payload=facts)
        self.client.upsert(self._ledger, [seal])

    def drop_ledger(self) -> None:
        if self._there():
            self.client.delete(self._ledger, [_FACTS])
            self.client.delete_collection(self._ledger)
