"""What ``evaluate --store`` measures: the vectors that the store serves, the original ones, or the store's search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import collections_on_disk as disk
from nudgevec import NudgeM, NudgeN, cli, evaluate, open_store, tune
from nudgevec.engines.cpu import CpuEngine
from nudgevec.errors import InputError
from nudgevec.feedback.events import open_labels
from nudgevec.stores import evaluate_index
from nudgevec.text.embedders import static

STORE = "lancedb:db#docs"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with a patch that is applied, and the run that it comes from."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        corpus, queries, qrels = disk.texts()
        (folder / "texts").mkdir()
        for key, text in corpus.items():
            (folder / "texts" / f"{key}.txt").write_text(text)
        lines = [
            json.dumps({"query": queries[query], "document": f"{key}.txt", "source": query})
            for query, grades in qrels.items()
            for key in grades
        ]
        (folder / "events.jsonl").write_text("\n".join(lines))
        assert cli.main(["index", "texts", "--store", STORE, "--quiet"]) == 0
        tune = ["tune", "--store", STORE, "--labels", "events.jsonl", "--embedder", "static", "--guard", "0"]
        assert cli.main([*tune, "--out", "run", "--quiet"]) == 0
        assert cli.main([*tune, "--out", "other", "--gamma", "0.3", "--quiet"]) == 0
        assert cli.main(["apply", "run", "--store", STORE]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def measure(capsys, *options):
    """Return the printed figures."""
    capsys.readouterr()
    labels = ["--labels", "events.jsonl", "--embedder", "static"]
    assert cli.main(["evaluate", "--store", STORE, *labels, *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_served_vectors_are_measured(folder, capsys):
    facts = json.loads((folder / "run" / "run.json").read_text())
    served, original = measure(capsys), measure(capsys, "--original")
    assert served["test"] == facts["test"]["after"]
    assert original["test"] == facts["test"]["before"] != served["test"]
    assert served["documents"].startswith("as the store serves them; Nudge with gamma ")
    assert original["documents"] == "the original vectors"


def test_the_search_of_the_store_is_measured(folder, capsys):
    """A table without an index is searched exactly."""
    measured = measure(capsys, "--through-index")
    assert measured["test"] == measure(capsys)["test"]
    assert measured["similarity"] == "index"
    assert measure(capsys, "--through-index", "--run", "run")["test"] == measured["test"]


def test_the_patch_of_another_run_is_measured_on_the_original_vectors(folder, capsys):
    facts = json.loads((folder / "other" / "run.json").read_text())
    assert measure(capsys, "--run", "other")["test"] == facts["test"]["after"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", STORE, "--run", "other", "--through-index"], "the patch of other is not applied"),
        (["--store", STORE, "--run", "run", "--through-index", "--original"], "not the original vectors"),
        (["texts", "--labels", "events.jsonl", "--through-index"], "needs --store URL"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys):
    assert cli.main(["evaluate", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_worse_index_gives_worse_figures(folder):
    """The figures come from the index and not from the vectors: here it searches one of fifty cells."""
    import faiss

    random = np.random.default_rng(0)
    documents = random.standard_normal((2000, 16)).astype(np.float32)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(16), 16, 50, faiss.METRIC_INNER_PRODUCT)
    index.train(documents)
    index.add(documents)
    faiss.write_index(index, str(folder / "cells.faiss"))
    queries = random.standard_normal((100, 16)).astype(np.float32)
    labels = [[int(row)] for row in (queries @ documents.T).argmax(axis=1)]
    with open_store(f"faiss:{folder}/cells.faiss") as store:
        found = evaluate_index(store, queries, labels, "success@1")["success@1"].mean
        expected = np.mean([store.search(query, 1) == label for query, label in zip(queries, labels, strict=True)])
    assert found == expected < 1


@pytest.mark.parametrize(("kind", "default"), [("IndexFlatIP", "dot"), ("IndexFlatL2", "cosine")])
def test_a_store_is_measured_by_its_own_similarity(tmp_path, kind, default):
    """Also through a patch, applied or not."""
    import faiss

    random = np.random.default_rng(0)
    vectors = (random.standard_normal((300, 8)) * random.uniform(0.1, 10, (300, 1))).astype(np.float32)
    queries, labels = random.standard_normal((60, 8)), random.integers(0, 300, (60, 1)).tolist()
    index = getattr(faiss, kind)(8)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "docs.faiss"))
    other = {"dot": "cosine", "cosine": "dot"}[default]
    with open_store(f"faiss:{tmp_path}/docs.faiss") as store:
        patch = (NudgeM if default == "dot" else NudgeN)(gamma=0.5).fit(store, (queries, labels)).patch_
        for measured, same in ((store, vectors), (patch.over(store), patch.apply(vectors))):
            means = [
                evaluate(documents, queries, labels, "ndcg@10", similarity=similarity)["ndcg@10"].mean
                for documents, similarity in ((measured, None), (same, default), (measured, other))
            ]
            assert means[0] == means[1] != means[2]
        if default == "dot":
            store.apply(patch)
            original = evaluate(store.original(), queries, labels)
            assert original["ndcg@10"].mean == evaluate(vectors, queries, labels, similarity="dot")["ndcg@10"].mean


@pytest.mark.parametrize("kind", ["IndexFlatL2", "IndexFlatIP"])
def test_figures_that_a_store_does_not_serve_are_refused(tmp_path, monkeypatch, capsys, kind):
    """Vectors of different lengths are ranked otherwise by cosine similarity."""
    import faiss

    monkeypatch.chdir(tmp_path)
    corpus, queries, qrels = disk.texts()
    row_of = {key: row for row, key in enumerate(corpus)}
    events = [{"query": queries[query], "document": row_of[key]} for query, grades in qrels.items() for key in grades]
    Path("events.jsonl").write_text("\n".join(map(json.dumps, events)))
    unit = static.embed(list(corpus.values()))
    similarity = {"IndexFlatL2": "l2", "IndexFlatIP": "dot"}[kind]
    options = ["--store", "faiss:docs.faiss", "--labels", "events.jsonl", "--embedder", "static", "--quiet", "--json"]

    def run(verb, *more):
        capsys.readouterr()
        code = cli.main([verb, *options, *more])
        output = capsys.readouterr()
        return json.loads(output.out)["test"] if code == 0 else output.err

    def tune(name, *more):
        return run("tune", "--out", name, "--method", "N", "--guard", "0", *more)

    for lengths in (1.0, 5.0, np.linspace(0.2, 3, len(corpus))[:, None]):
        index = getattr(faiss, kind)(unit.shape[1])
        index.add(np.float32(lengths * unit))
        faiss.write_index(index, "docs.faiss")
        served, by_cosine = run("evaluate", "--through-index"), run("evaluate", "--similarity", "cosine")
        if np.ndim(lengths) == 0:
            assert run("evaluate") == served == by_cosine
        else:
            assert served != by_cosine
            assert f"faiss:docs.faiss uses {similarity} similarity, which ranks vectors of different lengths" in (
                run("evaluate", "--run", "run", "--original") if similarity == "dot" else run("evaluate")
            )
        if isinstance(lengths, float) and lengths == 1:
            assert tune("run")["before"]["ndcg@10"] == served["ndcg@10"]
        else:
            assert f"uses {similarity} similarity, and NUDGE-N requires cosine similarity or unit vectors" in tune(
                "new"
            )
            assert not Path("new").exists()


def test_tune_takes_open_stores_logs_and_engines(folder, monkeypatch):
    monkeypatch.chdir(folder)
    by_name = tune(STORE, labels="events.jsonl", embedder="static", guard=0.0)
    with open_labels(Path("events.jsonl")) as log, open_store(STORE) as store:
        by_object = tune(store, labels=log, embedder="static", guard=0.0, engine=CpuEngine(), out="again")
        assert store.status().is_applied
        assert len(log) > 0
        with pytest.raises(InputError, match="has no labels: pass a label log"):
            tune(store)
    assert by_name.patch.identity == by_object.patch.identity
    assert by_object.facts["data"] == by_name.facts["data"]
