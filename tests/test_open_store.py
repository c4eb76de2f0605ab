"""Opening stores: with the client objects of their libraries, and stores of other packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psycopg
import pytest
from psycopg.rows import dict_row

from nudgevec import NudgeN, open_store
from nudgevec.errors import OptionError, StoreError
from nudgevec.stores import SCHEMES, STORES, is_store, recall
from real_stores import STORES as REAL_STORES
from real_stores import Chroma, Lance, Postgres, Qdrant
from test_stores import DIM, do, patch_for, same, vectors
from tiny_store import TinyStore


@pytest.fixture(params=[name for name in REAL_STORES if "faiss" not in name])
def store(request, tmp_path):
    return REAL_STORES[request.param](tmp_path)


def test_a_client_is_used_and_stays_open(store):
    store.fill(vectors(rows=store.rows))
    before, patch = store.everything(), patch_for(store)
    with store.clients() as (clients, counts):
        assert clients
        for client, collection in clients:
            with open_store(client, collection) as opened:
                original = np.concatenate([vectors for _, vectors in opened.blocks()])
                assert opened.apply(patch).applied == opened.verify(patch).applied == len(patch)
                np.testing.assert_allclose(opened.take(patch.ids), patch.after, rtol=0, atol=2 * store.tolerance)
                assert recall(opened, patch.after[:5]) > 0.9
                assert opened.original().ids == opened.ids
                assert opened.status().is_applied
                assert opened.revert().original == len(patch)
                restored = np.concatenate([vectors for _, vectors in opened.blocks()])
            assert sorted(map(tuple, restored.tolist())) == sorted(map(tuple, original.tolist())) or store.tolerance
        assert counts() == [store.rows] * len(clients)
    store.release()
    assert same(store, store.everything(), before, patch.ids)


def test_a_patch_that_a_client_applied_is_reverted_by_url(store):
    store.fill(vectors(rows=store.rows))
    before, patch = store.everything(), patch_for(store)
    with store.clients() as (clients, _), open_store(*clients[-1]) as opened:
        opened.apply(patch)
    store.release()
    assert do(store, "status").applied == len(patch)
    assert do(store, "revert", patch).original == len(patch)
    assert same(store, store.everything(), before, patch.ids)


def test_clients_and_urls_take_the_same_lock(store):
    """A store opened with a client waits for one opened by its url, and the other way round."""
    if not store.shared or type(store).__name__ == "Milvus":
        pytest.skip("one client at a time")
    store.fill(vectors(rows=store.rows))
    with store.clients() as (clients, _):
        for client, collection in clients:
            with open_store(client, collection) as one, open_store(store.url) as other:
                for first, second in ((one, other), (other, one)):
                    with first.exclusive(), pytest.raises(StoreError, match="another process is applying"):
                        second.apply(None)


def test_collections_in_memory():
    import chromadb
    from qdrant_client import QdrantClient, models

    made = vectors(rows=60)
    qdrant, chroma = QdrantClient(":memory:"), chromadb.EphemeralClient()
    size = models.VectorParams(size=DIM, distance=models.Distance.DOT)
    qdrant.create_collection("docs", vectors_config=size)
    points = [models.PointStruct(id=row, vector=vector.tolist()) for row, vector in enumerate(made)]
    qdrant.upsert("docs", points)
    collection = chroma.create_collection("docs", embedding_function=None)
    collection.add([str(row) for row in range(60)], embeddings=made)
    for opened in (open_store(qdrant, "docs"), open_store(collection)):
        assert ":memory:" in opened.url
        patch = NudgeN(gamma=0.1).fit(opened, (made[1:6], [[key] for key in opened.ids[:5]])).patch_
        assert opened.apply(patch).applied == len(patch) > 0
        assert opened.revert().original == len(patch)
        opened.close()
    assert (qdrant.count("docs").count, collection.count()) == (60, 60)
    chroma.close()
    qdrant.close()


@pytest.mark.parametrize("autocommit", [False, True])
def test_psycopg_connections_keep_their_transactions_and_settings(tmp_path, autocommit):
    store = Postgres(tmp_path)
    store.fill(vectors())
    patch = patch_for(store)
    idle = psycopg.pq.TransactionStatus.IDLE
    with psycopg.connect(store.uri, autocommit=autocommit, row_factory=dict_row) as connection:
        connection.execute("SET lock_timeout = '7s'")
        connection.commit()
        opened = open_store(connection, "docs")
        connection.execute("UPDATE docs SET text = 'mine' WHERE id = %s", [patch.ids[0]])
        if not autocommit:
            for verb in (opened.apply, opened.verify):
                with pytest.raises(StoreError, match="inside a transaction of its own; commit it or roll it back"):
                    verb(patch)
            with pytest.raises(StoreError, match="inside a transaction"):
                open_store(connection, "docs")
            assert store.everything()[patch.ids[0]]["text"] != "mine", "nudgevec does not commit for others"
            connection.commit()
        with connection.transaction(), pytest.raises(StoreError, match="inside a transaction"):
            opened.apply(patch)
        assert opened.apply(patch).applied == len(patch)
        assert connection.info.transaction_status == idle
        assert do(store, "status").applied == len(patch), "the patch is committed"
        for _, block in opened.blocks():
            assert connection.info.transaction_status == idle
            assert len(block) > 0
        opened.revert()
        opened.close()
        assert connection.execute("SHOW lock_timeout").fetchone() == {"lock_timeout": "7s"}
        assert connection.autocommit == autocommit
    with pytest.raises(StoreError, match="the psycopg connection is closed"):
        open_store(connection, "docs")


def test_a_failed_patch_leaves_a_psycopg_connection_usable(tmp_path):
    store = Postgres(tmp_path)
    store.fill(vectors())
    before, patch = store.everything(), patch_for(store)
    store._do("CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE 'not today'; END $$ LANGUAGE plpgsql")
    store._do("CREATE TRIGGER refuse BEFORE UPDATE ON docs FOR EACH ROW EXECUTE FUNCTION refuse()")
    with psycopg.connect(store.uri) as connection, open_store(connection, "docs") as opened:
        with pytest.raises(StoreError, match="not today"):
            opened.apply(patch)
        assert not opened.status().is_applied
        store._do("DROP TRIGGER refuse ON docs")
        assert opened.apply(patch).applied == len(patch)
        opened.revert()
    assert store.everything() == before


def test_lancedb_tables_that_cannot_be_patched(tmp_path):
    import lancedb

    store = Lance(tmp_path)
    store.fill(vectors(rows=20))
    with pytest.raises(OptionError, match="collection='other' contradicts the LanceDB table 'docs'"):
        open_store(store.table, "other")
    with pytest.raises(OptionError, match="is on branch 'trial': only main can be patched"):
        open_store(store.table.branches.create("trial"))
    memory = lancedb.connect("memory://")
    memory.create_table("docs", store.table.to_arrow())
    for client, name in ((memory, "docs"), (memory.open_table("docs"), None)):
        with pytest.raises(OptionError, match="is not a local folder"):
            open_store(client, name)


def test_objects_that_are_no_client(tmp_path):
    import chromadb
    import faiss
    from qdrant_client import AsyncQdrantClient

    with pytest.raises(OptionError, match=r"faiss.write_index\(index, path\), and open the url faiss:PATH"):
        open_store(faiss.IndexFlatIP(3))
    with pytest.raises(OptionError, match=r"expected a QdrantClient, not qdrant_client.*AsyncQdrantClient"):
        open_store(AsyncQdrantClient(":memory:"), "docs")
    with pytest.raises(OptionError, match=r"expected a Chroma client or collection, not chromadb.*Settings"):
        open_store(chromadb.Settings(), "docs")
    for thing in (Path("docs.faiss"), 3, None, np.eye(3)):
        with pytest.raises(OptionError, match="expected a store url or a client object, not "):
            open_store(thing)
    qdrant, chroma = Qdrant(tmp_path / "qdrant"), Chroma(tmp_path / "chroma")
    for store in (qdrant, chroma):
        store.fill(vectors(rows=20))
        with store.clients() as (clients, _):
            client, name = clients[0]
            with pytest.raises(OptionError, match=r"unknown option 'tls'; the options of this store are .*similarity"):
                open_store(client, name, tls="yes")
            with pytest.raises(OptionError, match=r"no collection given: .* or pass collection="):
                open_store(client)
            with pytest.raises(StoreError, match="there is no collection 'other'; collections here: docs"):
                open_store(client, "other")


def test_the_collection_and_options_beside_a_url(tmp_path):
    store = Lance(tmp_path)
    store.fill(vectors(rows=20))
    url = store.url.partition("#")[0]
    with open_store(url, "docs", similarity="dot", id="text") as opened:
        assert (opened.url, opened.similarity, opened.ids[0]) == (store.url, "dot", "text 0")
    with pytest.raises(OptionError, match="collection='other' contradicts the url"):
        open_store(store.url, "other")
    with pytest.raises(OptionError, match="similarity='dot' contradicts the url"):
        open_store(store.option(similarity="l2"), similarity="dot")
    with pytest.raises(OptionError, match="unknown option 'metric'; the options of this store are id, vector, simil"):
        open_store(store.url, metric="dot")
    with pytest.raises(OptionError, match='invalid connection option "metric"'):
        open_store("postgresql://localhost/db?metric=dot#docs")
    with pytest.raises(OptionError, match="the option tls must be yes or no, not 'on'"):
        open_store("qdrant://127.0.0.1:1?tls=on#docs")


def test_a_registered_store(tmp_path):
    assert not is_store("tiny:docs.npy")
    with pytest.raises(OptionError, match=r"unknown store tiny:docs.npy: urls begin with one of lancedb:, .*faiss:$"):
        open_store("tiny:docs.npy")
    STORES.register("tiny", TinyStore)
    assert "tiny" in SCHEMES
    assert is_store("tiny:docs.npy")
    made, path = vectors(rows=50), tmp_path / "docs.npy"
    np.save(path, made)
    with open_store(f"tiny:{tmp_path}/docs?suffix=.npy") as opened:
        patch = NudgeN(gamma=0.1).fit(opened, (made[1:10], [[row] for row in range(9)])).patch_
        assert opened.apply(patch).applied == opened.verify(patch).applied == len(patch) > 0
        assert recall(opened, vectors(2, 5)) == 1.0
        assert not np.array_equal(np.load(path), made)
        assert opened.revert().original == len(patch)
    assert np.array_equal(np.load(path), made)
    with pytest.raises(OptionError, match="unknown option 'colour'; the options of this store are similarity, suffix"):
        open_store(f"tiny:{path}?colour=red")


USE_ENTRY_POINT = """
import sys
from nudgevec import open_store
from nudgevec.stores import SCHEMES, is_store
assert "tiny" in SCHEMES and is_store("tiny:x") and "lancedb" in SCHEMES
store = open_store(f"tiny:{sys.argv[1]}")
print(type(store).__module__, store.status())
"""


def test_a_store_of_another_package(tmp_path):
    """The package is installed in a folder of its own on sys.path, as pip would leave it."""
    package = tmp_path / "package"
    metadata = package / "tiny-0.1.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("tiny_store.py"), package)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[nudgevec.stores]\ntiny = tiny_store:TinyStore\n")
    np.save(tmp_path / "docs.npy", vectors(rows=20))
    python_path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", USE_ENTRY_POINT, tmp_path / "docs.npy"],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "tiny_store no patch is applied\n", done.stderr


def test_errors_do_not_show_passwords():
    with pytest.raises(OptionError) as refused:
        open_store("postgresql://me:s3cret@localhost/db?colour=red#docs")
    assert re.search("colour", str(refused.value))
    assert "s3cret" not in str(refused.value)
