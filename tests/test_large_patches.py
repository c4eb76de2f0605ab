"""Patches that move every row, on all stores: in many batches, with kills and other writers between them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

import nudgevec.stores.ledger
from nudgevec import NudgeN, Patch, open_store
from nudgevec.errors import PatchError, StoreError
from real_stores import STORES, Faiss
from test_stores import DIM, check_kills, same, vectors

# Several batches, the last one of another size.
N_BATCHES = 7


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return filled(request.param, tmp_path)


def filled(name, tmp_path):
    store = STORES[name](tmp_path)
    store.rows //= 4
    store.fill(vectors(rows=store.rows))
    return store


def opened(store):
    """Open a store that reads and writes few rows at a time."""
    opened = open_store(store.url)
    opened.batch_size = store.rows // N_BATCHES
    opened.commit_bytes = 4 * opened.dim * opened.batch_size
    return opened


def patch_of_all_rows(store, seed=1):
    with open_store(store.url) as documents:
        ids = list(documents.ids)
        before = documents.take(ids)
    after = before + vectors(seed, len(ids)) / 5
    after /= np.linalg.norm(after, axis=1, keepdims=True)
    n = len(ids)
    facts = {"method": "N", "similarity": "cosine", "gamma": 0.1}
    counts = {"labels": np.ones(n, np.int64), "distance": np.ones(n)}
    return Patch(rows=np.arange(n), ids=ids, before=before, after=after, **counts, **facts)


def test_all_rows_move_and_return_bit_for_bit(store, tmp_path):
    before = store.everything()
    patch_of_all_rows(store).save(tmp_path / "patch")
    patch = Patch.load(tmp_path / "patch")
    with opened(store) as collection:
        status = collection.apply(patch)
        assert (status.applied, status.original, status.changed, status.missing) == (store.rows, 0, (), ())
        assert collection.verify(patch).applied == collection.status().applied == store.rows
        np.testing.assert_allclose(collection.take(patch.ids), patch.after, rtol=0, atol=2 * store.tolerance)
    moved = dict(zip(patch.ids, patch.after.tolist(), strict=True))
    meant = {key: {**row, "vector": moved[key]} for key, row in before.items()}
    assert same(store, store.everything(), meant, moved)
    # A document that is added later keeps its own vector.
    new, vector = store.key(9000), vectors(8, 1)[0]
    store.add(new, vector)
    with opened(store) as collection:
        assert collection.apply(patch).applied == collection.verify(patch).applied == store.rows
        status = collection.revert()
        assert (status.original, status.changed, status.missing) == (store.rows, (), ())
        assert collection.status().metadata is None
    now = store.everything()
    np.testing.assert_allclose(now.pop(new)["vector"], vector, rtol=0, atol=store.tolerance)
    assert same(store, now, before, moved)


def test_tuning_starts_from_the_original_vectors_of_all_rows(store):
    patch = patch_of_all_rows(store)
    queries, labels = vectors(3, 20), [[key] for key in patch.ids[:20]]
    with opened(store) as collection:
        assert collection.original() is collection
        collection.apply(patch)
        original = collection.original()
        keys = patch.ids[::-3]
        np.testing.assert_allclose(original.take(keys), patch.before[::-3], rtol=0, atol=2 * store.tolerance)
        again = NudgeN(gamma=0.1).fit(original, (queries, labels)).patch_
        collection.revert(patch)
        with pytest.raises((PatchError, StoreError), match=r"have changed since|was the patch reverted\?"):
            original.take(keys)
        fresh = NudgeN(gamma=0.1).fit(collection, (queries, labels)).patch_
    one, other = (dict(zip(each.ids, each.after, strict=True)) for each in (again, fresh))
    assert one.keys() == other.keys()
    for key, vector in one.items():
        np.testing.assert_allclose(vector, other[key], rtol=0, atol=store.tolerance)


def test_rows_that_others_changed_are_kept_in_every_batch(store):
    before, patch = store.everything(), patch_of_all_rows(store)
    with opened(store) as collection:
        collection.apply(patch)
        size = collection.batch_size
    changed, gone = patch.ids[::size], patch.ids[1::size]
    mine = dict(zip(changed, vectors(9, len(changed)), strict=True))
    for key, vector in mine.items():
        store.change(key, vector)
    for key in gone:
        store.delete(key)
    with opened(store) as collection:
        for status in (collection.status(), collection.apply(patch), collection.revert(patch)):
            assert (set(status.changed), set(status.missing)) == (set(changed), set(gone))
        assert status.original == len(patch) - len(changed) - len(gone)
    now = store.everything()
    for key, vector in mine.items():
        np.testing.assert_allclose(now.pop(key)["vector"], vector, rtol=0, atol=store.tolerance)
    assert same(store, now, {key: row for key, row in before.items() if key not in {*changed, *gone}}, patch.ids)


@pytest.mark.parametrize("name", ["lancedb", "chroma", "chroma server", "milvus"])
def test_a_row_that_changes_between_two_batches_is_kept(name, tmp_path, monkeypatch):
    store = filled(name, tmp_path)
    before, patch = store.everything(), patch_of_all_rows(store)
    changed, gone = patch.ids[-1], patch.ids[-2]
    mine = vectors(9, 1)[0]
    batches = nudgevec.stores.ledger.Change.batches

    def interrupted(change, size, task):
        for number, batch in enumerate(batches(change, size, task)):
            if task == "writing vectors" and number == 2:
                store.change(changed, mine)
                store.delete(gone)
            yield batch

    with opened(store) as collection:
        monkeypatch.setattr(nudgevec.stores.ledger.Change, "batches", interrupted)
        status = collection.apply(patch)
        monkeypatch.undo()
        assert (status.applied, status.changed, status.missing) == (len(patch) - 2, (changed,), (gone,))
        collection.revert()
    now = store.everything()
    np.testing.assert_allclose(now.pop(changed)["vector"], mine, rtol=0, atol=store.tolerance)
    assert same(store, now, {key: before[key] for key in now}, patch.ids)
    assert len(now) == store.rows - 2


def test_a_killed_process_is_completed_or_reverted(store, tmp_path):
    turns = max(4, store.n_kills // 3) if os.environ.get("NUDGEVEC_PROPERTY_TESTS") == "full" else 4
    check_kills(store, tmp_path, patch_of_all_rows(store), turns, store.rows // N_BATCHES)


def test_a_lost_ledger_of_all_rows(store):
    before, patch = store.everything(), patch_of_all_rows(store)
    with opened(store) as collection:
        collection.apply(patch)
        collection.drop_ledger()
        assert collection.revert(patch).original == store.rows
    assert same(store, store.everything(), before, patch.ids)


def test_faiss_ledgers_of_the_library_are_read(tmp_path):
    """Earlier versions wrote the ledger with the safetensors library."""
    store = filled("faiss", tmp_path)
    before, patch = store.everything(), patch_of_all_rows(store)
    with open_store(store.url) as collection:
        collection.apply(patch)
        facts = {"facts": json.dumps(collection.read_ledger().metadata)}
        tensors = {"ids": np.array(patch.ids), "before": patch.before, "after": patch.after}
        save_file(tensors, f"{store.path}.nudgevec", facts)
        assert collection.status().applied == store.rows
        assert collection.revert(patch).original == store.rows
    assert store.everything() == before


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IDMap,HNSW16", "IDMap,IVF4,Flat"])
def test_all_rows_of_faiss_indexes_of_other_kinds(tmp_path, factory):
    import faiss

    made = vectors(rows=400)
    index = faiss.index_factory(DIM, factory, faiss.METRIC_L2)
    index.train(made)
    ids = np.arange(400) * (5 if "IDMap" in factory else 1)
    index.add_with_ids(made, ids) if "IDMap" in factory else index.add(made)
    faiss.write_index(index, str(tmp_path / "docs.faiss"))
    store = Faiss(tmp_path)
    store.rows = 400
    patch = patch_of_all_rows(store)
    with opened(store) as collection:
        assert collection.apply(patch).applied == 400
        assert np.array_equal(collection.take(patch.ids), patch.after)
        collection.revert(patch)
        assert np.array_equal(collection.take(ids.tolist()), made)
