"""One suite for all stores: apply, verify and revert, with kills, other writers and other patches in between.

The stores are real (``real_stores.py``); a new one needs a class there and a line in ``STORES``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import collections_on_disk as disk
from nudgevec import NudgeM, NudgeN, Patch, cli, open_store
from nudgevec.corpus import Reader
from nudgevec.errors import MissingExtraError, NudgeError, NudgeWarning, OptionError, StoreError
from nudgevec.stores import recall
from nudgevec.text.embedders import static
from real_stores import STORES, Chroma, Faiss, Lance, Milvus, Postgres, Qdrant

DIM = 24
# Stores that keep vectors exactly.
EXACT = [name for name in STORES if "cosine" not in name]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture(params=[name for name, kind in STORES.items() if kind.shared])
def shared_store(request, tmp_path):
    """A store that several processes can write to at a time."""
    return STORES[request.param](tmp_path)


@pytest.fixture(params=EXACT)
def exact(request, tmp_path):
    return STORES[request.param](tmp_path)


def do(store, verb, *values, url=None):
    with open_store(url or store.url) as opened:
        return getattr(opened, verb)(*values)


def same(store, one, other, moved=()):
    """Compare all rows; vectors of ``moved`` ids up to the precision of the store."""
    assert sorted(one) == sorted(other)
    for key, row in one.items():
        assert {**row, "vector": 0} == {**other[key], "vector": 0}
        if key in moved and store.tolerance:
            np.testing.assert_allclose(row["vector"], other[key]["vector"], rtol=0, atol=store.tolerance)
        else:
            assert row["vector"] == other[key]["vector"]
    return True


def vectors(seed=0, rows=1200, dim=DIM):
    made = np.random.default_rng(seed).standard_normal((rows, dim))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def patch_for(store, method=NudgeN, gamma=0.2, seed=1, count=None):
    with open_store(store.url) as documents:
        ids = sorted(documents.ids)
        count = count or len(ids) // 4
        queries = vectors(seed, count, documents.dim)
        labels = [[ids[row]] for row in np.random.default_rng(seed).integers(0, len(ids), count)]
        return method(gamma=gamma).fit(documents, (queries, labels)).patch_


def test_apply_writes_only_moved_rows_and_revert_restores_them_bit_for_bit(store):
    store.fill(vectors(rows=store.rows))
    before = store.everything()
    patch = patch_for(store)
    assert store.rows // 12 < len(patch) <= store.rows // 4
    status = do(store, "apply", patch)
    assert (status.applied, status.original, status.changed, status.missing) == (len(patch), 0, (), ())
    moved = dict(zip(patch.ids, patch.after.tolist(), strict=True))
    meant = {key: {**row, "vector": moved.get(key, row["vector"])} for key, row in before.items()}
    assert same(store, store.everything(), meant, moved)
    assert do(store, "verify", patch).applied == len(patch)
    assert "rows have their new vectors" in str(do(store, "status"))
    left = do(store, "revert", patch)
    assert left.original == len(patch)
    assert same(store, store.everything(), before, moved)
    assert str(do(store, "status")) == "no patch is applied"


def test_blocks_are_in_the_order_of_ids(store):
    made = vectors(rows=store.rows)
    ids = [store.key(int(number)) for number in np.random.default_rng(0).permutation(store.rows)]
    store.fill(made, ids)
    for key in (ids[5], ids[100]):
        store.delete(key)
        store.add(key, made[ids.index(key)])
    with open_store(store.url) as opened:
        keys = list(opened.ids)
        if store.shared:
            store.change(ids[7], made[7])
            store.add(store.key(9000), made[0])
        parts = [vectors for _, vectors in Reader(opened).raw_blocks()]
    assert sorted(keys) == sorted(ids)
    expected = made[[ids.index(key) for key in keys]]
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=store.tolerance)


def test_a_second_apply_changes_nothing(store):
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store)
    do(store, "apply", patch)
    after = store.everything()
    assert do(store, "apply", patch).applied == len(patch)
    assert store.everything() == after
    do(store, "revert", patch)
    with pytest.raises(StoreError, match="nothing to revert"):
        do(store, "revert", patch)


def test_rows_that_others_change_are_kept_and_listed(store):
    store.fill(vectors(rows=store.rows))
    before = store.everything()
    patch = patch_for(store)
    do(store, "apply", patch)
    changed, gone, new = patch.ids[0], patch.ids[1], store.key(9000)
    mine = vectors(9, 1)[0]
    store.change(changed, mine)
    store.delete(gone)
    store.add(new, vectors(8, 1)[0])
    status = do(store, "status")
    assert (status.changed, status.missing) == ((changed,), (gone,))
    left = do(store, "revert", patch)
    assert (left.changed, left.missing, left.original) == ((changed,), (gone,), len(patch) - 2)
    now = store.everything()
    np.testing.assert_allclose(now[changed]["vector"], mine, rtol=0, atol=store.tolerance)
    assert new in now
    assert gone not in now
    rest = set(now) - {changed, new}
    assert same(store, {key: now[key] for key in rest}, {key: before[key] for key in rest}, patch.ids)


def test_patches_that_do_not_fit_are_refused(store):
    store.fill(vectors(rows=store.rows))
    patch, other = patch_for(store), patch_for(store, seed=5)
    before = store.everything()
    key = patch.ids[3]
    store.change(key, vectors(9, 1)[0])
    with pytest.raises(StoreError, match=rf"1 of \d+ documents have other vectors .*{key}"):
        do(store, "apply", patch)
    store.change(key, np.float32(before[key]["vector"]))
    do(store, "apply", patch)
    with pytest.raises(StoreError, match=r"another patch is already applied .* revert it first"):
        do(store, "apply", other)
    with pytest.raises(StoreError, match="another patch is already applied"):
        do(store, "revert", other)
    do(store, "revert", patch)
    assert same(store, store.everything(), before, patch.ids)
    store.delete(patch.ids[0])
    with pytest.raises(StoreError, match="1 documents of the patch are missing"):
        do(store, "apply", patch)
    store.add(patch.ids[0], np.float32(before[patch.ids[0]]["vector"]))
    if store.twice:
        store.add(patch.ids[1], np.float32(before[patch.ids[1]]["vector"]))
        with pytest.raises(StoreError, match="1 ids occur more than once"):
            do(store, "apply", patch)
    assert do(store, "status").metadata is None


def searched_by(store, similarity, folder, made):
    """Return a store of the same class with another similarity."""
    other = type(store)(folder / similarity, similarity=similarity)
    other.fill(made)
    other.index()
    return other


def test_methods_are_refused_on_other_similarities(exact, tmp_path):
    made = vectors(rows=exact.rows)
    for similarity in ("cosine", "l2", "dot"):
        store = searched_by(exact, similarity, tmp_path, made)
        with open_store(store.url) as opened:
            own = opened.similarity
        assert own == similarity or (own, similarity) == ("dot", "cosine"), "FAISS has no cosine"
        patch_n, patch_m = patch_for(store), patch_for(store, NudgeM)
        if own == "dot":
            assert do(store, "apply", patch_m).applied == len(patch_m)
            do(store, "revert", patch_m)
        else:
            with pytest.raises(StoreError, match="requires inner product: tune with --method N"):
                do(store, "apply", patch_m)
        # On unit vectors, all similarities rank as cosine does.
        assert do(store, "apply", patch_n).applied == len(patch_n)
        do(store, "revert", patch_n)
        wrong = "l2" if own != "l2" else "dot"
        with pytest.raises(OptionError, match=f"uses {own} similarity, not {wrong}"):
            open_store(store.option(similarity=wrong))
        with pytest.raises(OptionError, match="unknown similarity 'cosin'"):
            open_store(store.option(similarity="cosin"))


def test_other_similarities_than_cosine_need_unit_vectors(exact, tmp_path):
    for similarity in ("dot", "cosine"):
        store = searched_by(exact, similarity, tmp_path, vectors(rows=exact.rows) * np.float32(3))
        patch = patch_for(store)
        with open_store(store.url) as opened:
            if opened.similarity == "cosine":
                assert opened.apply(patch).applied == len(patch)
            else:
                with pytest.raises(StoreError, match="requires cosine similarity or unit vectors"):
                    opened.apply(patch)


def test_a_store_of_unknown_similarity(tmp_path):
    for kind in (Lance, Postgres):
        store = kind(tmp_path / kind.__name__)
        store.fill(vectors())
        patch_m = patch_for(store, NudgeM)
        with pytest.raises(StoreError, match=r"does not state its similarity \(set similarity="):
            do(store, "apply", patch_m)
        assert do(store, "apply", patch_m, url=store.option(similarity="dot")).applied == len(patch_m)


def test_the_same_rows_moved_elsewhere_are_another_patch(store):
    store.fill(vectors(rows=store.rows))
    near, far = patch_for(store, gamma=0.1), patch_for(store, gamma=0.3)
    assert near.ids == far.ids
    do(store, "apply", near)
    with pytest.raises(StoreError, match=r"another patch is already applied .* revert it first"):
        do(store, "apply", far)
    with pytest.raises(StoreError, match="this patch is not applied"):
        do(store, "verify", far)
    with pytest.raises(StoreError, match=r"another patch is already applied .* revert without naming"):
        do(store, "revert", far)
    assert not do(store, "revert").is_applied


def test_a_row_that_changes_just_before_the_write_is_kept(shared_store, monkeypatch):
    """Between reading and writing the rows, others change one and remove another."""
    store = shared_store
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store)
    changed, gone = patch.ids[:2]
    mine = vectors(9, 1)[0]
    others = [
        threading.Thread(target=store.change, args=[changed, mine]),
        threading.Thread(target=store.delete, args=[gone]),
    ]
    with open_store(store.url) as opened:
        write = opened.write

        def late(*values):
            for other in others:
                other.start()
            for other in others:
                # PostgreSQL locks the rows until the patch is applied.
                other.join(timeout=0.3 if isinstance(store, Postgres) else None)
            write(*values)

        monkeypatch.setattr(opened, "write", late)
        opened.apply(patch)
    for other in others:
        other.join()
    now = store.everything()
    np.testing.assert_allclose(now[changed]["vector"], mine, rtol=0, atol=store.tolerance)
    assert gone not in now
    left = do(store, "revert")
    assert (left.changed, left.missing) == ((changed,), (gone,))
    np.testing.assert_allclose(store.everything()[changed]["vector"], mine, rtol=0, atol=store.tolerance)


def test_the_ledger_is_kept_if_most_rows_are_unknown(store):
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store, count=12)
    do(store, "apply", patch)
    for key in patch.ids:
        store.delete(key)
    with pytest.raises(StoreError, match=r"only 0 of the \d+ rows .* is this the right collection"):
        do(store, "revert")
    with open_store(store.url) as opened:
        assert set(opened.revert(force=True).missing) == set(patch.ids)
    assert do(store, "status").metadata is None


def test_a_step_below_the_precision_of_the_store_can_be_reverted(store):
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store, gamma=1e-6)
    assert do(store, "apply", patch).applied == len(patch)
    do(store, "revert", patch)
    assert do(store, "status").metadata is None


def test_a_lost_ledger_is_replaced_by_the_patch(store):
    store.fill(vectors(rows=store.rows))
    before = store.everything()
    patch = patch_for(store)
    for again in ("revert", "apply"):
        do(store, "apply", patch)
        do(store, "drop_ledger")
        assert not do(store, "status").is_applied
        do(store, again, patch)
        if again == "apply":
            assert do(store, "status").applied == len(patch)
            do(store, "revert")
        assert same(store, store.everything(), before, patch.ids)


def test_an_empty_patch_leaves_no_ledger(store):
    store.fill(vectors(rows=store.rows))
    assert do(store, "apply", patch_for(store, gamma=0.0)).metadata is None
    assert do(store, "apply", patch_for(store)).applied > 0


def test_another_dimension(store, tmp_path):
    store.fill(vectors(rows=store.rows, dim=8))
    patch = patch_for(store)
    other = type(store)(tmp_path / "other")
    other.fill(vectors(rows=store.rows))
    with pytest.raises(StoreError, match="has 24 dimensions, the patch has 8"):
        do(other, "apply", patch)


def test_tuning_starts_from_the_original_vectors(store):
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store)
    queries = vectors(3, 50)
    with open_store(store.url) as documents:
        labels = [[key] for key in sorted(documents.ids)[:50]]
        fresh = NudgeN(gamma=0.1).fit(documents, (queries, labels)).patch_
    do(store, "apply", patch)
    with open_store(store.url) as documents:
        again = NudgeN(gamma=0.1).fit(documents.original(), (queries, labels)).patch_
    assert sorted(again.ids) == sorted(fresh.ids)
    one, other = (dict(zip(each.ids, each.after, strict=True)) for each in (fresh, again))
    for key, vector in one.items():
        np.testing.assert_allclose(vector, other[key], rtol=0, atol=store.tolerance)


def test_tuning_again_equals_tuning_from_scratch(store, tmp_path):
    """With a patch applied, and documents added and removed, the result is the same as without a patch."""
    made, new = vectors(rows=store.rows), vectors(7, 3)
    ids = store.fill(made)
    do(store, "apply", patch_for(store))
    keys = [store.key(8000 + number) for number in range(3)]
    for key, vector in zip(keys, new, strict=True):
        store.add(key, vector)
    for key in ids[:2]:
        store.delete(key)
    fresh = type(store)(tmp_path / "fresh")
    fresh.fill(np.concatenate([made[2:], new]), [*ids[2:], *keys])
    # Three queries for each of thirty documents, shifted in the same direction.
    targets = np.tile(np.concatenate([new, made[2:29]]), (3, 1))
    queries = targets + np.tile(vectors(4, 30), (3, 1)) + vectors(3, 90) / 2
    labels = [[name] for name in [*keys, *ids[2:29]] * 3]
    tuned = []
    for each in (store, fresh):
        with open_store(each.url) as opened:
            part = (queries[:60], labels[:60]), (queries[60:], labels[60:])
            tuned.append(NudgeN("mrr@10", guard=0).fit(opened.original(), *part))
    one, other = tuned
    assert one.gamma_ > 0.01
    moved = [dict(zip(each.patch_.ids, each.patch_.after, strict=True)) for each in tuned]
    assert sorted(moved[0]) == sorted(moved[1])
    if store.tolerance:
        assert one.gamma_ == pytest.approx(other.gamma_, abs=1e-4)
    else:
        assert one.gamma_ == other.gamma_
        assert np.array_equal(one.curve_.edges, other.curve_.edges)
        assert np.array_equal(one.curve_.values, other.curve_.values)
        assert all(np.array_equal(moved[0][key], moved[1][key]) for key in moved[0])


def test_the_index_serves_the_new_vectors(store, tmp_path):
    store = type(store)(tmp_path / "indexed", similarity="cosine")
    store.fill(vectors(rows=min(3000, 2 * store.rows)))
    store.index()
    patch = patch_for(store)
    queries = vectors(4, 50)
    with open_store(store.url) as opened:
        assert opened.similarity in ("cosine", "dot")
        before = recall(opened, queries)
        opened.apply(patch)
        after = recall(opened, queries)
        places = range(0, len(patch), 7)
        found = [opened.search(patch.after[place], 3)[0] == patch.ids[place] for place in places]
    assert np.mean(found) > 0.95
    assert before > 0.9
    assert after > before - 0.05
    do(store, "revert", patch)
    if not store.url.startswith("faiss"):
        with pytest.raises(StoreError, match="tune with --method N"):
            do(store, "apply", patch_for(store, NudgeM))


# Kills itself before a given line of nudgevec.stores, so that every pair of statements can be separated.
APPLY = """
import os, signal, sys
import nudgevec.stores.{module}
from nudgevec import Patch, open_store
patch = Patch.load(sys.argv[2])
last, lines = int(sys.argv[4]), 0

def watch(frame, event, _):
    global lines
    if "nudgevec/stores/" not in frame.f_code.co_filename or frame.f_code.co_name.startswith("<"):
        return None
    lines += event == "line"
    if event == "line" and lines == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return watch

print("ready", flush=True)
sys.stdin.readline()
sys.settrace(watch)
with open_store(sys.argv[1]) as store:
    if len(sys.argv) > 5:
        store.batch_size = int(sys.argv[5])
        store.commit_bytes = 4 * store.dim * store.batch_size
    getattr(store, sys.argv[3])(patch)
sys.settrace(None)
print("done", lines, flush=True)
"""
MODULES = {"postgresql": "pgvector"}


def start(store, path, verb, last=0, batch_size=None):
    scheme = store.url.partition(":")[0]
    script = APPLY.format(module=f"{MODULES.get(scheme, scheme)}_store")
    running = subprocess.Popen(
        [sys.executable, "-c", script, store.url, path, verb, str(last), *([str(batch_size)] if batch_size else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "ready\n", running.stderr.read()
    return running


def go(running):
    running.stdin.write("go\n")
    running.stdin.flush()


def test_a_patch_that_was_killed_can_be_completed_or_reverted(store, tmp_path):
    """Kill apply and revert at a random time, or before a random line of nudgevec.stores; 50 times in the full run."""
    store.fill(vectors(rows=store.rows))
    turns = store.n_kills if os.environ.get("NUDGEVEC_PROPERTY_TESTS") == "full" else 6
    check_kills(store, tmp_path, patch_for(store), turns)


def check_kills(store, tmp_path, patch, turns, batch_size=None):
    """Kill apply and revert, and complete or revert the patch each time."""
    patch.save(tmp_path / "patch")
    before = store.everything()
    store.release()
    took, lines = {}, {}
    for verb in ("apply", "revert"):
        with start(store, tmp_path / "patch", verb, 0, batch_size) as whole:
            began = time.perf_counter()
            go(whole)
            done, _, count = whole.stdout.readline().partition(" ")
            assert done == "done", whole.stderr.read()
            took[verb], lines[verb] = time.perf_counter() - began, int(count)
        if verb == "apply":
            after = store.everything()
            store.release()
    chance = random.Random(0)
    died = between = 0
    for turn in range(turns):
        verb = ("apply", "revert")[turn % 2]
        # A kill by time can come too late, one by line cannot.
        by_line = turn % 4 < 2
        if verb == "revert":
            do(store, "apply", patch)
        store.release()
        last = chance.randint(1, lines[verb]) if by_line else 0
        with start(store, tmp_path / "patch", verb, last, batch_size) as running:
            go(running)
            if not by_line:
                time.sleep(chance.uniform(0, took[verb]))
                running.send_signal(signal.SIGKILL)
            died += "done" not in running.stdout.read()
        halfway = do(store, "status")
        between += halfway.metadata is not None and halfway.original > 0
        finish = chance.choice(("apply", "revert"))
        if finish == "apply" or halfway.metadata is not None:
            do(store, finish, patch)
        assert same(store, store.everything(), after if finish == "apply" else before, patch.ids)
        if finish == "apply":
            do(store, "revert", patch)
        assert same(store, store.everything(), before, patch.ids)
    assert died >= turns // 2, "few kills came before the end: the test tests nothing"
    assert between > 0 or isinstance(store, Postgres) or turns < 50, "no kill came in the middle"


def test_rows_that_milvus_returns_twice_count_once(tmp_path):
    """Restore what a kill between the last two steps of a compaction leaves: rows both in a segment and in the log."""
    store = Milvus(tmp_path)
    store.fill(vectors())
    before, patch = store.everything(), patch_for(store)
    with open_store(store.url) as opened:
        opened.apply(patch)
        logs = {path: path.read_bytes() for path in Path(store.path).rglob("wal/*")}
    store.release()
    gone = {path: log for path, log in logs.items() if not path.exists()}
    assert len(gone) == 2, "one log of the collection, one of the ledger"
    for path, log in gone.items():
        path.write_bytes(log)
    with open_store(store.url) as opened:

        def rows():
            return len(opened.client.query("docs", filter='id != ""', output_fields=["id"]))

        opened.scan_size = 101
        assert rows() == 2 * len(before), "Milvus Lite no longer does this: the test tests nothing"
        assert len(opened.ids) == len(set(opened.ids)) == len(before)
        assert opened.status().applied == opened.verify(patch).applied == opened.apply(patch).applied == len(patch)
        opened.revert(patch)
        assert rows() == 2 * len(before) - len(patch), "rows that are written again occur once"
    assert same(store, store.everything(), before)


def test_of_two_concurrent_patches_one_is_applied(store, tmp_path):
    store.fill(vectors(rows=store.rows))
    patches = [patch_for(store, seed=number + 1) for number in range(2)]
    for number, patch in enumerate(patches):
        patch.save(tmp_path / str(number))
    before = store.everything()
    for _ in range(3):
        store.release()
        both = [start(store, tmp_path / str(number), "apply") for number in range(2)]
        for running in both:
            go(running)
        said = [running.communicate() for running in both]
        won = [number for number, (out, _) in enumerate(said) if "done" in out]
        assert len(won) == 1, said
        assert "StoreError" in said[1 - won[0]][1]
        winner = patches[won[0]]
        assert do(store, "status").applied == len(winner)
        do(store, "revert", winner)
        assert same(store, store.everything(), before, {*patches[0].ids, *patches[1].ids})


@pytest.mark.filterwarnings("ignore:unclosed file.*lock:ResourceWarning")
@pytest.mark.parametrize("name", [name for name, kind in STORES.items() if not kind.shared])
def test_an_open_store_keeps_other_writers_out(name, tmp_path):
    store = STORES[name](tmp_path)
    store.fill(vectors(rows=store.rows))
    with open_store(store.url), pytest.raises(RuntimeError, match="already accessed"):
        store.add(store.key(5000), vectors(1, 1)[0])


def test_a_concurrent_writer_loses_nothing(shared_store):
    store = shared_store
    store.fill(vectors(rows=store.rows))
    patch = patch_for(store)
    stop, added = threading.Event(), []

    def write(add):
        while not stop.is_set():
            key = store.key(5000 + len(added))
            add(key, vectors(len(added), 1)[0])
            added.append(key)
            time.sleep(0.005)

    with store.writer() as add:
        writer = threading.Thread(target=write, args=[add])
        writer.start()
        try:
            for _ in range(3):
                assert do(store, "apply", patch).applied == len(patch)
                do(store, "revert", patch)
        finally:
            stop.set()
            writer.join()
    now = store.everything()
    assert len(added) > 0
    assert all(key in now for key in added)
    assert len(now) == store.rows + len(added)


@pytest.mark.parametrize("kind", [Lance, Postgres])
def test_from_clicks_to_a_patched_store(kind, tmp_path, monkeypatch, capsys):
    """Run all commands: a collection with vectors and a log of clicks are tuned, applied and reverted."""
    monkeypatch.chdir(tmp_path)
    corpus, asked, qrels = disk.texts()
    store = kind(tmp_path)
    store.fill(static.embed(list(corpus.values())), list(corpus))
    before = store.everything()
    with open("clicks.jsonl", "w") as file:
        for query, grades in qrels.items():
            file.write(json.dumps({"query": asked[query], "document": next(iter(grades)), "signal": "click"}) + "\n")
    tune = ["tune", "--store", store.url, "--labels", "clicks.jsonl", "--embedder", "static", "--out", "run"]
    tune += ["--guard", "0"]
    assert cli.main(tune) == 0
    assert cli.main(["apply", "run", "--store", store.url]) == 0
    assert cli.main(["status", "--store", store.url]) == 0
    said = capsys.readouterr().out
    assert "docs: 48 documents" in said
    assert "rows have their new vectors" in said
    assert "The store's own search finds 100.0% (100.0% before) of the true 10 nearest documents" in said
    assert store.everything() != before
    first = Patch.load("run/patch.safetensors")
    assert cli.main([*tune, "--overwrite"]) == 0
    assert np.array_equal(Patch.load("run/patch.safetensors").after, first.after), "tuned from the original vectors"
    assert json.loads(Path("run/run.json").read_text())["data"]["path"] == open_store(store.url).url
    capsys.readouterr()
    assert cli.main(["apply", "run", "--store", store.url, "--json"]) == 0
    search = json.loads(capsys.readouterr().out)["search"]
    assert search["recall@10"] == {"after": 1.0}, "the patch was applied before"
    assert cli.main(["revert", "run", "--store", store.url]) == 0
    assert store.everything() == before
    assert cli.main(["revert", "run", "--store", store.url]) == 1
    assert "nothing to revert" in capsys.readouterr().err


def test_a_method_that_does_not_fit_the_similarity_is_refused_before_tuning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus, asked, qrels = disk.texts()
    store = Postgres(tmp_path, similarity="cosine")
    store.fill(static.embed(list(corpus.values())), list(corpus))
    store.index()
    with open("clicks.jsonl", "w") as file:
        for query, grades in qrels.items():
            file.write(json.dumps({"query": asked[query], "document": next(iter(grades)), "signal": "click"}) + "\n")
    tune = ["tune", "--store", store.url, "--labels", "clicks.jsonl", "--embedder", "static", "--out", "run"]
    assert cli.main([*tune, "--method", "M"]) == 1
    assert "uses cosine similarity, and NUDGE-M requires inner product: tune with --method N" in capsys.readouterr().err
    assert not Path("run").exists()
    assert cli.main([*tune, "--method", "M+N", "--guard", "0"]) == 0


def test_a_log_and_a_file_of_events_give_the_same_patch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    corpus, asked, qrels = disk.texts()
    store = Lance(tmp_path)
    store.fill(static.embed(list(corpus.values())), list(corpus))
    with open("clicks.jsonl", "w") as file:
        for query, grades in qrels.items():
            file.write(json.dumps({"query": asked[query], "document": next(iter(grades)), "signal": "click"}) + "\n")
    assert cli.main(["labels", "import", "log.sqlite", "clicks.jsonl"]) == 0
    for labels, out in (("clicks.jsonl", "one"), ("log.sqlite", "two")):
        tune = ["tune", store.url, "--labels", labels, "--embedder", "static", "--out", out, "--guard", "0"]
        assert cli.main(tune) == 0
    assert np.array_equal(Patch.load("one/patch.safetensors").after, Patch.load("two/patch.safetensors").after)


def test_passwords_are_never_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus, asked, qrels = disk.texts()
    store = Postgres(tmp_path)
    store.fill(static.embed(list(corpus.values())), list(corpus))
    url = store.url.replace("postgres:@", "postgres:s3cret@")
    assert "s3cret" in url
    with open("clicks.csv", "w") as file:
        file.write("query,document\n")
        file.writelines(f"{asked[query]},{next(iter(grades))}\n" for query, grades in qrels.items())
    for words in (
        ["tune", "--store", url, "--labels", "clicks.csv", "--embedder", "static", "--out", "run", "--guard", "0"],
        ["apply", "run", "--store", url],
        ["status", "--store", url],
        ["revert", "run", "--store", url],
    ):
        assert cli.main(words) == 0
    for bad in (
        url.replace("#docs", "#nothing"),
        url.replace("?host=", "?host=/nowhere"),
        f"my{url}",
        f"{url}%zz",
        url.replace("s3cret", "1234#s3cret"),
        url.replace("s3cret", "1234/s3cret"),
        url.replace("postgresql", "qdrant").replace("@/", "@localhost/"),
        url.replace("://", "//"),
        url.replace("://", ":/"),
        url.replace("://", ":"),
        url.replace("postgresql://", ""),
    ):
        assert cli.main(["status", "--store", bad]) == 1
        assert cli.main(["tune", bad, "--labels", "clicks.csv", "--out", "other"]) == 1
    assert cli.main(["tune", url, "--out", "other"]) == 1
    assert cli.main(["tune", f"my{url}", "--out", "other"]) == 1
    assert cli.main(["synthesize", url, "--labels", "x", "--llm", "http://localhost:1", "--model", "y"]) == 1
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err
    for path in Path("run").iterdir():
        assert b"s3cret" not in path.read_bytes()


def test_postgres_tables_of_other_kinds(tmp_path):
    """Integer ids, half precision, a schema, two vector columns."""
    store = Postgres(tmp_path)
    made = vectors(rows=100).astype(np.float16)
    store._do("CREATE SCHEMA mine")
    store._do(f"CREATE TABLE mine.docs (number int PRIMARY KEY, one halfvec({DIM}), two vector({DIM}))")
    for row, vector in enumerate(made):
        text = str(vector.tolist())
        store._do("INSERT INTO mine.docs VALUES (%s, %s::text::halfvec, %s::text::vector)", [row, text, text])
    store._do("CREATE INDEX by_one ON mine.docs USING hnsw (one halfvec_cosine_ops)")
    store.url = store.url.replace("#docs", "#mine.docs")
    with pytest.raises(StoreError, match=r"cannot choose the vector: set vector=NAME to one of: one, two"):
        open_store(store.url)
    store.url = store.option(vector="one", vacuum="no")
    patch = patch_for(store)
    assert patch.after.dtype == np.float16
    with open_store(store.url) as opened:
        assert (opened.similarity, opened.ids[:3]) == ("cosine", [0, 1, 2])
        assert opened.apply(patch).applied == len(patch)
        assert recall(opened, made[:5]) == 1.0
    assert store._do("SELECT COUNT(*) FROM pg_indexes WHERE indexname = 'by_one'") == [(1,)]
    assert do(store, "revert", patch).original == len(patch)
    with pytest.raises(OptionError, match="vacuum must be yes or no"):
        open_store(store.option(vacuum="perhaps"))


def test_qdrant_documents_identified_by_their_payload(tmp_path):
    store = Qdrant(tmp_path)
    with store._client() as (client, models):
        size = models.VectorParams(size=DIM, distance=models.Distance.DOT)
        client.create_collection("docs", vectors_config={"text": size, "title": size})
        points = [
            models.PointStruct(
                id=row, vector={"text": each.tolist(), "title": each.tolist()}, payload={"sku": f"s{row}"}
            )
            for row, each in enumerate(vectors(rows=60))
        ]
        client.upsert("docs", points)
        before = client.scroll("docs", limit=100, with_vectors=True)[0]
    with pytest.raises(StoreError, match=r"cannot choose the vector: set vector=NAME to one of: text, title"):
        open_store(store.url)
    nameless = open_store(store.option(vector="text", id="id"))
    with nameless, pytest.raises(StoreError, match="point 0 has no field 'id'"):
        _ = nameless.ids
    store.url = store.option(vector="text", id="sku")
    patch = patch_for(store)
    assert all(key.startswith("s") for key in patch.ids)
    assert do(store, "apply", patch).applied == len(patch)
    with store._client() as (client, _):
        after = client.scroll("docs", limit=100, with_vectors=True)[0]
    assert [point.vector["title"] for point in after] == [point.vector["title"] for point in before]
    assert sum(a.vector["text"] != b.vector["text"] for a, b in zip(after, before, strict=True)) == len(patch)
    assert do(store, "revert", patch).original == len(patch)
    with store._client() as (client, _):
        assert client.scroll("docs", limit=100, with_vectors=True)[0] == before
        client.set_payload("docs", {"sku": patch.ids[0]}, points=[int(patch.ids[1][1:])])
    with pytest.raises(StoreError, match="documents of the patch are missing"):
        do(store, "apply", patch)
    with store._client() as (client, models):
        vector = {"text": vectors(3, 1)[0].tolist(), "title": vectors(3, 1)[0].tolist()}
        client.upsert("docs", [models.PointStruct(id=999, vector=vector, payload={"sku": patch.ids[1]})])
    with pytest.raises(StoreError, match="1 ids occur more than once"):
        do(store, "apply", patch)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IDMap,HNSW16", "IDMap,IVF4,Flat"])
def test_faiss_indexes_of_other_kinds(tmp_path, factory):
    import faiss

    made = vectors(rows=400)
    index = faiss.index_factory(DIM, factory, faiss.METRIC_L2)
    index.train(made)
    ids = np.arange(400) * (5 if "IDMap" in factory else 1)
    index.add_with_ids(made, ids) if "IDMap" in factory else index.add(made)
    faiss.write_index(index, str(tmp_path / "docs.faiss"))
    store = Faiss(tmp_path)
    patch = patch_for(store)
    assert set(patch.ids) <= set(ids.tolist())
    with open_store(store.url) as opened:
        assert opened.similarity == "l2"
        assert opened.apply(patch).applied == len(patch)
        kept = opened.take(ids.tolist())
        moved = np.isin(ids, patch.ids)
        assert np.array_equal(kept[~moved], made[~moved])
        assert recall(opened, vectors(5, 20)) > (0.2 if "IVF" in factory else 0.9)
        opened.revert(patch)
        assert np.array_equal(opened.take(ids.tolist()), made)


def test_faiss_codes_are_refused(tmp_path):
    import faiss

    for index in (faiss.index_factory(DIM, "SQ8"), faiss.IndexFlatL2Panorama(DIM, 2)):
        index.train(vectors())
        index.add(vectors())
        faiss.write_index(index, str(tmp_path / "docs.faiss"))
        with pytest.raises(StoreError, match="does not keep the exact vectors: patch the vectors it was made from"):
            open_store(Faiss(tmp_path).url)
    (tmp_path / "docs.faiss").write_bytes(b"nothing of the kind")
    with pytest.raises(StoreError, match="is not an index file"):
        open_store(Faiss(tmp_path).url)


def test_collections_with_the_name_of_a_ledger_are_not_touched(tmp_path):
    chroma, qdrant, milvus, postgres = (kind(tmp_path / kind.__name__) for kind in (Chroma, Qdrant, Milvus, Postgres))
    for store in (chroma, qdrant, milvus, postgres):
        store.fill(vectors(rows=60))
    patches = [patch_for(store) for store in (chroma, qdrant, milvus, postgres)]
    with chroma._client() as client:
        client.create_collection("docs-nudgevec", embedding_function=None).add(["mine"], embeddings=vectors(0, 1))
    with qdrant._client() as (client, models):
        size = models.VectorParams(size=DIM, distance=models.Distance.DOT)
        client.create_collection("docs__nudgevec", vectors_config=size)
    with milvus._client() as client:
        client.create_collection("docs__nudgevec", dimension=DIM)
        client.create_collection("docs__nudgevec_0123456789ab", dimension=DIM)
    postgres._do("CREATE TABLE docs__nudgevec (mine text)")
    for store, patch in zip((chroma, qdrant, milvus, postgres), patches, strict=True):
        with pytest.raises(StoreError, match="has the name of nudgevec's ledger, and was not created by nudgevec"):
            do(store, "apply", patch)
    with chroma._client() as client:
        assert client.get_collection("docs-nudgevec", embedding_function=None).get(include=[])["ids"] == ["mine"]
    with milvus._client() as client:
        client.drop_collection("docs__nudgevec")
    assert do(milvus, "apply", patches[2]).applied == len(patches[2])
    do(milvus, "revert")
    with milvus._client() as client:
        assert client.has_collection("docs__nudgevec_0123456789ab")


def test_a_ledger_is_valid_for_its_columns_only(tmp_path):
    made = vectors(rows=60)
    store = Lance(tmp_path)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(made.ravel()), DIM)
    names = [f"it's {row}" for row in range(60)]
    rows = pa.table({"id": names, "vector": flat, "a key": names[::-1], "Title": flat})
    store.table = store.database.create_table("docs", rows)
    plain, store.url = store.url, store.option(id="a key", vector="Title")
    patch = patch_for(store)
    do(store, "apply", patch)
    for verb, values in (("revert", []), ("revert", [patch]), ("status", []), ("apply", [patch])):
        with pytest.raises(StoreError, match="a patch is applied to id 'a key', and the store was opened with id 'id'"):
            do(store, verb, *values, url=plain)
    assert do(store, "revert").original == len(patch)
    assert np.array_equal(do(store, "take", names[::-1]), made)


def test_documents_without_a_vector_are_left_out(tmp_path):
    store = Postgres(tmp_path)
    store.fill(vectors(rows=60))
    store._do("INSERT INTO docs VALUES ('empty', 'not embedded yet', NULL, '{}')")
    with open_store(store.url) as opened, pytest.warns(NudgeWarning, match="1 documents have no vector"):
        assert len(opened.ids) == 60
    with pytest.warns(NudgeWarning):
        patch = patch_for(store)
    with pytest.warns(NudgeWarning):
        assert do(store, "apply", patch).applied == len(patch)
    assert do(store, "revert").original == len(patch)


def test_postgres_ledgers_stay_with_their_table(tmp_path):
    """With another search path, and a name of maximal length."""
    store = Postgres(tmp_path)
    long = "d" * 63
    store.fill(vectors(rows=60))
    store._do("CREATE SCHEMA app")
    store._do(f'ALTER TABLE docs RENAME TO "{long}"')
    store.url = store.url.replace("#docs", f"#{long}")
    patch = patch_for(store)
    do(store, "apply", patch, url=store.option(options="-csearch_path%3Dapp,public"))
    assert do(store, "status").applied == len(patch)
    with pytest.raises(StoreError, match="another patch is already applied"):
        do(store, "apply", patch_for(store, seed=3))
    assert do(store, "revert").original == len(patch)


def test_faiss_files_keep_symlinks_and_permissions(tmp_path):
    store = Faiss(tmp_path)
    store.fill(vectors())
    real = tmp_path / "real.faiss"
    os.rename(store.path, real)
    real.chmod(0o640)
    os.symlink(real, store.path)
    patch = patch_for(store)
    do(store, "apply", patch)
    assert os.path.islink(store.path)
    assert real.stat().st_mode & 0o777 == 0o640
    assert do(store, "revert", patch, url=f"faiss:{real}").original == len(patch)


def test_faiss_row_numbers_that_have_shifted(tmp_path):
    import faiss

    index = faiss.IndexFlatIP(DIM)
    index.add(vectors())
    store = Faiss(tmp_path)
    faiss.write_index(index, store.path)
    patch = patch_for(store)
    do(store, "apply", patch)
    index = faiss.read_index(store.path)
    index.remove_ids(np.array([0]))
    faiss.write_index(index, store.path)
    with pytest.raises(StoreError, match="row numbers have shifted"):
        do(store, "revert")


def test_lancedb_versions_are_kept(tmp_path):
    store = Lance(tmp_path)
    store.fill(vectors())
    versions = {each["version"] for each in store.table.list_versions()}
    store.table.tags.create("mine", min(versions))
    patch = patch_for(store)
    do(store, "apply", patch)
    do(store, "revert", patch)
    assert versions <= {each["version"] for each in store.database.open_table("docs").list_versions()}


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("lancedb:x#docs", "lancedb", "lancedb"),
        ("postgresql://x/y#docs", "psycopg", "pgvector"),
        ("qdrant:x#docs", "qdrant_client", "qdrant"),
        ("chroma:x#docs", "chromadb", "chroma"),
        ("milvus:x.db#docs", "pymilvus", "milvus"),
        ("faiss:x", "faiss", "faiss"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch, url, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'nudgevec\[{extra}\]'"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("lancedb:nowhere#docs", "there is no LanceDB folder at nowhere"),
        ("lancedb:{folder}/db", "no table given: add it after a #"),
        ("lancedb:{folder}/db#nothing", "there is no table 'nothing'; tables here: docs"),
        ("lancedb:{folder}/db?vector=v#docs", "has no column 'v'; it has text, id, vector, tags"),
        ("lancedb:{folder}/db?colour=red#docs", "unknown option 'colour'"),
        ("mystore://x#y", "unknown store"),
        ("postgresql://nobody@127.0.0.1:1/x#docs", "refused"),
        ("qdrant:{folder}#docs", "there is no Qdrant folder"),
        ("qdrant://127.0.0.1:1#docs", "cannot be opened: .*refused"),
        ("chroma:{folder}#docs", "there is no Chroma folder"),
        ("chroma://127.0.0.1:1#docs", "Could not connect"),
        ("milvus:{folder}/x.db#docs", "there is no Milvus file"),
        ("milvus://127.0.0.1:1#docs", "Fail connecting"),
        ("faiss:{folder}/x", "there is no index file"),
        ("faiss:{folder}/x#docs", "holds one collection"),
        ("qdrant://host:port#docs", "cannot be parsed"),
    ],
)
def test_bad_urls(tmp_path, url, message):
    Lance(tmp_path).fill(vectors(rows=10))
    with pytest.raises(NudgeError, match=message) as refused:
        open_store(url.format(folder=tmp_path))
    assert isinstance(refused.value, (StoreError, OptionError))
