"""What others keep beside a collection is left alone, and rows that others add do not cost the original vectors."""

from __future__ import annotations

import json
import os

import lancedb
import numpy as np
import psycopg
import pyarrow as pa
import pytest
from safetensors.numpy import load, save

import collections_on_disk as disk
from nudgevec import NudgeN, Patch, cli, open_store
from nudgevec.errors import InputError, NudgeError, NudgeWarning, StoreError
from nudgevec.stores import recall
from real_stores import STORES, Faiss, Lance, Milvus, Postgres, Qdrant
from test_stores import DIM, do, patch_for, same, vectors


def test_lancedb_tables_of_others_are_kept(tmp_path):
    """A date and time has as many digits as the number of a ledger."""
    store = Lance(tmp_path)
    store.fill(vectors())
    names = ["docs__draft_202611191530", "docs__draft_0123456789ab", "docs__nudgevec_0123456789ab"]
    for name in names:
        store.database.create_table(name, pa.table({"text": ["years of work"]}))
    before, patch = store.everything(), patch_for(store)
    assert do(store, "apply", patch).applied == len(patch)
    assert do(store, "revert").original == len(patch)
    assert store.everything() == before
    assert sorted(store.database.list_tables().tables) == sorted(["docs", *names])
    for name in names:
        assert store.database.open_table(name).to_arrow()["text"].to_pylist() == ["years of work"]


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_a_lancedb_draft_of_others_is_kept(kind, tmp_path):
    store = Lance(tmp_path)
    store.fill(vectors())
    patch = patch_for(store)
    mine, draft = tmp_path / "mine", tmp_path / "db" / ".docs.nudgevec-draft"
    mine.mkdir()
    (mine / "thesis").write_text("years of work")
    if kind == "folder":
        mine = mine.rename(draft)
    elif kind == "link":
        draft.symlink_to(mine)
    else:
        draft.write_text("years of work")
    with pytest.raises(InputError, match="was not created by nudgevec"):
        do(store, "apply", patch)
    assert (draft if kind == "file" else mine / "thesis").read_text() == "years of work"
    assert do(store, "status").metadata is None


@pytest.mark.parametrize("name", ["docs.faiss.lock", ".docs.faiss.nudgevec-lock"])
def test_lock_files_of_others_keep_their_contents(name, tmp_path):
    store = Faiss(tmp_path)
    store.fill(vectors())
    patch = patch_for(store)
    (tmp_path / name).write_text("process 4711")
    do(store, "apply", patch)
    do(store, "revert")
    assert (tmp_path / name).read_text() == "process 4711"
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "thesis")
    with pytest.raises((OSError, NudgeError)):
        do(store, "apply", patch)
    assert (tmp_path / "thesis").read_text() == "years of work"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_beside_an_index_respect_the_umask(umask, tmp_path):
    store = Faiss(tmp_path)
    store.fill(vectors())
    patch = patch_for(store)
    previous = os.umask(umask)
    try:
        do(store, "apply", patch)
    finally:
        os.umask(previous)
    names = {"docs.faiss.nudgevec", "docs.faiss.lock", ".docs.faiss.nudgevec-lock"}
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in names} == {0o666 & ~umask}


def rewritten(contents, **tensors):
    """Return a ledger with other tensors."""
    facts = {"facts": json.dumps({"patch": "0"})} if tensors.pop("facts", None) else None
    return save({**load(contents), **tensors}, facts)


DAMAGES = {
    "empty": lambda contents: b"",
    "cut": lambda contents: contents[:-1],
    "text": lambda contents: b"a ledger",
    "no facts": rewritten,
    "few facts": lambda contents: rewritten(contents, facts=True),
    "other rows": lambda contents: rewritten(contents, ids=np.arange(2)),
    "other dimensions": lambda contents: rewritten(contents, before=np.ones((20, 3)), after=np.ones((20, 3))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_ledger_of_faiss_is_named(damage, tmp_path):
    store = Faiss(tmp_path)
    store.fill(vectors())
    before, patch = store.everything(), patch_for(store)
    do(store, "apply", patch)
    ledger = tmp_path / "docs.faiss.nudgevec"
    ledger.write_bytes(DAMAGES[damage](ledger.read_bytes()))
    reads = [("original",), ("status",), ("revert",), ("revert", patch), ("apply", patch)]
    for verb, *arguments in reads:
        with pytest.raises(StoreError, match=rf"{ledger} is damaged .* remove this file, and revert that run or patch"):
            do(store, verb, *arguments)
    ledger.unlink()
    do(store, "revert", patch)
    same(store, before, store.everything())


@pytest.mark.parametrize("name", ["lancedb", "faiss", "pgvector"])
def test_the_ledger_is_kept_if_an_id_occurs_twice_by_now(name, tmp_path):
    store = STORES[name](tmp_path)
    store.fill(vectors())
    if name == "pgvector":
        store._do("ALTER TABLE docs DROP CONSTRAINT docs_pkey")
    before, patch = dict(store.everything()), patch_for(store)
    do(store, "apply", patch)
    key, mine = patch.ids[3], vectors(9, 1)[0]
    store.add(key, mine)
    assert do(store, "status").changed == (key,)
    for values in ((), (patch,)):
        with pytest.raises(StoreError, match=r"1 ids of the patch occur more than once by now.*the ledger is kept"):
            do(store, "revert", *values)
    assert do(store, "status").applied == len(patch) - 1
    with open_store(store.url) as opened:
        copies = [row for keys, rows in opened.fetch([key]) for row in rows] if name != "faiss" else [mine]
        assert any(np.array_equal(row, mine) for row in copies)
    remove_row(store, key, mine)
    assert do(store, "revert").original == len(patch)
    assert same(store, store.everything(), before)


def remove_row(store, key, vector):
    """Remove the row of an id that has this vector."""
    if isinstance(store, Postgres):
        store._do("DELETE FROM docs WHERE id = %s AND embedding = %s::text::vector", [key, str(vector.tolist())])
    elif isinstance(store, Lance):
        store.database.open_table("docs").delete(f"{store._is(key)} AND text = 'new'")
    else:
        import faiss

        with store._changed() as (_, index):
            keys = faiss.vector_to_array(index.id_map)
            rows = index.index.reconstruct_n(0, index.ntotal)
            index.reset()
            kept = ~((keys == key) & (rows == vector).all(axis=1))
            index.add_with_ids(rows[kept], keys[kept])


def test_qdrant_points_with_the_same_id_in_their_payload(tmp_path):
    store = Qdrant(tmp_path)
    store.fill(vectors(rows=60))
    with store._client() as (client, _):
        for point in range(7, 67):
            client.set_payload("docs", {"name": f"n{point}"}, [point])
    store.url = store.option(id="name")
    patch = patch_for(store)
    do(store, "apply", patch)
    with store._client() as (client, models):
        client.upsert(
            "docs", [models.PointStruct(id=999, vector=vectors(9, 1)[0].tolist(), payload={"name": patch.ids[0]})]
        )
    with pytest.raises(StoreError, match="occur more than once by now"):
        do(store, "revert")
    with store._client() as (client, _):
        client.delete("docs", [999])
    assert do(store, "revert").original == len(patch)


def test_pgvector_searches_as_well_after_a_patch_as_before(tmp_path):
    """Without a vacuum the index holds the old rows, which take places in its results."""
    made, queries = vectors(rows=4000), vectors(4, 100)
    found = {}
    for vacuum in ("yes", "no"):
        store = Postgres(tmp_path / vacuum, similarity="cosine")
        store.fill(made)
        store.index()
        store.url = store.option(vacuum=vacuum)
        patch = patch_for(store, gamma=0.3, count=3000)
        for verb in ("apply", "revert", "apply"):
            do(store, verb, patch)
        with open_store(store.url) as opened:
            found[vacuum] = recall(opened, queries), np.mean([len(opened.search(query, 40)) for query in queries])
    assert found["yes"][1] == 40
    assert found["yes"][1] > found["no"][1]
    assert found["yes"][0] > found["no"][0]


def test_a_vacuum_is_announced_and_can_be_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    disk.beir(tmp_path / "data", {"train": 0.6, "dev": 0.2, "test": 0.2})
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    patch = Patch.load("run/patch.safetensors")
    store = Postgres(tmp_path, similarity="cosine")
    store.fill(patch.before, list(patch.ids))
    store.index()

    assert cli.main(["apply", "run", "--store", store.url, "--no-vacuum"]) == 0
    assert "vacuuming" not in capsys.readouterr().err
    assert cli.main(["revert", "--store", store.url]) == 0
    assert "docs: vacuuming the table, so that its index finds the new vectors ..." in capsys.readouterr().err


def test_a_vacuum_that_is_not_allowed_is_a_warning(tmp_path):
    store = Postgres(tmp_path, similarity="cosine")
    store.fill(vectors(rows=100))
    store.index()
    patch = patch_for(store)
    role = f"guest{os.getpid()}"
    store._do(f"CREATE ROLE {role} LOGIN")
    store._do(f"GRANT SELECT, UPDATE ON docs TO {role}")
    store._do(f"GRANT CREATE ON SCHEMA public TO {role}")
    with psycopg.connect(store.uri, user=role) as connection:
        opened = open_store(connection, "docs")
        with pytest.warns(NudgeWarning, match="the vectors are written, but the table was not vacuumed: permission"):
            assert opened.apply(patch).applied == len(patch)
        with pytest.warns(NudgeWarning, match="not vacuumed"):
            opened.revert()
        assert not connection.autocommit


def test_lancedb_reads_ids_once_for_any_number_of_rows(tmp_path, monkeypatch):
    """Not once per thousand rows."""
    rows = 20_000
    store = Lance(tmp_path)
    ids = store.fill(vectors(rows=rows))
    with open_store(store.url) as opened:
        chosen = [ids[row] for row in np.random.default_rng(0).permutation(rows)[: rows // 2]]
        scans = []
        search = opened.table.search
        monkeypatch.setattr(opened.table, "search", lambda *values: scans.append(values) or search(*values))
        taken = opened.take(chosen)
    assert len(scans) == 1
    expected = dict(zip(ids, vectors(rows=rows), strict=True))
    assert np.array_equal(taken, np.stack([expected[key] for key in chosen]))


def test_lancedb_rows_without_a_vector_and_ids_that_do_not_exist(tmp_path):
    flat = pa.array([[1.0, 0.0], None, [0.0, 1.0]], pa.list_(pa.float32(), 2))
    lancedb.connect(tmp_path).create_table("docs", pa.table({"id": [3, 1, 2], "vector": flat}), on_bad_vectors="null")
    with open_store(f"lancedb:{tmp_path}?similarity=dot#docs") as opened:
        assert sorted(opened.fetch_dict([1, 2, 3, 4])) == [2, 3]
        assert opened.take([2, 3]).tolist() == [[0.0, 1.0], [1.0, 0.0]]
        assert opened.fetch_dict([]) == {}


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_milvus_keys_with_quotes_and_backslashes(page, tmp_path):
    odd = ['a "quote"', '"', "it's", "back\\slash", "\\", '\\"', "\\n", "two\nlines", "a\ttab", "bell\x07", "ü", "😀"]
    ids = [*odd, '"] or id != "', *(f"plain {number}" for number in range(8))]
    store = Milvus(tmp_path)
    made = vectors(rows=len(ids))
    store.fill(made, ids)
    with open_store(store.url) as opened:
        opened.scan_size = page
        assert sorted(opened.ids) == sorted(ids)
        assert np.array_equal(opened.take(ids), made)
        labels = [[key] for key in ids]
        patch = NudgeN(gamma=0.2).fit(opened, (vectors(1, len(ids)), labels)).patch_
        assert opened.apply(patch).applied == len(patch) > DIM // 3
        assert opened.revert().original == len(patch)
        assert np.array_equal(opened.take(ids), made)
