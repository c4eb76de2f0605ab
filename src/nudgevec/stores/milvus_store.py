"""Milvus: a collection in a file of Milvus Lite (``milvus:path.db#docs``) or on a server (``milvus://host:19530#docs``).

The primary key names documents. Vectors are written in pieces, after the ledger: a collection beside this one that
counts once it carries the alias ``NAME__nudgevec``. Milvus keeps float32 exactly.
"""

from __future__ import annotations

import json
import logging
import os
import re
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, slices
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import told
from nudgevec.stores.ledger import Ledger
from nudgevec.stores.piecewise import PiecewiseStore

_BOTH = "nudgevec_before_and_after"
"""The vector of a ledger, by which it is known."""
# Servers before this one take an update for a new row.
_PARTIAL = (2, 6, 2)
# The most rows Milvus hands out at a time; each time it looks at all of them.
_WINDOW = 16384
_METRICS = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}


class MilvusStore(PiecewiseStore):
    """A collection of Milvus."""

    piece = 1000

    def __init__(self, address: Address, vector: str | None = None, metric: str | None = None, tls: str = "no") -> None:
        try:
            import pymilvus
        except ImportError:
            raise MissingExtraError("Milvus", "milvus") from None
        self.milvus: Any = pymilvus
        self.url, self.name = str(address), address.named("collection")
        self.guard(address, "MILVUS_TOKEN")
        self._asked_vector, self._asked_metric = vector, metric
        if address.host:
            place = f"{'https' if tls == 'yes' else 'http'}://{address.host}:{address.port or 19530}"
        else:
            place = address.path
            if not Path(place).exists() or not place.endswith(".db"):
                raise StoreError(f"there is no Milvus file at {place}; its name ends in .db")
        try:
            with _quiet():
                self.client: Any = pymilvus.MilvusClient(place, token=os.environ.get("MILVUS_TOKEN", ""))
        except (pymilvus.exceptions.MilvusException, pymilvus.exceptions.ConnectionConfigException) as error:
            reason = "" if address.host else "somebody else has this file open, or it is none of Milvus ("
            raise StoreError(f"{self.url}: {reason}{told(error)}{')' if reason else ''}") from None
        if address.host:
            version = str(self.client.get_server_version())
            numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
            if numbers < _PARTIAL:
                raise StoreError(f"{self.url}: this server is {version}; updating a part of a row came with 2.6.2")
        self._ends_with(self.client.close)
        self.refresh()

    def look(self) -> None:
        if not self.client.has_collection(self.name):
            there = ", ".join(self.client.list_collections()) or "none"
            raise StoreError(f"{self.url}: there is no collection {self.name!r}; collections here: {there}")
        self._loaded(self.name)
        made = self.client.describe_collection(self.name)
        fields = made["fields"]
        key = next(field for field in fields if field.get("is_primary"))
        if key.get("auto_id") or made.get("auto_id"):
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
        self.metric = self.agreed_metric(self._asked_metric, self._index_metric())
        self.place = {"vector": named}

    def read_ids(self) -> list[Hashable]:
        return [row[self.id_field] for row in self._rows(self.name, self.id_field)]

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

    def _rows(self, name: str, key: str, *fields: str) -> Iterator[Any]:
        """All rows, each once: Milvus Lite hands some out twice after a program died while it tidied up its log."""
        seen: set[Hashable] = set()
        with _quiet():
            found = self.client.query_iterator(
                name, batch_size=_WINDOW, output_fields=[key, *fields], consistency_level="Strong"
            )
        try:
            while block := found.next():
                for row in block:
                    if row[key] not in seen:
                        seen.add(row[key])
                        yield row
        finally:
            found.close()

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for part in slices(len(ids), self.piece):
            wanted = json.dumps(list(ids[part]), ensure_ascii=False)
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

    def put(self, ids: Sequence[Any], vectors: Array) -> None:
        rows = [{self.id_field: key, self.vector_field: vector} for key, vector in zip(ids, vectors, strict=True)]
        self.client.upsert(self.name, rows, partial_update=True)

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def read_ledger(self) -> Ledger | None:
        if not self.client.has_collection(self._ledger):
            return None
        if _BOTH not in {field["name"] for field in self.client.describe_collection(self._ledger)["fields"]}:
            raise StoreError(f"{self.url}: the collection {self._ledger!r} is in the way, and nudgevec did not make it")
        self._loaded(self._ledger)
        found = self._rows(self._ledger, "place", "note", _BOTH)
        first, *rows = sorted(found, key=lambda row: int(row["place"]))
        both = np.array([row[_BOTH] for row in rows], np.float32).reshape(len(rows), -1)
        return Ledger.split(json.loads(first["note"]), [json.loads(row["note"]) for row in rows], both)

    def make_ledger(self, ledger: Ledger) -> None:
        self._sweep()
        kind = self.milvus.DataType
        schema = self.client.create_schema(auto_id=False)
        schema.add_field("place", kind.INT64, is_primary=True)
        schema.add_field("note", kind.VARCHAR, max_length=65535)
        schema.add_field(_BOTH, kind.FLOAT_VECTOR, dim=2 * self.dim)
        index = self.client.prepare_index_params()
        index.add_index(_BOTH, index_type="FLAT", metric_type="L2")
        draft = f"{self._ledger}_{uuid.uuid4().hex[:12]}"
        self.client.create_collection(draft, schema=schema, index_params=index)
        # The facts come first, then the rows.
        notes = [json.dumps(note) for note in (ledger.facts, *ledger.ids)]
        both = np.concatenate([np.zeros((1, 2 * self.dim), np.float32), ledger.both])
        rows = [{"place": place, "note": notes[place], _BOTH: both[place]} for place in range(len(notes))]
        for part in slices(len(rows), self.piece):
            self.client.insert(draft, rows[part])
        # From here on it counts.
        self.client.create_alias(draft, self._ledger)

    def drop_ledger(self) -> None:
        self.client.drop_alias(self._ledger)
        self._sweep()

    def _sweep(self) -> None:
        """Remove ledgers of ours that do not count."""
        ours = re.compile(re.escape(self._ledger) + "_[0-9a-f]{12}")
        for name in filter(ours.fullmatch, self.client.list_collections()):
            fields = {field["name"] for field in self.client.describe_collection(name)["fields"]}
            if _BOTH in fields and not self.client.list_aliases(name)["aliases"]:
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
