"""A query keeps its split, whatever else happens."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import collections_on_disk as disk
from nudgevec.errors import LabelError
from nudgevec.text import readers
from nudgevec.text.collection import Items, make_collection
from nudgevec.text.splits import SPLITS, normalise, split, split_of


def test_a_split_is_the_same_in_every_process_and_near_the_shares():
    keys = [f"query number {number}" for number in range(4000)]
    splits = [split_of(key) for key in keys]
    shares = [splits.count(name) / len(splits) for name in SPLITS]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.03)
    code = "from nudgevec.text.splits import split_of; print(*[split_of(f'query number {n}') for n in range(50)])"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert other == splits[:50]


def test_more_queries_do_not_change_the_splits_of_others(tmp_path):
    whole = readers.read(disk.beir(tmp_path))
    half = replace(whole, qrels={"all": dict(list(whole.qrels["all"].items())[:90])})
    few, many = split(half), split(whole)
    for name in SPLITS:
        assert set(few[name]) <= set(many[name])


def test_spellings_of_one_query_share_a_split(tmp_path):
    assert normalise("Straße  IN\u00a0Köln") == normalise("strasse in ko\u0308ln")
    texts = [form.format(number) for number in range(200) for form in ("How to bake {}", " how  TO bake {} ")]
    ids = [str(number) for number in range(len(texts))]
    collection = make_collection(
        "x", Items(["d"], ["text"]), Items(ids, texts), {"all": {key: {"d": 1.0} for key in ids}}, tmp_path
    )
    parts = split(collection)
    for name in SPLITS:
        assert {int(key) // 2 for key in parts[name]} == {int(key) // 2 for key in parts[name] if int(key) % 2}


def test_given_splits_are_kept_and_cleaned_of_leaks(tmp_path):
    collection = readers.read(disk.beir(tmp_path, {"train": 0.7, "test": 0.3}))
    leaked = next(iter(collection.qrels["test"]))
    texts = dict(zip(collection.queries.ids, collection.queries.texts, strict=True))
    spelled = replace(
        collection,
        queries=Items([*collection.queries.ids, "leak"], [*collection.queries.texts, texts[leaked].upper()]),
        qrels={**collection.qrels, "train": {**collection.qrels["train"], "leak": {"coffee-0": 1.0}}},
    )
    parts = split(spelled)
    assert parts["test"] == collection.qrels["test"]
    assert "leak" not in parts["train"]
    assert "leak" not in parts["validation"]
    keys = {name: {normalise(texts[key]) for key in parts[name]} for name in SPLITS}
    assert not keys["train"] & keys["validation"]
    assert not (keys["train"] | keys["validation"]) & keys["test"]
    assert 0.05 < len(parts["validation"]) / len(collection.qrels["train"]) < 0.25


def test_too_few_to_split(tmp_path):
    collection = make_collection("x", Items(["d"], ["t"]), Items(["q"], ["t"]), {"all": {"q": {"d": 1.0}}}, tmp_path)
    with pytest.raises(LabelError, match="1 labelled queries are too few to split: no query is left for"):
        split(collection)


def test_large_splits_are_capped(tmp_path):
    parts = split(readers.read(disk.beir(tmp_path)), max_queries={"validation": 5, "test": 7})
    assert len(parts["validation"]) == 5
    assert len(parts["test"]) == 7
