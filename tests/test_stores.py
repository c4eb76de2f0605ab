"""One suite for all stores: put on, verify, take back, and nothing lost whatever happens in between.

A store joins by a class like ``Lance`` here and one line in ``STORES``.
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

import numpy as np
import pyarrow as pa
import pytest

import collections_on_disk as disk
from nudgevec import NudgeM, NudgeN, Patch, cli, open_store
from nudgevec.embedders import static
from nudgevec.errors import NudgeError, OptionError, StoreError

ROWS, DIM = 1200, 24


class Lance:
    """A LanceDB table with more than vectors in it, written in several pieces."""

    def __init__(self, folder):
        import lancedb

        self.url = f"lancedb:{folder}/db#docs"
        self.database = lancedb.connect(f"{folder}/db")

    def fill(self, vectors, ids=None):
        ids = [f"it's {row}" for row in range(len(vectors))] if ids is None else ids
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
        """Every row of the collection, by id."""
        table = self.database.open_table("docs").to_arrow()
        assert len(table) == len(set(table["id"].to_pylist()))
        return {row["id"]: row for row in table.to_pylist()}

    def change(self, key, vector):
        self.database.open_table("docs").update(where=_is(key), values={"vector": vector.tolist()})

    def delete(self, key):
        self.database.open_table("docs").delete(_is(key))

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

    def index(self, metric):
        from lancedb.index import IvfPq

        config = IvfPq(distance_type=metric, num_partitions=4, num_sub_vectors=8)
        self.database.open_table("docs").create_index("vector", config=config)

    def search(self, vector, metric):
        found = self.database.open_table("docs").search(vector).distance_type(metric).nprobes(4).refine_factor(10)
        return [row["id"] for row in found.limit(3).to_list()]


def _is(key):
    return "id = '" + key.replace("'", "''") + "'"


STORES = {"lancedb": Lance}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def vectors(seed=0, rows=ROWS, dim=DIM):
    made = np.random.default_rng(seed).standard_normal((rows, dim))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def patch_for(store, method=NudgeN, count=300, gamma=0.2, seed=1):
    documents = open_store(store.url)
    queries = vectors(seed, count, documents.dim)
    labels = [[documents.ids[row]] for row in np.random.default_rng(seed).integers(0, len(documents.ids), count)]
    return method(gamma=gamma).fit(documents, (queries, labels)).patch_


def test_only_moved_rows_are_written_and_come_back_bit_for_bit(store):
    store.fill(vectors())
    before = store.everything()
    patch = patch_for(store)
    assert 100 < len(patch) < 400
    status = open_store(store.url).apply(patch)
    assert (status.applied, status.original, status.changed, status.gone) == (len(patch), 0, (), ())
    after = store.everything()
    moved = dict(zip(patch.ids, patch.after, strict=True))
    assert sorted(after) == sorted(before)
    for key, row in after.items():
        if key in moved:
            assert np.array_equal(np.float32(row["vector"]), moved[key])
            assert {**row, "vector": 0} == {**before[key], "vector": 0}
        else:
            assert row == before[key]
    assert open_store(store.url).verify(patch).applied == len(patch)
    assert "rows carry it" in str(open_store(store.url).status())
    left = open_store(store.url).revert(patch)
    assert left.original == len(patch)
    assert store.everything() == before
    assert str(open_store(store.url).status()) == "no patch is in force"


def test_twice_is_once(store):
    store.fill(vectors())
    patch = patch_for(store)
    open_store(store.url).apply(patch)
    after = store.everything()
    assert open_store(store.url).apply(patch).applied == len(patch)
    assert store.everything() == after
    open_store(store.url).revert(patch)
    with pytest.raises(StoreError, match="nothing to take back"):
        open_store(store.url).revert(patch)


def test_rows_that_others_touch_are_left_alone_and_listed(store):
    store.fill(vectors())
    before = store.everything()
    patch = patch_for(store)
    open_store(store.url).apply(patch)
    changed, gone = patch.ids[0], patch.ids[1]
    mine = vectors(9, 1)[0]
    store.change(changed, mine)
    store.delete(gone)
    store.add("new", vectors(8, 1)[0])
    status = open_store(store.url).status()
    assert (status.changed, status.gone) == ((changed,), (gone,))
    left = open_store(store.url).revert(patch)
    assert (left.changed, left.gone, left.original) == ((changed,), (gone,), len(patch) - 2)
    now = store.everything()
    assert np.array_equal(np.float32(now[changed]["vector"]), mine)
    assert "new" in now
    assert gone not in now
    for key in set(now) - {changed, "new"}:
        assert now[key] == before[key]


def test_what_would_be_wrong_is_refused(store):
    ids = store.fill(vectors())
    patch, other = patch_for(store), patch_for(store, seed=5)
    before = store.everything()
    store.change(patch.ids[3], vectors(9, 1)[0])
    with pytest.raises(StoreError, match=r"1 of \d+ documents have other vectors .*" + patch.ids[3]):
        open_store(store.url).apply(patch)
    store.change(patch.ids[3], np.float32(before[patch.ids[3]]["vector"]))
    open_store(store.url).apply(patch)
    with pytest.raises(StoreError, match=r"another patch is in force .* revert it first"):
        open_store(store.url).apply(other)
    with pytest.raises(StoreError, match="another patch is in force"):
        open_store(store.url).revert(other)
    open_store(store.url).revert(patch)
    assert store.everything() == before
    store.delete(patch.ids[0])
    with pytest.raises(StoreError, match="1 documents of the patch are gone"):
        open_store(store.url).apply(patch)
    store.add(patch.ids[0], np.float32(before[patch.ids[0]]["vector"]))
    store.add(patch.ids[1], np.float32(before[patch.ids[1]]["vector"]))
    with pytest.raises(StoreError, match="1 ids stand there twice"):
        open_store(store.url).apply(patch)
    assert open_store(store.url).status().facts is None
    assert len(ids) == ROWS


def test_methods_and_metrics_that_do_not_go_together(store):
    store.fill(vectors())
    turn, slide = patch_for(store), patch_for(store, NudgeM)
    base, _, table = store.url.partition("#")
    for metric in ("cosine", "l2"):
        with pytest.raises(StoreError, match="right for inner product only: tune with --method N"):
            open_store(f"{base}?metric={metric}#{table}").apply(slide)
    assert open_store(f"{base}?metric=dot#{table}").apply(slide).applied == len(slide)
    open_store(store.url).revert(slide)
    assert open_store(f"{base}?metric=l2#{table}").apply(turn).applied == len(turn), "unit vectors: l2 is cosine"


def test_lengths_matter_where_the_metric_is_not_cosine(store):
    store.fill(vectors() * np.float32(3))
    patch = patch_for(store)
    base, _, table = store.url.partition("#")
    with pytest.raises(StoreError, match="for unit vectors only"):
        open_store(f"{base}?metric=dot#{table}").apply(patch)
    assert open_store(f"{base}?metric=cosine#{table}").apply(patch).applied == len(patch)


def test_another_dimension(store, tmp_path):
    store.fill(vectors(dim=8))
    patch = patch_for(store)
    other = STORES["lancedb"](tmp_path / "other")
    other.fill(vectors())
    with pytest.raises(StoreError, match="has 24 dimensions, the patch has 8"):
        open_store(other.url).apply(patch)


def test_tuning_starts_from_the_original_vectors(store):
    store.fill(vectors())
    patch = patch_for(store)
    documents, queries = open_store(store.url), vectors(3, 200)
    labels = [[documents.ids[row]] for row in range(200)]
    fresh = NudgeN(gamma=0.1).fit(documents, (queries, labels)).patch_
    open_store(store.url).apply(patch)
    again = NudgeN(gamma=0.1).fit(open_store(store.url).original(), (queries, labels)).patch_
    assert sorted(again.ids) == sorted(fresh.ids)
    one, other = (dict(zip(each.ids, each.after, strict=True)) for each in (fresh, again))
    for key, vector in one.items():
        assert np.array_equal(vector, other[key])


def test_the_index_serves_the_new_vectors(store):
    store.fill(vectors(rows=3000))
    store.index("cosine")
    assert open_store(store.url).metric == "cosine"
    patch = patch_for(store, count=600)
    open_store(store.url).apply(patch)
    found = [store.search(patch.after[place], "cosine")[0] == patch.ids[place] for place in range(0, len(patch), 7)]
    assert np.mean(found) > 0.95
    with pytest.raises(StoreError, match="tune with --method N"):
        open_store(store.url).apply(patch_for(store, NudgeM))


APPLY = """
import sys
from nudgevec import Patch, open_store
store = open_store(sys.argv[1])
patch = Patch.load(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
getattr(store, sys.argv[3])(patch)
print("done", flush=True)
"""


def start(store, path, verb):
    command = [sys.executable, "-c", APPLY, store.url, path, verb]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "ready\n", running.stderr.read()
    return running


def test_killed_at_any_moment_the_next_command_puts_it_right(store, tmp_path):
    """Fifty deaths, half while it is put on and half while it is taken back."""
    store.fill(vectors())
    patch = patch_for(store)
    patch.save(tmp_path / "patch")
    before = store.everything()
    open_store(store.url).apply(patch)
    after = store.everything()
    open_store(store.url).revert(patch)
    began = time.perf_counter()
    whole = start(store, tmp_path / "patch", "apply")
    whole.communicate("go\n", timeout=60)
    took = time.perf_counter() - began
    open_store(store.url).revert(patch)
    chance = random.Random(0)
    turns = 50 if os.environ.get("NUDGEVEC_PROPERTY_TESTS") == "full" else 10
    middles = 0
    for turn in range(turns):
        verb = ("apply", "revert")[turn % 2]
        if verb == "revert":
            open_store(store.url).apply(patch)
        with start(store, tmp_path / "patch", verb) as running:
            running.stdin.write("go\n")
            running.stdin.flush()
            time.sleep(chance.uniform(0, min(took, 0.4)))
            running.send_signal(signal.SIGKILL)
        middles += store.everything() not in (before, after) or open_store(store.url).status().facts is not None
        finish = chance.choice(("apply", "revert"))
        if finish == "apply" or open_store(store.url).status().facts is not None:
            getattr(open_store(store.url), finish)(patch)
        assert store.everything() == (after if finish == "apply" else before)
        if finish == "apply":
            open_store(store.url).revert(patch)
        assert store.everything() == before
    assert middles > 0, "no death came in the middle: the test tests nothing"


def test_of_two_at_once_one_wins(store, tmp_path):
    store.fill(vectors())
    for number in range(2):
        patch_for(store, seed=number + 1).save(tmp_path / str(number))
    before = store.everything()
    for _ in range(3):
        both = [start(store, tmp_path / str(number), "apply") for number in range(2)]
        for running in both:
            running.stdin.write("go\n")
            running.stdin.flush()
        said = [running.communicate(timeout=60) for running in both]
        won = [number for number, (out, _) in enumerate(said) if "done" in out]
        assert len(won) == 1, said
        assert "StoreError" in said[1 - won[0]][1]
        winner = Patch.load(tmp_path / str(won[0]))
        assert open_store(store.url).status().applied == len(winner)
        open_store(store.url).revert(winner)
        assert store.everything() == before


def test_a_writer_meanwhile_loses_nothing(store):
    store.fill(vectors())
    patch = patch_for(store)
    stop, added = threading.Event(), []

    def write():
        while not stop.is_set():
            store.add(f"new {len(added)}", vectors(len(added), 1)[0])
            added.append(f"new {len(added)}")
            time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            assert open_store(store.url).apply(patch).applied == len(patch)
            open_store(store.url).revert(patch)
    finally:
        stop.set()
        writer.join()
    now = store.everything()
    assert len(added) > 0
    assert all(key in now for key in added)
    assert len(now) == ROWS + len(added)


def test_from_clicks_to_a_patched_table(tmp_path, monkeypatch, capsys):
    """The README's road: a table with vectors, a log of clicks, and back again."""
    monkeypatch.chdir(tmp_path)
    corpus, asked, qrels = disk.texts()
    store = Lance(tmp_path)
    store.fill(static.embed(list(corpus.values())), list(corpus))
    before = store.everything()
    with open("clicks.jsonl", "w") as file:
        for query, grades in qrels.items():
            file.write(json.dumps({"query": asked[query], "document": next(iter(grades)), "signal": "click"}) + "\n")
    tune = ["tune", store.url, "--labels", "log.sqlite", "--embedder", "static", "--out", "run", "--guard", "0"]
    assert cli.main(["labels", "import", "log.sqlite", "clicks.jsonl"]) == 0
    assert cli.main(tune) == 0
    assert cli.main(["apply", "run", "--store", store.url]) == 0
    assert cli.main(["status", "--store", store.url]) == 0
    said = capsys.readouterr().out
    assert "docs: 48 documents" in said
    assert "rows carry it" in said
    assert store.everything() != before
    first = Patch.load("run/patch.safetensors")
    assert cli.main([*tune, "--overwrite"]) == 0
    assert np.array_equal(Patch.load("run/patch.safetensors").after, first.after), "tuned from the originals"
    assert cli.main(["revert", "run", "--store", store.url]) == 0
    assert store.everything() == before
    assert cli.main(["revert", "run", "--store", store.url]) == 1
    assert "nothing to take back" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("lancedb:nowhere#docs", "there is no LanceDB folder at nowhere"),
        ("lancedb:{folder}/db", "which table"),
        ("lancedb:{folder}/db#nothing", "there is no table 'nothing'; tables here: docs"),
        ("lancedb:{folder}/db?vector=v#docs", "has no column 'v'; it has text, id, vector, tags"),
        ("lancedb:{folder}/db?colour=red#docs", "unknown option 'colour'"),
        ("mystore://x#y", "unknown store"),
    ],
)
def test_bad_urls(tmp_path, url, message):
    Lance(tmp_path).fill(vectors(rows=10))
    with pytest.raises(NudgeError, match=message) as refused:
        open_store(url.format(folder=tmp_path))
    assert isinstance(refused.value, (StoreError, OptionError))
