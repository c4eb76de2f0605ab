"""LanceDB: a folder with tables. A patch is one commit; the ledger is a table beside the collection.

LanceDB keeps float32 exactly. ``id`` and ``vector`` are the usual columns. A table without an index does not say how
it is searched: then ``metric`` in the url does.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, slices
from nudgevec.errors import MissingExtraError, StoreError
from nudgevec.files import sync_folder
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import Ledger
from nudgevec.stores.lock import locked

_BATCH = 4096
_ASKED = 1000
_TRIES = 20
_FOR_EVER = timedelta(days=36500)


class LanceStore(Store):
    """A table of a LanceDB folder."""

    def __init__(self, address: Address, id: str = "id", vector: str = "vector", metric: str | None = None) -> None:
        lancedb, pyarrow = _libraries()
        self.path, self.url = address.host + address.path, str(address)
        self.name, self.id_column, self.vector_column = address.named("table"), id, vector
        if not Path(self.path).is_dir():
            raise StoreError(f"there is no LanceDB folder at {self.path}")
        self.arrow: Any = pyarrow
        self.database = lancedb.connect(self.path)
        self._asked_metric = metric
        self.place = {"id": id, "vector": vector}
        self.refresh()

    def look(self) -> None:
        try:
            self.table = self.database.open_table(self.name)
        except (ValueError, FileNotFoundError):
            there = ", ".join(self._tables()) or "none"
            raise StoreError(f"{self.url}: there is no table {self.name!r}; tables here: {there}") from None
        names = self.table.schema.names
        for column in (self.id_column, self.vector_column):
            if column not in names:
                raise StoreError(f"{self.url} has no column {column!r}; it has {', '.join(names)}")
        kind = self.table.schema.field(self.vector_column).type
        if not self.arrow.types.is_fixed_size_list(kind) or not self.arrow.types.is_floating(kind.value_type):
            raise StoreError(f"{self.url}: column {self.vector_column!r} is {kind}, not vectors of one length")
        self.dim = int(kind.list_size)
        # What is read is this version, whatever others write meanwhile.
        self.table.checkout(self.table.version)
        self.metric = self.agreed_metric(self._asked_metric, self._index_metric())

    def read_ids(self) -> list[Hashable]:
        self.leave_out(self.table.count_rows(f"{_quoted(self.vector_column)} IS NULL"))
        return [key for batch in self._scan([self.id_column]) for key in batch.column(0).to_pylist()]

    def _index_metric(self) -> str | None:
        for index in self.table.list_indices():
            if self.vector_column in index.columns:
                found = self.table.index_stats(index.name)
                return None if found is None or found.distance_type is None else str(found.distance_type).lower()
        return None

    def _tables(self) -> list[str]:
        return [str(name) for name in self.database.list_tables().tables]

    def _scan(self, columns: list[str]) -> Iterator[Any]:
        there = self.table.search().where(f"{_quoted(self.vector_column)} IS NOT NULL")
        yield from there.select(columns).to_batches(batch_size=_BATCH)

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for batch in self._scan([self.id_column, self.vector_column]):
            yield batch.column(self.id_column).to_pylist(), self._vectors(batch.column(self.vector_column))

    def _vectors(self, column: Any) -> Array:
        flat: Array = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), self.dim)
        return flat

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for part in slices(len(ids), _ASKED):
            wanted = ", ".join(_literal(key) for key in ids[part])
            named = f"{_quoted(self.id_column)} IN ({wanted}) AND {_quoted(self.vector_column)} IS NOT NULL"
            query = self.table.search().where(named)
            for batch in query.select([self.id_column, self.vector_column]).to_batches():
                yield batch.column(self.id_column).to_pylist(), self._vectors(batch.column(self.vector_column))

    def search(self, query: Array, count: int) -> list[Hashable]:
        nearest: Any = self.table.search(query, vector_column_name=self.vector_column)
        chosen = nearest.distance_type(self.metric or "cosine").select([self.id_column, "_distance"])
        found = chosen.limit(count).to_arrow()
        return list(found[self.id_column].to_pylist())

    def write(self, ids: Sequence[Any], old: Array, new: Array) -> None:
        commit = self._merge(ids, new)
        # The version before ours tells whether somebody changed a row in the last moment: what was theirs is put back.
        self.table.checkout(commit - 1)
        theirs = self.found(ids)
        places = [place for place, key in enumerate(ids) if key in theirs]
        if places:
            vectors = np.stack([theirs[ids[place]] for place in places])
            changed = np.flatnonzero(~self.same(vectors, old[places])).tolist()
            if changed:
                self._merge([ids[places[place]] for place in changed], vectors[changed])

    def _merge(self, ids: Sequence[Any], vectors: Array) -> int:
        """Commit new vectors; returns the version that has them."""
        schema = self.database.open_table(self.name).schema
        rows = self.arrow.table(
            {
                self.id_column: self.arrow.array(list(ids), schema.field(self.id_column).type),
                self.vector_column: self._column(vectors, schema.field(self.vector_column).type),
            }
        )
        for turn in range(_TRIES):
            table = self.database.open_table(self.name)
            try:
                return int(table.merge_insert(self.id_column).when_matched_update_all().execute(rows).version)
            except RuntimeError as error:
                # Others commit all the time: wait for a gap.
                if "conflict" not in str(error).lower():
                    raise
            time.sleep(0.05 * 2 ** min(turn, 6) * random.random())
        raise StoreError(f"{self.url}: others write so much that the patch could not be committed; run it again")

    def _column(self, vectors: Array, kind: Any) -> Any:
        flat = self.arrow.array(np.ascontiguousarray(vectors).ravel(), kind.value_type)
        return self.arrow.FixedSizeListArray.from_arrays(flat, type=kind)

    def alone(self) -> AbstractContextManager[None]:
        return locked(Path(self.path) / f".{self.name}.nudgevec-lock", self.url)

    def settle(self) -> None:
        # Old versions are the user's: none is cleaned up.
        self.database.open_table(self.name).optimize(cleanup_older_than=_FOR_EVER)

    def read_ledger(self) -> Ledger | None:
        name = self._ledger()
        if name is None:
            return None
        found = self.database.open_table(name).to_arrow()
        facts = json.loads(found.schema.metadata[b"nudgevec"])
        columns = (self._vectors(found[column].combine_chunks()) for column in ("before", "after"))
        return Ledger(facts, found["id"].to_pylist(), *columns)

    def make_ledger(self, ledger: Ledger) -> None:
        schema = self.table.schema
        kind = schema.field(self.vector_column).type
        rows = self.arrow.table(
            {
                "id": self.arrow.array(ledger.ids, schema.field(self.id_column).type),
                "before": self._column(ledger.before, kind),
                "after": self._column(ledger.after, kind),
            }
        ).replace_schema_metadata({"nudgevec": json.dumps(ledger.facts)})
        # Making a table takes several steps, giving it its name only one: the ledger is there or not.
        number = uuid.uuid4().hex[:12]
        draft = f"{self.name}__draft_{number}"
        self.database.create_table(draft, rows)
        os.rename(self._folder(draft), self._folder(f"{self.name}__nudgevec_{number}"))
        sync_folder(Path(self.path))

    def drop_ledger(self) -> None:
        name = self._ledger()
        if name is not None:
            os.rename(self._folder(name), self._folder(name.replace("__nudgevec_", "__draft_")))
        for debris in self._named("draft"):
            shutil.rmtree(self._folder(debris), ignore_errors=True)

    def _ledger(self) -> str | None:
        return next(iter(self._named("nudgevec")), None)

    def _named(self, kind: str) -> list[str]:
        pattern = re.compile(re.escape(self.name) + f"__{kind}_[0-9a-f]{{12}}")
        return [name for name in self._tables() if pattern.fullmatch(name)]

    def _folder(self, table: str) -> Path:
        return Path(self.path) / f"{table}.lance"


def create(address: Address, ids: Sequence[str], texts: Sequence[str] | None, vectors: Array) -> None:
    """A new table with the usual columns."""
    lancedb, pyarrow = _libraries()
    database, name = lancedb.connect(address.host + address.path), address.named("table")
    if name in database.list_tables().tables:
        raise StoreError(f"{address} is there already: choose another name, or drop the table first")
    flat = pyarrow.array(np.ascontiguousarray(vectors, np.float32).ravel())
    columns: dict[str, Any] = {"id": list(ids)}
    if texts is not None:
        columns["text"] = list(texts)
    columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    database.create_table(name, pyarrow.table(columns))


def _libraries() -> tuple[Any, Any]:
    try:
        import lancedb
        import pyarrow
    except ImportError:
        raise MissingExtraError("LanceDB", "lancedb") from None
    return lancedb, pyarrow


def _quoted(column: str) -> str:
    return f"`{column}`"


def _literal(key: Hashable) -> str:
    return str(key) if isinstance(key, int) else "'" + str(key).replace("'", "''") + "'"
