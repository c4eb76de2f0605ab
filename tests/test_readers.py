"""Every layout gives the same collection, and malformed files are reported."""

from __future__ import annotations

import io
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import collections_on_disk as disk
from nudgevec.errors import InputError, LabelError, NudgeWarning
from nudgevec.text import readers
from nudgevec.text.embedders import embed_collection
from nudgevec.text.readers import vectors as vector_files


def test_beir_with_one_qrels_file(tmp_path):
    corpus, queries, qrels = disk.texts()
    collection = readers.read(disk.beir(tmp_path / "tiny"))
    assert collection.name == "tiny"
    assert list(collection.documents.ids) == list(corpus)
    assert collection.documents.texts[0].startswith("coffee 0 ")
    assert dict(zip(collection.queries.ids, collection.queries.texts, strict=True)) == queries
    assert collection.qrels == {"all": qrels}


def test_beir_splits_by_file_name(tmp_path):
    collection = readers.read(disk.beir(tmp_path, {"train": 0.7, "dev": 0.1, "test": 0.2}))
    assert {split: len(qrels) for split, qrels in collection.qrels.items()} == {
        "train": 126,
        "validation": 18,
        "test": 36,
    }


def test_trec_qrels(tmp_path):
    disk.beir(tmp_path)
    (tmp_path / "qrels.tsv").unlink()
    (tmp_path / "qrels.txt").write_text("q-coffee-0 0 coffee-0 2\nq-coffee-0 0 coffee-1 0\n")
    assert readers.read(tmp_path).qrels == {"all": {"q-coffee-0": {"coffee-0": 2, "coffee-1": 0}}}


def test_llama_index(tmp_path):
    corpus, queries, qrels = disk.texts()
    relevant = {query: list(grades) for query, grades in qrels.items()}
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps({"queries": queries, "corpus": corpus, "relevant_docs": relevant, "mode": "text"}))
    collection = readers.read(path)
    assert collection.qrels == {"all": qrels}
    assert list(collection.documents.texts) == list(corpus.values())


def test_folders_saved_by_the_hugging_face_library(tmp_path):
    from datasets import Dataset, DatasetDict

    corpus, queries, qrels = disk.texts()
    Dataset.from_dict({"_id": list(corpus), "text": list(corpus.values())}).save_to_disk(tmp_path / "corpus")
    Dataset.from_dict({"_id": list(queries), "text": list(queries.values())}).save_to_disk(tmp_path / "queries")
    halves = {"train": list(qrels)[::2], "test": list(qrels)[1::2]}
    splits = {
        split: Dataset.from_list(
            [
                {"query-id": query, "corpus-id": document, "score": grade}
                for query in half
                for document, grade in qrels[query].items()
            ]
        )
        for split, half in halves.items()
    }
    DatasetDict(splits).save_to_disk(tmp_path / "default")
    collection = readers.read(tmp_path)
    assert collection.qrels == {split: {query: qrels[query] for query in half} for split, half in halves.items()}
    assert list(collection.documents.texts) == list(corpus.values())


@pytest.mark.parametrize("saved", ["parquet", "arrow"])
def test_hugging_face(tmp_path, saved):
    corpus, queries, qrels = disk.texts()

    def save(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(rows)
        if saved == "parquet":
            pq.write_table(table, path.with_suffix(".parquet"))
        else:
            with pa.ipc.new_stream(str(path.with_suffix(".arrow")), table.schema) as file:
                file.write_table(table)

    save("corpus/corpus-00000", [{"_id": key, "title": "", "text": text} for key, text in corpus.items()])
    save("queries/queries-00000", [{"_id": key, "text": text} for key, text in queries.items()])
    rows = [{"query-id": query, "corpus-id": next(iter(grades)), "score": 1.0} for query, grades in qrels.items()]
    save("default/train-00000", rows[:100])
    save("default/test/data-00000", rows[100:])
    collection = readers.read(tmp_path)
    assert {split: len(qrels) for split, qrels in collection.qrels.items()} == {"train": 100, "test": 80}
    assert collection.merged_qrels == qrels
    assert list(collection.queries.texts) == list(queries.values())


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet", "arrow"])
def test_vectors(tmp_path, kind):
    random = np.random.default_rng(0)
    for name, rows in (("documents", 20), ("queries", 9)):
        vectors = random.standard_normal((rows, 4)).astype(np.float32)
        ids = [f"{name[0]}{row}" for row in range(rows)]
        if kind in ("npy", "safetensors"):
            (tmp_path / f"{name}.ids").write_text("\n".join(ids) + "\n")
        if kind == "npy":
            np.save(tmp_path / "x.npy", vectors)
            (tmp_path / "x.npy").rename(tmp_path / f"{name}.npy")
        elif kind == "safetensors":
            save_file({"vectors": vectors}, tmp_path / f"{name}.safetensors")
        else:
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
            table = pa.table({"id": ids, "vector": column})
            if kind == "parquet":
                pq.write_table(table, tmp_path / f"{name}.parquet")
            else:
                with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), table.schema) as file:
                    file.write_table(table)
        np.save(tmp_path / f"expected-{name}.npy", vectors)
    (tmp_path / "qrels.txt").write_text("q0 0 d3 1\nq1 0 d4 1\n")
    collection = readers.read(tmp_path)
    assert collection.qrels == {"all": {"q0": {"d3": 1.0}, "q1": {"d4": 1.0}}}
    for items, name in ((collection.documents, "documents"), (collection.queries, "queries")):
        assert np.array_equal(items.vectors, np.load(tmp_path / f"expected-{name}.npy"))
        assert list(items.ids)[-1] == f"{name[0]}{len(items) - 1}"


@pytest.mark.parametrize(
    ("second", "problem"),
    [([4.0, 5, 6, 7, 8], "a vector of 5 dimensions, row 0 of 3"), (None, "no vector")],
)
def test_vectors_that_are_missing_or_longer_are_refused(tmp_path, second, problem):
    (tmp_path / "qrels.txt").write_text("a 0 b 1\n")
    for vector in ([1.0] * 3, second):
        table = pa.table({"id": ["a", "b"], "vector": [[1.0, 2, 3], vector]})
        for name in ("documents", "queries"):
            pq.write_table(table, tmp_path / f"{name}.parquet")
        if vector is not second:
            assert readers.read(tmp_path).documents.vectors.shape == (2, 3)
    with pytest.raises(
        InputError, match=rf"documents.parquet: row 1 of column 'vector' has {problem}; remove or repair it"
    ):
        readers.read(tmp_path)


NO_NPY = {
    "empty": lambda: b"",
    "an archive": lambda: b"PK\x03\x04 and then nothing",
    "npz": lambda: saved(lambda file: np.savez(file, vectors=np.eye(3))),
    "a pickle": lambda: pickle.dumps([1.0]),
    "objects": lambda: saved(lambda file: np.save(file, np.array([{}, {}], object), allow_pickle=True)),
    "cut": lambda: saved(lambda file: np.save(file, np.eye(3)))[:-1],
    "header only": lambda: saved(lambda file: np.save(file, np.eye(3)))[:40],
}


def saved(save):
    file = io.BytesIO()
    save(file)
    return file.getvalue()


@pytest.mark.parametrize("contents", NO_NPY)
def test_files_that_are_no_npy_files_are_reported(tmp_path, contents):
    for path in (tmp_path / "documents.npy", tmp_path / "embeddings" / "m" / "corpus.npy"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(NO_NPY[contents]())
    with pytest.raises(InputError, match=r"documents.npy is not a readable .npy file of numbers: "):
        vector_files.read_items(tmp_path, "documents")
    with pytest.raises(InputError, match=r"corpus.npy is not a readable .npy file of numbers: "):
        embed_collection(readers.read(disk.beir(tmp_path)), "precomputed:m")


@pytest.mark.parametrize("shape", [(), (3,), (3, 2, 1)])
def test_arrays_that_are_no_tables_are_reported(tmp_path, shape):
    np.save(tmp_path / "documents.npy", np.ones(shape))
    with pytest.raises(InputError, match=r"documents.npy has an array of shape .*, expected \(rows, dimensions\)"):
        vector_files.read_items(tmp_path, "documents")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_unreadable_tables_are_reported(tmp_path, suffix):
    (tmp_path / f"documents{suffix}").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match=rf"documents{suffix} cannot be read: "):
        vector_files.read_items(tmp_path, "documents")


def test_labels_of_unknown_documents_are_dropped_and_counted(tmp_path):
    disk.beir(tmp_path)
    with (tmp_path / "qrels.tsv").open("a") as file:
        file.write("q-coffee-0\tnowhere\t1\nnobody\tcoffee-1\t1\n")
    with pytest.warns(
        NudgeWarning,
        match="labels of unknown queries or documents are ignored: 2, for example 'q-coffee-0' -> 'nowhere'",
    ):
        collection = readers.read(tmp_path)
    assert collection.n_dropped_labels == 2
    assert "nobody" not in collection.merged_qrels


def invalid_json(folder):
    with (folder / "corpus.jsonl").open("a") as file:
        file.write("{oops\n")


def no_id(folder):
    with (folder / "queries.jsonl").open("a") as file:
        file.write('{"text": "who am I"}\n')


def bad_grade(folder):
    with (folder / "qrels.tsv").open("a") as file:
        file.write("q-coffee-0\tcoffee-1\thigh\n")


def duplicate_id(folder):
    line = (folder / "corpus.jsonl").read_text().splitlines()[0]
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(line + "\n")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (invalid_json, r"corpus.jsonl, line 49: invalid JSON"),
        (no_id, r'queries.jsonl, line 181: missing field "_id"'),
        (bad_grade, r"qrels.tsv, line 182: expected query, document and grade .*high"),
        (duplicate_id, r"documents: the id 'coffee-0' is not unique"),
        (lambda folder: (folder / "qrels.tsv").unlink(), "has no labels: expected a folder qrels/ or a file qrels.tsv"),
        (lambda folder: (folder / "queries.jsonl").unlink(), "has no queries.jsonl"),
        (
            lambda folder: (folder / "qrels.tsv").write_text("q 0 d 1\n"),
            "no usable labels: all 1 have an unknown query or document, .*'q' -> 'd'",
        ),
    ],
)
def test_malformed_files_are_reported_with_the_line(tmp_path, spoil, message):
    spoil(disk.beir(tmp_path))
    with pytest.raises(InputError, match=message):
        readers.read(tmp_path)


def test_unknown_layouts_name_the_known_ones(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"contains notes.txt; expected a BEIR folder"):
        readers.read(tmp_path)
    with pytest.raises(InputError, match="absent does not exist"):
        readers.read(tmp_path / "absent")
    with pytest.raises(InputError, match="is a single file"):
        readers.read(tmp_path / "notes.txt")
    (tmp_path / "odd.json").write_text("[]")
    with pytest.raises(InputError, match="is not an EmbeddingQAFinetuneDataset"):
        readers.read(tmp_path / "odd.json")
    assert issubclass(LabelError, InputError)


@pytest.mark.parametrize("line", ["[" * 100_000, '{"_id": ' + "9" * 5000 + "}"], ids=["deep", "long number"])
def test_json_that_python_cannot_hold(line, tmp_path):
    disk.beir(tmp_path)
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match="line 49: invalid JSON: "):
        readers.read(tmp_path)
