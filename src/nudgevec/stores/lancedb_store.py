"""LanceDB: a table in a local folder. A patch is one commit, a large one several; the ledger is a table beside it.

LanceDB keeps float32 exactly. The columns are called ``id`` and ``vector`` unless the options say otherwise. A table
without an index does not state its similarity; the option ``similarity`` does.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
import uuid
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import OptionError, StoreError
from nudgevec.files import draft_folder, sync_folder
from nudgevec.stores.address import Address
from nudgevec.stores.backend import import_client, wrong_client
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import Change, Ledger, in_order, split_pairs
from nudgevec.stores.lock import locked

_READ_AHEAD_BYTES = 32 << 20
_MAX_COMMITS = 20
_FOREVER = timedelta(days=36500)
_LEDGER_KEY = b"nudgevec"
"""The key of the table metadata of a ledger, by which it is recognised."""
# The key of the name of the embedder in the metadata of a table.
_EMBEDDER = b"nudgevec.embedder"


class LanceStore(Store):
    """A table of LanceDB in a local folder."""

    client_package = "lancedb"
    commit_bytes: int = 16 << 20
    """Size of the new vectors of one commit, which LanceDB keeps in memory several times."""

    def __init__(
        self, client: Any, address: Address, id: str = "id", vector: str = "vector", similarity: str | None = None
    ) -> None:
        super().__init__(client, address, similarity)
        self.arrow: Any = import_client("pyarrow", "LanceDB", "lancedb")
        import_client("pyarrow.compute", "LanceDB", "lancedb")
        self.folder, self.name = Path(address.local_path), address.require_collection("table")
        self.id_column, self.vector_column = id, vector
        self.columns = {"id": id, "vector": vector}

    @classmethod
    def connect(cls, address: Address) -> Any:
        library = _library()
        address.require_collection("table")
        if not Path(address.local_path).is_dir():
            raise StoreError(f"there is no LanceDB folder at {address.local_path}")
        return library.connect(address.local_path)

    @staticmethod
    def disconnect(client: Any) -> None:
        """Nothing to close: LanceDB reads and writes files."""

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        library = _library()
        if isinstance(client, library.table.LanceTable):
            return cls._adopt_table(client, collection)
        if not isinstance(client, library.db.LanceDBConnection):
            raise wrong_client("a LanceDB table or connection", client)
        return client, Address("lancedb", _local_folder(client.uri), collection or "", {})

    @classmethod
    def _adopt_table(cls, table: Any, collection: str | None) -> tuple[Any, Address]:
        """Connect to the folder of a table: the ledger is another table there."""
        if collection not in (None, table.name):
            raise OptionError(f"collection={collection!r} contradicts the LanceDB table {table.name!r}")
        branch = getattr(table, "current_branch", lambda: None)()
        if branch not in (None, "main"):
            raise OptionError(f"the LanceDB table {table.name!r} is on branch {branch!r}: only main can be patched")
        folder, file = os.path.split(_local_folder(table.uri))
        if file != f"{table.name}.lance":
            raise OptionError(f"the LanceDB table {table.name!r} is not directly in the folder of its database")
        return _library().connect(folder), Address("lancedb", folder, table.name, {})

    def read_metadata(self) -> None:
        try:
            self.table = self.client.open_table(self.name)
        except (ValueError, FileNotFoundError):
            raise self.not_found("table", self.name, self._table_names()) from None
        names = self.table.schema.names
        for column in (self.id_column, self.vector_column):
            if column not in names:
                raise StoreError(f"{self.url} has no column {column!r}; it has {', '.join(names)}")
        kind = self.table.schema.field(self.vector_column).type
        if not self.arrow.types.is_fixed_size_list(kind) or not self.arrow.types.is_floating(kind.value_type):
            raise StoreError(f"{self.url}: column {self.vector_column!r} is {kind}, not vectors of equal length")
        self.dim = int(kind.list_size)
        embedder = (self.table.schema.metadata or {}).get(_EMBEDDER)
        self.embedder = None if embedder is None else embedder.decode(errors="replace")
        # All reads until the next refresh see this version.
        self.table.checkout(self.table.version)
        self.similarity = self.resolve_similarity(self._index_similarity())

    def read_ids(self) -> list[Hashable]:
        n_without_vector = self.table.count_rows(f"{_quoted(self.vector_column)} IS NULL")
        self.warn_without_vector(n_without_vector)
        # A condition on the vectors reads all of them.
        batches = self._scan([self.id_column]) if n_without_vector else self._rows([self.id_column]).to_batches()
        return [key for batch in batches for key in batch.column(0).to_pylist()]

    def _index_similarity(self) -> str | None:
        for index in self.table.list_indices():
            if self.vector_column in index.columns:
                stats = self.table.index_stats(index.name)
                return None if stats is None or stats.distance_type is None else str(stats.distance_type).lower()
        return None

    def _table_names(self) -> list[str]:
        return [str(name) for name in self.client.list_tables().tables]

    def _rows(self, columns: list[str]) -> Any:
        return self.table.search().select(columns)

    def _scan(self, columns: list[str]) -> Iterator[Any]:
        """Yield the rows with a vector in batches."""
        rows = self._rows(columns).where(f"{_quoted(self.vector_column)} IS NOT NULL")
        yield from rows.to_batches(batch_size=self.batch_size)

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for batch in self._scan([self.id_column, self.vector_column]):
            yield batch.column(self.id_column).to_pylist(), self._vectors(batch.column(self.vector_column))

    def _vectors(self, column: Any) -> Array:
        vectors: Array = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), self.dim)
        return vectors

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        # One scan of the ids finds the rows; a filter by ids would scan the table once per filter.
        rows = self.table.search().select([self.id_column]).with_row_id(True).to_arrow()
        keys = rows[self.id_column]
        matches = self.arrow.compute.is_in(keys, self.arrow.array(ids, keys.type))
        row_ids = rows["_rowid"].filter(matches).to_numpy()
        for part in slices(len(row_ids), self.batch_size):
            query = self.table.take_row_ids(row_ids[part].tolist()).select([self.id_column, self.vector_column])
            for batch in query.to_batches(max_batch_length=self.batch_size):
                found = batch.filter(batch.column(self.vector_column).is_valid())
                yield found.column(self.id_column).to_pylist(), self._vectors(found.column(self.vector_column))

    def search(self, query: Array, k: int) -> list[Hashable]:
        nearest: Any = self.table.search(query, vector_column_name=self.vector_column)
        rows = nearest.distance_type(self.similarity or "cosine").select([self.id_column, "_distance"])
        return list(rows.limit(k).to_arrow()[self.id_column].to_pylist())

    def write(self, change: Change) -> None:
        rows = max(1, self.commit_bytes // (4 * self.dim))
        for ids, old, new in change.batches(rows, "writing vectors"):
            version = self._commit(ids, new)
            # The previous version shows which rows others changed just before the commit: their vectors are restored.
            self.table.checkout(version - 1)
            before = dict(zip(ids, old, strict=True))
            changed: dict[Hashable, Array] = {}
            for keys, vectors in self.fetch(ids):
                is_old = self.equal_rows(vectors, np.stack([before[key] for key in keys]))
                changed.update((keys[row], vectors[row]) for row in np.flatnonzero(~is_old).tolist())
            if changed:
                self._commit(list(changed), np.stack([*changed.values()]))

    def _commit(self, ids: Sequence[Any], vectors: Array) -> int:
        """Commit new vectors, and return the version of the table that has them."""
        schema = self.client.open_table(self.name).schema
        rows = self.arrow.table(
            {
                self.id_column: self.arrow.array(list(ids), schema.field(self.id_column).type),
                self.vector_column: self._column(vectors, schema.field(self.vector_column).type),
            }
        )
        for attempt in range(_MAX_COMMITS):
            table = self.client.open_table(self.name)
            try:
                return int(table.merge_insert(self.id_column).when_matched_update_all().execute(rows).version)
            except RuntimeError as error:
                # Another writer committed first.
                if "conflict" not in str(error).lower():
                    raise
            time.sleep(0.05 * 2 ** min(attempt, 6) * random.random())
        raise StoreError(f"{self.url}: {_MAX_COMMITS} commits failed because of other writers; run it again")

    def _column(self, vectors: Array, kind: Any) -> Any:
        flat = self.arrow.array(np.ascontiguousarray(vectors).ravel(), kind.value_type)
        return self.arrow.FixedSizeListArray.from_arrays(flat, type=kind)

    def exclusive(self) -> AbstractContextManager[None]:
        return locked(self.folder / f".{self.name}.nudgevec-lock", self.url)

    def update_index(self) -> None:
        # Old versions belong to the user and are kept.
        self.client.open_table(self.name).optimize(cleanup_older_than=_FOREVER)

    def read_ledger(self) -> Ledger | None:
        name = self._find_ledger()
        if name is None:
            return None
        table = self.client.open_table(name)
        ids = table.search().select(["id"]).to_arrow()["id"].to_pylist()

        def read(positions: Ints) -> tuple[Array, Array]:
            rows = table.take_offsets(positions.tolist()).select(["id", "before", "after"]).to_batches()
            keys = [ids[position] for position in positions.tolist()]
            return split_pairs(in_order(keys, ((batch.column("id").to_pylist(), self._pairs(batch)) for batch in rows)))

        return Ledger(json.loads(table.schema.metadata[_LEDGER_KEY]), Change(ids, read))

    def _pairs(self, batch: Any) -> Array:
        return np.concatenate([self._vectors(batch.column(name)) for name in ("before", "after")], axis=1)

    def create_ledger(self, ledger: Ledger) -> None:
        kinds = [self.table.schema.field(column).type for column in (self.id_column, self.vector_column)]
        fields = zip(("id", "before", "after"), (*kinds, kinds[-1]), strict=True)
        schema = self.arrow.schema(fields, {_LEDGER_KEY: json.dumps(ledger.metadata)})
        batches = (
            self.arrow.record_batch(
                [self.arrow.array(ids, kinds[0]), *(self._column(vectors, kinds[1]) for vectors in pair)], schema=schema
            )
            for ids, *pair in ledger.change.batches(self.batch_size, "writing the ledger")
        )
        rows = self.arrow.RecordBatchReader.from_batches(schema, batches)
        name = f"{self.name}__nudgevec_{uuid.uuid4().hex[:12]}"
        # Creating a table takes several steps, renaming its folder only one.
        with self._draft_folder() as draft:
            _library().connect(str(draft)).create_table(name, rows)
            os.rename(draft / f"{name}.lance", self._table_folder(name))
            sync_folder(self.folder)

    def drop_ledger(self) -> None:
        name = self._find_ledger()
        if name is not None:
            with self._draft_folder() as draft:
                os.rename(self._table_folder(name), draft / f"{name}.lance")
                sync_folder(self.folder)

    def _draft_folder(self) -> AbstractContextManager[Path]:
        return draft_folder(self.folder / f".{self.name}.nudgevec-draft")

    def _find_ledger(self) -> str | None:
        """Return the name of the ledger; its metadata distinguishes it from tables of others."""
        pattern = re.compile(re.escape(self.name) + "__nudgevec_[0-9a-f]{12}")
        for name in filter(pattern.fullmatch, self._table_names()):
            if _LEDGER_KEY in (self.client.open_table(name).schema.metadata or {}):
                return name
        return None

    def _table_folder(self, table: str) -> Path:
        return self.folder / f"{table}.lance"


def create(address: Address, ids: Sequence[str], texts: Sequence[str] | None, vectors: Array, embedder: str) -> None:
    """Create a table with the columns ``id``, ``vector`` and, if there are texts, ``text``; it records its embedder."""
    library, arrow = _library(), import_client("pyarrow", "LanceDB", "lancedb")
    database, name = library.connect(address.local_path), address.require_collection("table")
    if name in database.list_tables().tables:
        raise StoreError(f"{address} exists already: choose another name, or drop the table first")
    flat = arrow.array(np.ascontiguousarray(vectors, np.float32).ravel())
    columns: dict[str, Any] = {"id": list(ids)}
    if texts is not None:
        columns["text"] = list(texts)
    columns["vector"] = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    database.create_table(name, arrow.table(columns).replace_schema_metadata({_EMBEDDER: embedder}))


def _library() -> Any:
    # By default a scan reads up to two gigabytes ahead.
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(_READ_AHEAD_BYTES))
    return import_client("lancedb", "LanceDB", "lancedb")


def _local_folder(uri: str) -> str:
    """Return the path of a folder on this machine."""
    path = uri.removeprefix("file://")
    if "://" in path:
        raise OptionError(f"{uri} is not a local folder, and LanceDB tables elsewhere cannot be patched")
    return os.path.abspath(path)


def _quoted(column: str) -> str:
    return f"`{column}`"
