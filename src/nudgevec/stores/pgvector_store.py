"""PostgreSQL with pgvector: a table. Ledger and vectors change in one transaction, so a patch is there or it is not.

The ledger is a table beside the collection, ``NAME__nudgevec``. Vectors travel in binary, and float32 is kept exactly.
The password comes from wherever libpq finds it: ``PGPASSWORD``, ``~/.pgpass``, a service file, or the url.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from nudgevec.arrays import Array, slices
from nudgevec.errors import MissingExtraError, OptionError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store, told
from nudgevec.stores.ledger import Ledger

_BATCH = 4096
# Seconds to wait for another command, which may have died a moment ago.
_PATIENCE = 3
# Every scan begins at the beginning, not where another one is.
_IN_ORDER = "SET synchronize_seqscans = off"
_OPERATORS = {"cosine": "<=>", "dot": "<#>", "l2": "<->"}
_METRICS = {"cosine_ops": "cosine", "ip_ops": "dot", "l2_ops": "l2"}
_NUMBERS = {"vector": ">f4", "halfvec": ">f2"}
_WHOLE = ("smallint", "integer", "bigint")

# Bytes of a name.
_LONGEST = 63
_TABLE = """
SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%s)
"""
_TABLES = """
SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)
AND relnamespace <> 'pg_catalog'::regnamespace ORDER BY relname LIMIT 20
"""
_COLUMNS = """
SELECT attname, typname, format_type(atttypid, atttypmod), atttypmod, COALESCE(indisprimary AND indnkeyatts = 1, false)
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary AND attnum = ANY(indkey)
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_INDEXES = """
SELECT opcname, indexrelid::regclass::text, pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
JOIN pg_opclass ON pg_opclass.oid = indclass[0] JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
WHERE indrelid = %s::regclass AND attname = %s AND amname IN ('hnsw', 'ivfflat') ORDER BY indexrelid
"""


class PgStore(Store):
    """A table with a column of vectors."""

    def __init__(
        self,
        address: Address,
        id: str | None = None,
        vector: str | None = None,
        metric: str | None = None,
        rebuild: str = "no",
        **libpq: str,
    ) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("PostgreSQL", "pgvector") from None
        if rebuild not in ("yes", "no"):
            raise OptionError(f"{address}: rebuild is yes or no, not {rebuild!r}")
        self.psycopg: Any = psycopg
        self.url = str(address)
        self.rebuild = rebuild == "yes"
        self._asked = address.named("table"), id, vector, metric
        self._locking = ""
        self._conninfo = _conninfo(address, libpq)
        try:
            self.connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
            self.connection.execute(_IN_ORDER)
        except psycopg.OperationalError as error:
            raise StoreError(f"{self.url}: {address.hidden(told(error))}") from None
        except psycopg.ProgrammingError:
            raise OptionError(f"{self.url}: PostgreSQL does not understand this address") from None
        self._ends_with(self.connection.close)
        self.refresh()

    def _name(self, *parts: str) -> str:
        return str(self.psycopg.sql.Identifier(*parts).as_string(None))

    def _rows(self, query: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Any]:
        found: list[Any] = self.connection.execute(query, values, binary=binary).fetchall()
        return found

    def _find(self, asked: str) -> None:
        """The table, wherever the search path finds it; its ledger is in the same schema."""
        schema, _, name = asked.rpartition(".")
        # A table may have a dot in its name.
        for spelled in (self._name(asked), self._name(schema, name) if schema else None):
            found = self._rows(_TABLE, [spelled]) if spelled else []
            if found:
                schema, name = found[0]
                break
        else:
            there = ", ".join(each for (each,) in self._rows(_TABLES)) or "none"
            raise StoreError(f"{self.url}: there is no table {asked!r}; tables here: {there}")
        self.table = self._name(schema, name)
        ledger = f"{name}__nudgevec"
        if len(ledger.encode()) > _LONGEST:
            ledger = f"{name[:20]}_{hashlib.sha256(name.encode()).hexdigest()[:12]}__nudgevec"
        self.ledger = self._name(schema, ledger)

    def look(self) -> None:
        asked, key, vector, metric = self._asked
        self._find(asked)
        columns = self._rows(_COLUMNS, [self.table])
        names = {name: (kind, spelled, size) for name, kind, spelled, size, _ in columns}
        key = key or self._only("id", [name for name, *_, primary in columns if primary] or ["id"])
        vector = vector or self._only("vector", [name for name, kind, *_ in columns if kind in _NUMBERS])
        for column in (key, vector):
            if column not in names:
                raise StoreError(f"{self.url} has no column {column!r}; it has {', '.join(names)}")
        self._kind, _, self.dim = names[vector]
        if self._kind not in _NUMBERS or self.dim < 1:
            spelled = names[vector][1]
            raise StoreError(f"{self.url}: column {vector!r} is {spelled}, not vectors of one length like vector(384)")
        self._key_type = names[key][1]
        self.id_column, self.vector_column = self._name(key), self._name(vector)
        # Whole numbers are ids as they are, anything else is its text.
        self._key = self.id_column if self._key_type in _WHOLE else f"{self.id_column}::text"
        self.place = {"id": key, "vector": vector}
        self._indexes = self._rows(_INDEXES, [self.table, vector])
        known = (_METRICS.get(name.partition("_")[2]) for name, *_ in self._indexes)
        self.metric = self.agreed_metric(metric, next((each for each in known if each), None))

    def read_ids(self) -> list[Hashable]:
        found = self._rows(f"SELECT {self._key}, {self.vector_column} IS NULL FROM {self.table}", binary=True)
        ids = [key for key, empty in found if not empty]
        self.leave_out(len(found) - len(ids))
        return ids

    def _only(self, what: str, names: Sequence[str]) -> str:
        if len(names) != 1:
            raise StoreError(
                f"{self.url}: which column is the {what}? say ?{what}=NAME ({', '.join(names) or 'none fits'})"
            )
        return names[0]

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        done = 0
        for keys, vectors in self._stream():
            if keys != self.ids[done : done + len(keys)]:
                break
            yield keys, vectors
            done += len(keys)
        # Others wrote since the ids were read: the rest is asked for by name.
        yield from self.taken(self.ids[done:], _BATCH)

    def _stream(self) -> Iterator[tuple[list[Hashable], Array]]:
        # The server hands out block by block, within a transaction of its own.
        with self.psycopg.connect(self._conninfo) as connection, connection.cursor("nudgevec", binary=True) as cursor:
            connection.execute(_IN_ORDER)
            cursor.execute(f"SELECT {self._key}, {self._sent} FROM {self.table} WHERE {self.vector_column} IS NOT NULL")
            while block := cursor.fetchmany(_BATCH):
                yield self._unpacked(block)

    @property
    def _sent(self) -> str:
        return f"{self._kind}_send({self.vector_column})"

    def _unpacked(self, block: list[Any]) -> tuple[list[Hashable], Array]:
        row = np.dtype([("head", ">u4"), ("vector", _NUMBERS[self._kind], (self.dim,))])
        vectors = np.frombuffer(b"".join(sent for _, sent in block), row)["vector"]
        return [key for key, _ in block], vectors.astype(vectors.dtype.newbyteorder("="))

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        named = f"{self.id_column} = ANY({self._keys}) AND {self.vector_column} IS NOT NULL"
        query = f"SELECT {self._key}, {self._sent} FROM {self.table} WHERE {named}"
        for part in slices(len(ids), _BATCH):
            found = self._rows(query + self._locking, [list(ids[part])], binary=True)
            if found:
                yield self._unpacked(found)

    @property
    def _keys(self) -> str:
        """A parameter for a list of ids."""
        return "%s::bigint[]" if self._key_type in _WHOLE else f"%s::text[]::{self._key_type}[]"

    def search(self, query: Array, count: int) -> list[Hashable]:
        nearest = f"{self.vector_column} {_OPERATORS[self.metric or 'cosine']} %s::{self._kind}"
        text = "[" + ",".join(map(repr, query.astype(float).tolist())) + "]"
        found = self._rows(f"SELECT {self._key} FROM {self.table} ORDER BY {nearest} LIMIT %s", [text, count])
        return [key for (key,) in found]

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self.connection.transaction():
            self.connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}s'")
            try:
                self._rows("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"nudgevec {self.table}"])
            except self.psycopg.errors.LockNotAvailable:
                raise StoreError(f"{self.url}: somebody else is putting a patch on or taking one back") from None
            self.connection.execute("SET LOCAL lock_timeout TO DEFAULT")
            # What is read from here on stays as it is until the end.
            self._locking = " FOR UPDATE"
            try:
                yield
            finally:
                self._locking = ""

    def write(self, ids: Sequence[Any], old: Array, new: Array) -> None:
        # The rows were locked when they were read.
        indexes = [(name, definition) for _, name, definition in self._indexes if self.rebuild]
        for name, _ in indexes:
            self.connection.execute(f"DROP INDEX {name}")
        with self._uploaded(ids, new) as rows:
            self.connection.execute(
                f"UPDATE {self.table} AS old SET {self.vector_column} = new.first FROM {rows} "
                f"WHERE old.{self.id_column} = new.key",
                [list(ids)],
            )
        for _, definition in indexes:
            self.connection.execute(definition)

    @contextmanager
    def _uploaded(self, ids: Sequence[Any], first: Array, second: Array | None = None) -> Iterator[str]:
        """Rows of ids and vectors, to read ``FROM`` in one query that takes the ids as its parameter."""
        columns = [first] if second is None else [first, second]
        names = ("first", "second")[: len(columns)]
        kinds = ", ".join(f"{name} {self._kind}({self.dim})" for name in names)
        self.connection.execute(f"CREATE TEMP TABLE nudgevec_rows (place bigint, {kinds}) ON COMMIT DROP")
        with self.connection.cursor().copy("COPY nudgevec_rows FROM STDIN (FORMAT BINARY)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for part in slices(len(ids), _BATCH):
                copy.write(self._packed(part.start, [column[part] for column in columns]))
            copy.write(b"\xff\xff")
        self.connection.execute("ANALYZE nudgevec_rows")
        keyed = f"unnest({self._keys}) WITH ORDINALITY AS keys (key, place)"
        yield f"(SELECT key, {', '.join(names)} FROM nudgevec_rows JOIN {keyed} USING (place)) AS new"
        self.connection.execute("DROP TABLE nudgevec_rows")

    def _packed(self, start: int, columns: list[Array]) -> bytes:
        """Rows as the binary COPY takes them: how many fields, then each with its length."""
        number = np.dtype(_NUMBERS[self._kind])
        fields: list[Any] = [("fields", ">i2"), ("place_length", ">i4"), ("place", ">i8")]
        for place in range(len(columns)):
            fields += [(f"length{place}", ">i4"), (f"dim{place}", ">i2"), (f"zero{place}", ">i2")]
            fields += [(f"vector{place}", number, (self.dim,))]
        rows = np.zeros(len(columns[0]), fields)
        rows["fields"], rows["place_length"] = 1 + len(columns), 8
        rows["place"] = np.arange(start + 1, start + 1 + len(rows))
        for place, column in enumerate(columns):
            rows[f"length{place}"], rows[f"dim{place}"] = 4 + number.itemsize * self.dim, self.dim
            rows[f"vector{place}"] = column
        return rows.tobytes()

    def read_ledger(self) -> Ledger | None:
        there, facts = self._rows(
            "SELECT to_regclass(%s) IS NOT NULL, obj_description(to_regclass(%s))", [self.ledger] * 2
        )[0]
        if not there:
            return None
        if not str(facts).startswith('{"patch"'):
            raise StoreError(f"{self.url}: the table {self.ledger} is in the way, and nudgevec did not make it")
        sent = (f"{self._kind}_send({name})" for name in ("before", "after"))
        rows = self._rows(f"SELECT key, {', '.join(sent)} FROM {self.ledger}", binary=True)
        ids, before, after = zip(*rows, strict=True) if rows else ((), (), ())
        columns = (self._unpacked([(None, each) for each in column])[1] for column in (before, after))
        return Ledger(json.loads(facts), list(ids), *columns)

    def make_ledger(self, ledger: Ledger) -> None:
        kind, vector = "bigint" if self._key_type in _WHOLE else "text", f"{self._kind}({self.dim})"
        self.connection.execute(f"CREATE TABLE {self.ledger} (key {kind}, before {vector}, after {vector})")
        with self._uploaded(ledger.ids, ledger.before, ledger.after) as rows:
            insert = f"INSERT INTO {self.ledger} SELECT key, first, second FROM {rows}"
            self.connection.execute(insert, [list(ledger.ids)])
        note = self.psycopg.sql.Literal(json.dumps(ledger.facts)).as_string(self.connection)
        self.connection.execute(f"COMMENT ON TABLE {self.ledger} IS {note}")

    def drop_ledger(self) -> None:
        self.connection.execute(f"DROP TABLE IF EXISTS {self.ledger}")


def _conninfo(address: Address, options: dict[str, str]) -> str:
    user = "" if address.user is None else quote(address.user, safe="")
    secret = "" if address.password is None else f":{quote(address.password, safe='')}"
    port = "" if address.port is None else f":{address.port}"
    place = f"{user}{secret}@{address.host}{port}" if user or secret else f"{address.host}{port}"
    return f"postgresql://{place}{quote(address.path)}?{urlencode(options)}"
