"""Milvus: a collection in a file of Milvus Lite (``milvus:path.db#docs``) or on a server (``milvus://host:19530#docs``).

The primary key identifies documents. Vectors are written in batches, after the ledger: a collection that is complete
once it has the alias ``NAME__nudgevec``. Milvus keeps float32 exactly.
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
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np

from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import StoreError
from nudgevec.stores.address import Address, parse_flag
from nudgevec.stores.backend import import_client, wrong_client
from nudgevec.stores.ledger import Change, Ledger, in_order, join_pairs, split_pairs
from nudgevec.stores.messages import error_text
from nudgevec.stores.piecewise import PiecewiseStore

_LEDGER_VECTOR = "nudgevec_before_and_after"
"""The vector of a ledger, by which it is recognised. The field "place" is the position of a row, "note" its id."""
# Older servers insert a new row when a part of one is updated.
_PARTIAL_UPDATE = (2, 6, 2)
# The escapes that both Milvus and Milvus Lite know.
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_SIMILARITIES = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}


class MilvusStore(PiecewiseStore):
    """A collection of Milvus."""

    client_package = "pymilvus"
    unique_ids = True
    default_port = 19530
    batch_size = 1000
    scan_size: ClassVar[int] = 16384
    """Rows per request when all are read. Milvus scans all of them for each request, and returns at most this many."""

    def __init__(self, client: Any, address: Address, vector: str | None = None, similarity: str | None = None) -> None:
        super().__init__(client, address, similarity)
        self.milvus = _library()
        self._requested_vector = vector

    @classmethod
    def connect(cls, address: Address, tls: str | bool = "no") -> Any:
        library = _library()
        address.require_collection()
        address.refuse_credentials("MILVUS_TOKEN")
        if address.host:
            scheme = "https" if parse_flag("tls", tls) else "http"
            uri = f"{scheme}://{address.host}:{address.port or cls.default_port}"
        else:
            uri = address.path
            if not Path(uri).exists() or not uri.endswith(".db"):
                raise StoreError(f"there is no Milvus file at {uri}; its name ends in .db")
        try:
            with _quiet():
                client = library.MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""))
        except (library.exceptions.MilvusException, library.exceptions.ConnectionConfigException) as error:
            reason = "" if address.host else "another process has this file open, or it is not a Milvus file; "
            raise StoreError(f"{address}: {reason}{error_text(error)}") from None
        _check_version(client, address)
        return client

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        if not isinstance(client, _library().MilvusClient):
            raise wrong_client("a MilvusClient", client)
        # Milvus Lite has the address of its server in this process. The client has no public attribute for it.
        parts = urlsplit(getattr(getattr(client, "_config", None), "uri", ""))
        address = Address("milvus", "", collection or "", {}, parts.hostname or "client", parts.port)
        _check_version(client, address)
        return client, address

    def read_metadata(self) -> None:
        if not self.client.has_collection(self.name):
            raise self.not_found("collection", self.name, self.client.list_collections())
        self._load(self.name)
        description = self.client.describe_collection(self.name)
        fields = description["fields"]
        key = next(field for field in fields if field.get("is_primary"))
        if key.get("auto_id") or description.get("auto_id"):
            raise StoreError(
                f"{self.url}: Milvus generates the ids of this collection (auto_id), and an update would change them"
            )
        self.id_field = key["name"]
        vectors = {field["name"]: field for field in fields if field["type"] == self.milvus.DataType.FLOAT_VECTOR}
        self.vector_field = self.resolve_name("vector", self._requested_vector, list(vectors))
        self.dim = int(vectors[self.vector_field]["params"]["dim"])
        self.similarity = self.resolve_similarity(self._index_similarity())
        self.columns = {"vector": self.vector_field}

    def _load(self, name: str) -> None:
        """Load a collection into memory, which reading it requires."""
        if self.client.get_load_state(name)["state"] != self.milvus.client.types.LoadState.Loaded:
            self.client.load_collection(name)

    def _index_similarity(self) -> str | None:
        for name in self.client.list_indexes(self.name):
            index = self.client.describe_index(self.name, name)
            if index.get("field_name") == self.vector_field:
                return _SIMILARITIES.get(str(index.get("metric_type")))
        return None

    def read_ids(self) -> list[Hashable]:
        return [row[self.id_field] for row in self._scan(self.name, self.id_field)]

    def _scan(self, name: str, key: str, *fields: str) -> Iterator[Any]:
        """Yield all rows of a collection once.

        Milvus Lite returns some rows twice if a process died while it compacted its log.
        """
        seen: set[Hashable] = set()
        for page in self._pages(name, key, [key, *fields]):
            for row in page:
                if row[key] not in seen:
                    seen.add(row[key])
                    yield row

    def _pages(self, name: str, key: str, fields: list[str]) -> Iterator[list[Any]]:
        """Yield the rows of a collection in the order of their keys."""
        condition: str | None = ""
        while condition is not None:
            with _quiet():
                scan = self.client.query_iterator(
                    name,
                    batch_size=self.scan_size,
                    filter=condition,
                    output_fields=fields,
                    consistency_level="Strong",
                )
            condition = None
            try:
                while condition is None and (page := scan.next()):
                    yield page
                    last = page[-1][key]
                    # pymilvus continues after the last key without escaping it, so begin again there.
                    if isinstance(last, str) and last != last.translate(_ESCAPES):
                        condition = f"{key} > {_literal(last)}"
            finally:
                scan.close()

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self._fetch_from(self.name, self.id_field, self.vector_field, ids)

    def _fetch_from(
        self, name: str, key: str, vector: str, ids: Sequence[Any]
    ) -> Iterator[tuple[list[Hashable], Array]]:
        for batch in slices(len(ids), self.batch_size):
            keys = ", ".join(map(_literal, ids[batch]))
            rows = self.client.query(
                name, filter=f"{key} in [{keys}]", output_fields=[key, vector], consistency_level="Strong"
            )
            if rows:
                yield [row[key] for row in rows], np.array([row[vector] for row in rows], np.float32)

    def search(self, query: Array, k: int) -> list[Hashable]:
        hits = self.client.search(
            self.name, data=[query.tolist()], limit=k, anns_field=self.vector_field, consistency_level="Strong"
        )
        return [hit[self.id_field] for hit in hits[0]]

    def update(self, ids: Sequence[Any], vectors: Array) -> None:
        rows = [{self.id_field: key, self.vector_field: vector} for key, vector in zip(ids, vectors, strict=True)]
        self.client.upsert(self.name, rows, partial_update=True)

    @property
    def _ledger(self) -> str:
        return f"{self.name}__nudgevec"

    def read_ledger(self) -> Ledger | None:
        if not self.client.has_collection(self._ledger):
            return None
        if not self._has_ledger_vector(self._ledger):
            raise self.name_taken("collection", self._ledger)
        self._load(self._ledger)
        rows = self._scan(self._ledger, "place", "note")
        (_, first), *rest = sorted((int(row["place"]), row["note"]) for row in rows)

        def read(positions: Ints) -> tuple[Array, Array]:
            places = [rest[position][0] for position in positions.tolist()]
            return split_pairs(in_order(places, self._fetch_from(self._ledger, "place", _LEDGER_VECTOR, places)))

        return Ledger(json.loads(first), Change([json.loads(note) for _, note in rest], read))

    def create_ledger(self, ledger: Ledger) -> None:
        self._drop_incomplete_ledgers()
        kind = self.milvus.DataType
        schema = self.client.create_schema(auto_id=False)
        schema.add_field("place", kind.INT64, is_primary=True)
        schema.add_field("note", kind.VARCHAR, max_length=65535)
        schema.add_field(_LEDGER_VECTOR, kind.FLOAT_VECTOR, dim=2 * self.dim)
        index = self.client.prepare_index_params()
        index.add_index(_LEDGER_VECTOR, index_type="FLAT", metric_type="L2")
        draft = f"{self._ledger}_{uuid.uuid4().hex[:12]}"
        self.client.create_collection(draft, schema=schema, index_params=index)
        # Position 0 holds the metadata.
        first = {"place": 0, "note": json.dumps(ledger.metadata), _LEDGER_VECTOR: np.zeros(2 * self.dim, np.float32)}
        self.client.insert(draft, [first])
        place = 1
        for ids, old, new in ledger.change.batches(self.batch_size, "writing the ledger"):
            rows = enumerate(zip(ids, join_pairs(old, new), strict=True), place)
            self.client.insert(
                draft,
                [{"place": number, "note": json.dumps(key), _LEDGER_VECTOR: pair} for number, (key, pair) in rows],
            )
            place += len(ids)
        # The alias makes the ledger complete.
        self.client.create_alias(draft, self._ledger)

    def drop_ledger(self) -> None:
        self.client.drop_alias(self._ledger)
        self._drop_incomplete_ledgers()

    def _drop_incomplete_ledgers(self) -> None:
        """Remove ledgers without an alias."""
        pattern = re.compile(re.escape(self._ledger) + "_[0-9a-f]{12}")
        for name in filter(pattern.fullmatch, self.client.list_collections()):
            if self._has_ledger_vector(name) and not self.client.list_aliases(name)["aliases"]:
                self.client.drop_collection(name)

    def _has_ledger_vector(self, name: str) -> bool:
        """Whether a collection was created by nudgevec as a ledger."""
        return _LEDGER_VECTOR in {field["name"] for field in self.client.describe_collection(name)["fields"]}


def _literal(key: Hashable) -> str:
    """Return a key as it is written in a filter."""
    return f'"{key.translate(_ESCAPES)}"' if isinstance(key, str) else str(key)


def _check_version(client: Any, address: Address) -> None:
    version = str(client.get_server_version())
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if "lite" not in version and numbers < _PARTIAL_UPDATE:
        raise StoreError(f"{address}: the server is version {version}; partial updates need 2.6.2 or later")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of Milvus, which repeats errors that it raises and warns about harmless things."""
    loggers = [logging.getLogger(name) for name in ("pymilvus", "milvus_lite", "grpc._server")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _library() -> Any:
    # gRPC prints its errors; the client raises them too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return import_client("pymilvus", "Milvus", "milvus")
