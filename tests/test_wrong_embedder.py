"""Queries and documents of different models are noticed, although their vectors have the same dimensions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import collections_on_disk as disk
from nudgevec import cli, demo, open_store
from nudgevec.text.embedders import EMBEDDERS, static


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))


def write_emoji(folder, rotation=None):
    """Write the data of the demo as a folder of vectors, with rotated documents: those of another model."""
    search = demo.load()
    folder.mkdir()
    documents = search.documents if rotation is None else (search.documents @ rotation).astype(np.float32)
    np.save(folder / "documents.npy", documents)
    np.save(folder / "queries.npy", search.queries)
    (folder / "qrels").mkdir()
    for name, part in (("train", search.train), ("validation", search.validation), ("test", search.test)):
        _, labels = search.part(part)
        lines = [f"{query} 0 {row} 1" for query, rows in zip(part, labels, strict=True) for row in rows]
        (folder / "qrels" / f"{name}.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("seed", range(3))
def test_documents_of_another_model_are_refused(seed, tmp_path, capsys):
    normal = np.random.default_rng(seed).standard_normal((256, 256))
    write_emoji(tmp_path / "data", np.linalg.qr(normal)[0])
    assert cli.main(["tune", "data", "--out", "run"]) == 1
    problem = capsys.readouterr().err
    assert "where chance gives 50%: queries and documents seem to be embedded with different models" in problem
    assert "--no-embedder-check" in problem
    assert problem.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert cli.main(["tune", "data", "--out", "run", "--no-embedder-check", "--quiet"]) == 0
    assert cli.main(["evaluate", "data"]) == 0
    assert "warning: data: queries are closer" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(3))
def test_a_half_migrated_collection_is_noticed(seed, tmp_path, capsys):
    random = np.random.default_rng(seed)
    write_emoji(tmp_path / "data", np.linalg.qr(random.standard_normal((256, 256)))[0])
    other = np.load("data/documents.npy")
    documents = demo.load().documents
    is_other = random.random(len(documents)) < 0.5
    documents[is_other] = other[is_other]
    np.save("data/documents.npy", documents)
    for command in (["tune", "data", "--out", "run", "--quiet"], ["evaluate", "data"]):
        assert cli.main(command) == 0
        problem = capsys.readouterr().err
        assert "labelled documents are closer to other queries than to their own: a part of the documents" in problem
        assert problem.count("\n") == 1
    assert cli.main(["tune", "data", "--out", "other", "--quiet", "--no-embedder-check"]) == 0
    assert capsys.readouterr().err == ""


def test_too_few_labels_to_notice_another_model_are_a_warning(tmp_path, capsys):
    """Where the vectors of the documents were made elsewhere."""
    write_emoji(tmp_path / "data")
    for path in (tmp_path / "data" / "qrels").iterdir():
        path.write_text("\n".join(path.read_text().splitlines()[:6]))
    assert cli.main(["evaluate", "data"]) == 0
    problem = "18 labels are too few to see whether queries and documents come from the same model"
    assert capsys.readouterr().err == f"nudgevec: warning: data: {problem}\n"
    disk.beir(tmp_path / "texts", {"train": 0.6, "dev": 0.2, "test": 0.2})
    for path in (tmp_path / "texts" / "qrels").iterdir():
        path.write_text("\n".join(path.read_text().splitlines()[:4]))
    assert cli.main(["evaluate", "texts"]) == 0
    assert capsys.readouterr().err == ""


def test_documents_of_the_same_model_are_not(tmp_path, capsys):
    write_emoji(tmp_path / "data")
    assert cli.main(["tune", "data", "--out", "run", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


class Reversed:
    """Another model with as many dimensions, whose vectors say the same."""

    name, cached, batch_size, prefixes = "backwards", False, 1000, ("", "")

    def embed(self, texts):
        return static.embed(texts)[:, ::-1].copy()


def test_an_index_records_its_embedder(tmp_path, monkeypatch, capsys):
    corpus, queries, qrels = disk.texts()
    (tmp_path / "texts").mkdir()
    for key, text in corpus.items():
        (tmp_path / "texts" / f"{key}.txt").write_text(text)
    events = [
        {"query": queries[query], "document": f"{key}.txt", "source": query}
        for query, grades in qrels.items()
        for key in grades
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    EMBEDDERS.register("backwards", Reversed)
    assert cli.main(["index", "texts", "--store", "lancedb:db#docs", "--embedder", "static", "--quiet"]) == 0
    tune = ["tune", "--store", "lancedb:db#docs", "--labels", "events.jsonl", "--guard", "0", "--quiet"]
    capsys.readouterr()
    assert cli.main([*tune, "--embedder", "backwards", "--out", "run"]) == 1
    assert "lancedb:db#docs: the documents were embedded with static, and the queries with backwards" in (
        capsys.readouterr().err
    )
    assert cli.main([*tune, "--embedder", "static", "--out", "run"]) == 0
    for command in ("apply", "revert"):
        assert cli.main([command, "run", "--store", "lancedb:db#docs"]) == 0
        with open_store("lancedb:db#docs") as store:
            assert store.embedder == "static"
