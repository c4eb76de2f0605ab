"""Milvus: a collection in a file of Milvus Lite (``milvus:path.db#docs``) or on a server (``milvus://host:19530#docs``).

The primary key names documents. Vectors are written in pieces, after the ledger: a collection beside this one that
counts once it carries the alias ``NAME__nudgevec``. Milvus keeps float32 exactly.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.corpus import Array
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Ledger, Store
from nudgevec.stores.lock import lock_for, locked

_BATCH = 1000
_METRICS = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}


class MilvusStore(Store):
    """A collection of Milvus."""

    def __init__(self, address: Address, vector: str | None = None, metric: str | None = None, tls: str = "no") -> None:
        try:
            import pymilvus
        except ImportError:
            raise MissingExtraError("Milvus", "milvus") from None
        self.milvus: Any = pymilvus
        self.url, self.name = str(address), address.named("collection")
        self._asked_vector, self._asked_metric = vector, metric
        if address.host:
            place = f"{'https' if tls == 'yes' else 'http'}://{address.host}:{address.port or 19530}"
            self._lock = lock_for(self.url)
        else:
            place = address.path
            if not Path(place).exists() or not place.endswith(".db"):
                raise StoreError(f"there is no Milvus file at {place}; its name ends in .db")
            self._lock = Path(place).with_name(f".{Path(place).name}.{self.name}.nudgevec-lock")
        try:
            with _quiet():
                self.client: Any = pymilvus.MilvusClient(place, token=os.environ.get("MILVUS_TOKEN", ""))
        except (pymilvus.exceptions.MilvusException, pymilvus.exceptions.ConnectionConfigException):
            reason = "nobody answers there" if address.host else "somebody else has this file open"
            raise StoreError(f"{self.url}: {reason}") from None
        self._ends_with(self.client.close)
        self.refresh()

    def refresh(self) -> None:
        if not self.client.has_collection(self.name):
            there = ", ".join(self.client.list_collections()) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        self._loaded(self.name)
        fields = self.client.describe_collection(self.name)["fields"]
        key = next(field for field in fields if field.get("is_primary"))
        if key.get("auto_id") or self.client.describe_collection(self.name).get("auto_id"):
            raise StoreError(
                f"{self.url}: Milvus makes the ids there (auto_id), and an update would give rows new ones"
            )
        self.id_field = key["name"]
        vectors = {field["name"]: field for field in fields if field["type"] == self.milvus.DataType.FLOAT_VECTOR}
        named = self._asked_vector or (next(iter(vectors)) if len(vectors) == 1 else None)
        if named not in vectors:
            raise StoreError(f"{self.url}: which vector? say ?vector=NAME ({', '.join(vectors) or 'there is none'})")
        self.vector_field = named
        self.dim = int(vectors[named]["params"]["dim"])
        self.metric = self._asked_metric or self._index_metric()
        self.ids = [row[self.id_field] for row in self._rows(self.name, [self.id_field])]

    def _loaded(self, name: str) -> None:
        """Files come back without anything in memory; a server may have its reasons, but reading takes no less."""
        if self.client.get_load_state(name)["state"] != self.milvus.client.types.LoadState.Loaded:
            self.client.load_collection(name)

    def _index_metric(self) -> str | None:
        for name in self.client.list_indexes(self.name):
            found = self.client.describe_index(self.name, name)
            if found.get("field_name") == self.vector_field:
                return _METRICS.get(str(found.get("metric_type")))
        return None

    def _rows(self, name: str, fields: list[str]) -> Iterator[Any]:
        with _quiet():
            found = self.client.query_iterator(
                name, batch_size=_BATCH, output_fields=fields, consistency_level="Strong"
            )
        try:
            while block := found.next():
                yield from block
        finally:
            found.close()

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._taken(self.ids, _BATCH)

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for start in range(0, len(ids), _BATCH):
            wanted = json.dumps(list(ids[start : start + _BATCH]), ensure_ascii=False)
            rows = self.client.query(
                self.name,
                filter=f"{self.id_field} in {wanted}",
                output_fields=[self.id_field, self.vector_field],
                consistency_level="Strong",
            )
            if rows:
                vectors = np.array([row[self.vector_field] for row in rows], np.float32)
                yield [row[self.id_field] for row in rows], vectors

    def search(self, query: Array, count: int) -> list[Hashable]:
        found = self.client.search(
            self.name, data=[query.tolist()], limit=count, anns_field=self.vector_field, consistency_level="Strong"
        )
        return [hit[self.id_field] for hit in found[0]]

    def write(self, ids: Sequence[Any], vectors: Array) -> None:
        for start in range(0, len(ids), _BATCH):
            piece = zip(ids[start : start + _BATCH], vectors[start : start + _BATCH], strict=True)
            rows = [{self.id_field: key, self.vector_field: vector} for key, vector in piece]
            self.client.upsert(self.name, rows, partial_update=True)

    def alone(self) -> AbstractContextManager[None]:
        return locked(self._lock, self.url)

    def settle(self) -> None:
        """Milvus's index follows by itself."""

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def read_ledger(self) -> Ledger | None:
        if not self.client.has_collection(self._ledger):
            return None
        self._loaded(self._ledger)
        first, *rows = sorted(self._rows(self._ledger, ["place", "note", "both"]), key=lambda row: int(row["place"]))
        both = np.array([row["both"] for row in rows], np.float32).reshape(len(rows), 2 * self.dim)
        ids = [json.loads(row["note"]) for row in rows]
        return Ledger(json.loads(first["note"]), ids, both[:, : self.dim], both[:, self.dim :])

    def make_ledger(self, ledger: Ledger) -> None:
        self._sweep()
        kind = self.milvus.DataType
        schema = self.client.create_schema(auto_id=False)
        schema.add_field("place", kind.INT64, is_primary=True)
        schema.add_field("note", kind.VARCHAR, max_length=65535)
        schema.add_field("both", kind.FLOAT_VECTOR, dim=2 * self.dim)
        index = self.client.prepare_index_params()
        index.add_index("both", index_type="FLAT", metric_type="L2")
        draft = f"{self._ledger}_{uuid.uuid4().hex[:12]}"
        self.client.create_collection(draft, schema=schema, index_params=index)
        # The facts come first, then the rows.
        notes = [json.dumps(note) for note in (ledger.facts, *ledger.ids)]
        both = np.concatenate([ledger.before, ledger.after], axis=1).astype(np.float32)
        both = np.concatenate([np.zeros_like(both, shape=(1, 2 * self.dim)), both])
        rows = [{"place": place, "note": notes[place], "both": both[place]} for place in range(len(notes))]
        for start in range(0, len(rows), _BATCH):
            self.client.insert(draft, rows[start : start + _BATCH])
        # From here on it counts.
        self.client.create_alias(draft, self._ledger)

    def drop_ledger(self) -> None:
        self.client.drop_alias(self._ledger)
        self._sweep()

    def _sweep(self) -> None:
        """Remove ledgers that do not count."""
        for name in self.client.list_collections():
            if name.startswith(f"{self._ledger}_") and not self.client.list_aliases(name)["aliases"]:
                self.client.drop_collection(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Milvus logs what it then raises, and warns that it uses the clock."""
    loggers = [logging.getLogger(name) for name in ("pymilvus", "milvus_lite", "grpc._server")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
