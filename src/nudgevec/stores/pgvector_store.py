"""PostgreSQL with pgvector: a table. Ledger and vectors change in one transaction.

The ledger is a table ``NAME__nudgevec`` in the same schema. Vectors are sent in binary, and float32 is kept exactly.
The password is in the url, or where libpq looks for it: ``PGPASSWORD``, ``~/.pgpass``, a service file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import NudgeWarning, OptionError, StoreError
from nudgevec.stores.address import Address, parse_flag
from nudgevec.stores.backend import import_client, wrong_client
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import Change, Ledger, in_order, split_pairs
from nudgevec.stores.lock import BUSY
from nudgevec.stores.messages import error_text
from nudgevec.stores.pgvector_binary import COPY_HEADER, COPY_TRAILER, NUMBERS, pack_rows, unpack_vectors

log = logging.getLogger(__name__)

# An update of so many rows through an hnsw index takes a minute.
_MANY_ROWS = 5000
# A process that died a moment ago may still hold the lock.
_LOCK_TIMEOUT = "3s"
# Scans of a table return its rows in the same order each time.
_IN_ORDER = "SET synchronize_seqscans = off"
_OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_SIMILARITIES = {"cosine_ops": "cosine", "ip_ops": "dot", "l2_ops": "l2"}
_INTEGERS = ("smallint", "integer", "bigint")
_MAX_NAME_BYTES = 63

_FIND_TABLE = """
SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%s)
"""
_LIST_TABLES = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)
AND relnamespace <> 'pg_catalog'::regnamespace ORDER BY relname LIMIT 20
"""
_LIST_COLUMNS = """
SELECT attname, typname, format_type(atttypid, atttypmod), atttypmod, COALESCE(indisprimary AND indnkeyatts = 1, false)
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary AND attnum = ANY(indkey)
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_LIST_INDEXES = """
SELECT opcname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
JOIN pg_opclass ON pg_opclass.oid = indclass[0] JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = %s::regclass AND attname = %s AND amname IN ('hnsw', 'ivfflat') ORDER BY indexrelid
"""


class PgStore(Store):
    """A table with a column of vectors."""

    client_package = "psycopg"

    def __init__(
        self,
        client: Any,
        address: Address,
        id: str | None = None,
        vector: str | None = None,
        similarity: str | None = None,
        vacuum: str | bool = "yes",
    ) -> None:
        super().__init__(client, address, similarity)
        self.psycopg = _library()
        self._requested = address.require_collection("table"), id, vector
        self._vacuums = parse_flag("vacuum", vacuum)
        self._in_transaction = self._has_written = False
        self._lock_clause = ""

    @classmethod
    def connect(cls, address: Address, **libpq: str) -> Any:
        library = _library()
        address.require_collection("table")
        parts = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
            "dbname": address.path.removeprefix("/"),
        }
        given = {name: value for name, value in parts.items() if value}
        try:
            conninfo = library.conninfo.make_conninfo(**{**given, **libpq})
            connection = library.connect(conninfo, autocommit=True)
            connection.execute(_IN_ORDER)
        except library.OperationalError as error:
            raise StoreError(f"{address}: {address.hide_password(error_text(error))}") from None
        except library.ProgrammingError as error:
            raise OptionError(f"{address}: {address.hide_password(error_text(error))}") from None
        return connection

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        if not isinstance(client, _library().Connection):
            raise wrong_client("a psycopg.Connection", client)
        if client.closed:
            raise StoreError("the psycopg connection is closed")
        info = client.info
        is_socket = info.host.startswith("/")
        host, options = ("", {"host": info.host}) if is_socket else (info.host, {})
        return client, Address("postgresql", f"/{info.dbname}", collection or "", options, host, info.port)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run statements in a transaction, or in the one that is open already."""
        if self._in_transaction:
            yield
            return
        if self.client.info.transaction_status != self.psycopg.pq.TransactionStatus.IDLE:
            raise StoreError(
                f"{self.url}: the connection is inside a transaction of its own; commit it or roll it back first"
            )
        with self.client.transaction():
            self._in_transaction = True
            try:
                yield
            finally:
                self._in_transaction = False

    def _cursor(self) -> Any:
        # The connection of a caller may have other row and cursor classes.
        return self.psycopg.Cursor(self.client, row_factory=self.psycopg.rows.tuple_row)

    def _execute(self, query: str, values: Sequence[Any] = ()) -> None:
        # Also without values, %% in a query stands for %.
        self._cursor().execute(query, values, prepare=False)

    def _select(self, query: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Any]:
        with self._transaction():
            rows: list[Any] = self._cursor().execute(query, values, prepare=False, binary=binary).fetchall()
        return rows

    def _quoted(self, *parts: str) -> str:
        """Return a name for queries, in which %% stands for %."""
        return _escaped(str(self.psycopg.sql.Identifier(*parts).as_string(None)))

    def read_metadata(self) -> None:
        name, key, vector = self._requested
        self._find_table(name)
        columns = self._select(_LIST_COLUMNS, [_plain(self.table)])
        types = {name: (kind, spelled, size) for name, kind, spelled, size, _ in columns}
        key = key or self.resolve_name("id", None, [name for name, *_, primary in columns if primary] or ["id"])
        vector = vector or self.resolve_name("vector", None, [name for name, kind, *_ in columns if kind in NUMBERS])
        for column in (key, vector):
            if column not in types:
                raise StoreError(f"{self.url} has no column {column!r}; it has {', '.join(types)}")
        self._kind, spelled, self.dim = types[vector]
        if self._kind not in NUMBERS or self.dim < 1:
            raise StoreError(
                f"{self.url}: column {vector!r} is {spelled}, not vectors of equal length like vector(384)"
            )
        self._key_type = types[key][1]
        self.unique_ids = any(name == key and primary for name, *_, primary in columns)
        if self._key_type.endswith("[]"):
            raise StoreError(f"{self.url}: column {key!r} is {self._key_type}, but an id is one number or text")
        self.id_column, self.vector_column = self._quoted(key), self._quoted(vector)
        # Ids are integers, or the text of anything else.
        self._key = self.id_column if self._key_type in _INTEGERS else f"{self.id_column}::text"
        self.columns = {"id": key, "vector": vector}
        self._operators = [name for (name,) in self._select(_LIST_INDEXES, [_plain(self.table), vector])]
        known = (_SIMILARITIES.get(name.partition("_")[2]) for name in self._operators)
        self.similarity = self.resolve_similarity(next((similarity for similarity in known if similarity), None))

    def _find_table(self, requested: str) -> None:
        """Set the table, which may be anywhere on the search path, and its ledger in the same schema."""
        schema, _, name = requested.rpartition(".")
        # The name of a table may have a dot.
        for spelled in (self._quoted(requested), self._quoted(schema, name) if schema else None):
            found = self._select(_FIND_TABLE, [_plain(spelled)]) if spelled else []
            if found:
                schema, name = found[0]
                break
        else:
            raise self.not_found("table", requested, [name for (name,) in self._select(_LIST_TABLES)])
        self.table = self._quoted(schema, name)
        ledger = f"{name}__nudgevec"
        if len(ledger.encode()) > _MAX_NAME_BYTES:
            ledger = f"{name[:20]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}__nudgevec"
        self.ledger = self._quoted(schema, ledger)

    def read_ids(self) -> list[Hashable]:
        rows = self._select(f"SELECT {self._key}, {self.vector_column} IS NULL FROM {self.table}", binary=True)
        ids = [key for key, is_null in rows if not is_null]
        self.warn_without_vector(len(rows) - len(ids))
        return ids

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        n_read = 0
        # Streaming needs a second connection, and only our own can be repeated with the same settings.
        for keys, vectors in self._stream() if self.owns_client else ():
            if keys != self.ids[n_read : n_read + len(keys)]:
                break
            yield keys, vectors
            n_read += len(keys)
        # The rest is read by id, also if others wrote since the ids were read.
        yield from self.take_batches(self.ids[n_read:], self.batch_size)

    def _stream(self) -> Iterator[tuple[list[Hashable], Array]]:
        """Read the table through a cursor on the server, which needs a transaction as long as it is open."""
        info = self.client.info
        parameters = {**info.get_parameters(), "password": info.password}
        with self.psycopg.connect(**parameters) as connection, connection.cursor("nudgevec", binary=True) as cursor:
            connection.execute(_IN_ORDER)
            cursor.execute(
                f"SELECT {self._key}, {self._binary_vector} FROM {self.table} WHERE {self.vector_column} IS NOT NULL",
                (),
            )
            while rows := cursor.fetchmany(self.batch_size):
                yield self._unpack(rows)

    @property
    def _binary_vector(self) -> str:
        return f"{self._kind}_send({self.vector_column})"

    def _unpack(self, rows: list[Any]) -> tuple[list[Hashable], Array]:
        return [key for key, _ in rows], unpack_vectors([value for _, value in rows], self._kind, self.dim)

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        condition = f"{self.id_column} = ANY({self._id_list}) AND {self.vector_column} IS NOT NULL"
        query = f"SELECT {self._key}, {self._binary_vector} FROM {self.table} WHERE {condition}{self._lock_clause}"
        for batch in slices(len(ids), self.batch_size):
            rows = self._select(query, [list(ids[batch])], binary=True)
            if rows:
                yield self._unpack(rows)

    @property
    def _id_list(self) -> str:
        """The placeholder of a list of ids."""
        return "%s::bigint[]" if self._key_type in _INTEGERS else f"%s::text[]::{_escaped(self._key_type)}[]"

    def search(self, query: Array, k: int) -> list[Hashable]:
        distance = f"{self.vector_column} {_OPERATORS[self.similarity or 'cosine']} %s::{self._kind}"
        text = "[" + ",".join(map(repr, query.astype(float).tolist())) + "]"
        rows = self._select(f"SELECT {self._key} FROM {self.table} ORDER BY {distance} LIMIT %s", [text, k])
        return [key for (key,) in rows]

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        self._has_written = False
        with self._locked_transaction():
            yield
        if self._has_written and self._vacuums and self._operators:
            self._vacuum()

    @contextmanager
    def _locked_transaction(self) -> Iterator[None]:
        with self._transaction():
            [(timeout,)] = self._select("SELECT current_setting('lock_timeout')")
            self._select("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
            try:
                self._select(
                    "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"nudgevec {_plain(self.table)}"]
                )
            except self.psycopg.errors.LockNotAvailable:
                raise StoreError(f"{self.url}: {BUSY}") from None
            self._select("SELECT set_config('lock_timeout', %s, true)", [timeout])
            # Rows that are read from here on cannot change until the end of the transaction.
            self._lock_clause = " FOR UPDATE"
            try:
                yield
            finally:
                self._lock_clause = ""

    def _vacuum(self) -> None:
        """Remove the old rows from the table and from its index, whose search they hinder; only a warning if it fails.

        Without ``INDEX_CLEANUP`` PostgreSQL leaves them in the index if they are few.
        """
        log.warning("%s: vacuuming the table, so that its index finds the new vectors ...", self.url)
        autocommit, problems = self.client.autocommit, []

        def note(notice: Any) -> None:
            # Without the right to vacuum a table PostgreSQL skips it with a warning.
            if notice.severity_nonlocalized == "WARNING":
                problems.append(notice.message_primary)

        self.client.add_notice_handler(note)
        try:
            self.client.autocommit = True
            self._execute(f"VACUUM (INDEX_CLEANUP ON) {self.table}")
        except self.psycopg.Error as error:
            problems.append(error_text(error))
        finally:
            self.client.remove_notice_handler(note)
            if not self.client.closed:
                self.client.autocommit = autocommit
        for problem in problems:
            message = f"{self.url}: the vectors are written, but the table was not vacuumed: {problem}"
            warnings.warn(message, NudgeWarning, stacklevel=5)

    def write(self, change: Change) -> None:
        # The rows have been locked since they were compared with the old vectors.
        self._has_written = True
        if self._operators and len(change) >= _MANY_ROWS:
            log.warning(
                "%s: writing %s rows through the index, which takes long; dropping it first and creating it again "
                "afterwards is faster",
                self.url,
                f"{len(change):,}",
            )
        vectors = ([new] for _, _, new in change.batches(self.batch_size, "writing vectors"))
        with self._uploaded(["new_vector"], vectors) as rows:
            self._execute(
                f"UPDATE {self.table} AS old SET {self.vector_column} = new.new_vector FROM {rows} "
                f"WHERE old.{self.id_column} = new.key",
                [change.ids],
            )

    @contextmanager
    def _uploaded(self, columns: Sequence[str], batches: Iterable[Sequence[Array]]) -> Iterator[str]:
        """Upload vectors, and return what to select them ``FROM`` in a query with their ids as its parameter."""
        definitions = ", ".join(f"{name} {self._kind}({self.dim})" for name in columns)
        self._execute(f"CREATE TEMP TABLE nudgevec_rows (number bigint, {definitions}) ON COMMIT DROP")
        # WITH ORDINALITY counts from 1.
        number = 1
        for vectors in batches:
            # One COPY each, because the next batch may be read through the same connection.
            with self._cursor().copy("COPY nudgevec_rows FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(COPY_HEADER + pack_rows(number, vectors, self._kind) + COPY_TRAILER)
            number += len(vectors[0])
        self._execute("ANALYZE nudgevec_rows")
        keys = f"unnest({self._id_list}) WITH ORDINALITY AS keys (key, number)"
        yield f"(SELECT key, {', '.join(columns)} FROM nudgevec_rows JOIN {keys} USING (number)) AS new"
        self._execute("DROP TABLE nudgevec_rows")

    def read_ledger(self) -> Ledger | None:
        with self._transaction():
            [(exists, comment)] = self._select(
                "SELECT to_regclass(%s) IS NOT NULL, obj_description(to_regclass(%s))", [_plain(self.ledger)] * 2
            )
            if not exists:
                return None
            # The metadata is the comment of the table, and this its first key.
            if not str(comment).startswith('{"patch"'):
                raise self.name_taken("table", _plain(self.ledger))
            # Rows of a ledger never move, so they are read by their position in the table.
            rows = self._select(f"SELECT key, ctid::text FROM {self.ledger}", binary=True)
        return Ledger(json.loads(comment), Change([key for key, _ in rows], self._ledger_reader(rows)))

    def _ledger_reader(self, rows: list[tuple[Any, str]]) -> Callable[[Ints], tuple[Array, Array]]:
        """Return a function that reads vectors of the ledger, whose keys and places are given."""
        columns = ", ".join(f"{self._kind}_send({name})" for name in ("before", "after"))
        query = f"SELECT key, {columns} FROM {self.ledger} WHERE ctid = ANY(%s::text[]::tid[])"

        def pairs(wanted: list[tuple[Any, str]]) -> Iterator[tuple[list[Any], Array]]:
            for batch in slices(len(wanted), self.batch_size):
                found = self._select(query, [[place for _, place in wanted[batch]]], binary=True)
                vectors = [unpack_vectors([row[column] for row in found], self._kind, self.dim) for column in (1, 2)]
                yield [key for key, *_ in found], np.concatenate(vectors, axis=1)

        def read(positions: Ints) -> tuple[Array, Array]:
            wanted = [rows[position] for position in positions.tolist()]
            return split_pairs(in_order([key for key, _ in wanted], pairs(wanted)))

        return read

    def create_ledger(self, ledger: Ledger) -> None:
        key, vector = "bigint" if self._key_type in _INTEGERS else "text", f"{self._kind}({self.dim})"
        self._execute(f"CREATE TABLE {self.ledger} (key {key}, before {vector}, after {vector})")
        vectors = (pair for _, *pair in ledger.change.batches(self.batch_size, "writing the ledger"))
        with self._uploaded(["before", "after"], vectors) as rows:
            self._execute(f"INSERT INTO {self.ledger} SELECT key, before, after FROM {rows}", [ledger.ids])
        comment = self.psycopg.sql.Literal(json.dumps(ledger.metadata)).as_string(self.client)
        self._execute(f"COMMENT ON TABLE {self.ledger} IS {_escaped(comment)}")

    def drop_ledger(self) -> None:
        with self._transaction():
            self._execute(f"DROP TABLE IF EXISTS {self.ledger}")


def _escaped(text: str) -> str:
    """Return a text for queries, in which % begins a placeholder."""
    return text.replace("%", "%%")


def _plain(name: str) -> str:
    """Return a name from a query as it is, to pass it as a value."""
    return name.replace("%%", "%")


def _library() -> Any:
    return import_client("psycopg", "PostgreSQL", "pgvector")
