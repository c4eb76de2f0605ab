"""Methods and experiments of the paper: mathematical properties on toy problems, and every command end to end."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tomllib
import types
from dataclasses import replace

import corpora
import hub
import methods
import numpy as np
import pytest
import torch
from methods import METHODS, NONE, grid_points, settings_of, tune
from methods.adapter import Adapter
from methods.contrastive import batches, ranking_loss
from methods.protocol import Problem, Ranking
from methods.ptft import CANDIDATES, TokenizedTexts, candidates, load_model
from runs import parse_options, random_split, run_path, write_json

from nudgevec import NudgeM, evaluate

R1 = "capped_recall@1"
WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def one_thread():
    """Use one PyTorch thread: more are slower on problems this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def toy(documents=60, queries=240, dim=12, seed=0):
    """Create a data set whose queries are rotated, noisy copies of their one relevant document."""
    random = np.random.default_rng(seed)
    vectors = unit(random.standard_normal((documents, dim)))
    rotation = np.linalg.qr(np.eye(dim) + 0.3 * random.standard_normal((dim, dim)))[0]
    rotation *= np.sign(np.diag(rotation))
    relevant = random.integers(0, documents, queries)
    query_vectors = unit(vectors[relevant] @ rotation + 0.15 * random.standard_normal((queries, dim)))
    document_texts = [" ".join(WORDS[word] for word in random.integers(0, 40, 6)) for _ in range(documents)]
    query_texts = [" ".join(document_texts[row].split()[:3][::-1]) for row in relevant]
    labels = [{int(row): 1.0} for row in relevant]
    return corpora.DataSet("toy", vectors, query_vectors, labels, document_texts, query_texts)


@pytest.fixture
def problem():
    data = toy()
    train, validation, _ = data.split_rows(0)
    return Problem(data, train, validation)


def settings(method, **changed):
    """Return the settings of the first grid point, with changes."""
    return {**grid_points(settings_of(method))[0], **changed}


# Iterative variants.


@pytest.mark.parametrize("iterations", [1, 7, 40])
def test_nudge_im_with_alpha_t_equal_to_gamma_is_nudge_m(problem, iterations):
    data = problem.data
    closed = NudgeM("capped_recall@1", guard=0).fit(
        data.documents, data.subset(problem.train), data.subset(problem.validation)
    )
    assert closed.gamma_ > 0
    steps = settings("NUDGE-IM", iterations=iterations, rate=closed.gamma_ / iterations)
    iterative = tune("NUDGE-IM", problem, {**steps, "watch": True})
    # The last iteration is at gamma*, but an earlier one with the same metric may have been chosen.
    assert iterative.facts["history"][-1]["validation"] == pytest.approx(closed.choice_.after)
    assert iterative.validation == pytest.approx(closed.choice_.after)
    last = tune("NUDGE-IM", problem, {**steps, "iterations": iterative.facts["step"]})
    gamma = closed.gamma_ * iterative.facts["step"] / iterations
    expected = NudgeM(gamma=gamma).fit(data.documents, data.subset(problem.train)).transform(data.documents)
    np.testing.assert_allclose(last.documents, expected, atol=2e-6)


def test_nudge_in_keeps_unit_length_and_moves_only_labelled_documents(problem):
    tuned = tune("NUDGE-IN", problem, settings("NUDGE-IN", iterations=30, rate=0.02))
    assert tuned.facts["step"] > 0
    np.testing.assert_allclose(np.linalg.norm(tuned.documents, axis=1), 1.0, atol=1e-6)
    labelled = {row for query in problem.train for row in problem.data.labels[query]}
    unlabelled = [row for row in range(len(tuned.documents)) if row not in labelled]
    assert (tuned.documents[unlabelled] == problem.data.documents[unlabelled]).all()


def test_the_penalty_of_nudge_imr_keeps_documents_shorter(problem):
    steps = {"metric": "capped_recall@1", "iterations": 20, "rate": 0.05}
    unpenalised, penalised = (tune("NUDGE-IM+R", problem, {**steps, "penalty": penalty}) for penalty in (0.0, 5.0))
    np.testing.assert_array_equal(unpenalised.documents, tune("NUDGE-IM", problem, steps).documents)
    longest, shortened = (np.linalg.norm(tuned.documents, axis=1).max() for tuned in (unpenalised, penalised))
    assert shortened < longest


# Adapters.


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_the_adapter_is_the_identity_at_step_0(layers):
    queries = torch.from_numpy(unit(np.random.default_rng(layers).standard_normal((50, 16))))
    queries[0] = 0.0
    queries[0, 3] = -1.0
    with torch.no_grad():
        assert (Adapter(16, layers)(queries) - queries).abs().max() < 1e-6


@pytest.mark.parametrize(("method", "layers"), [("Adapter", 1), ("Adapter", 2), ("Adapter-L", 1)])
def test_adapter_training_lowers_the_loss_and_never_the_validation_metric(problem, method, layers):
    tuned = tune(method, problem, settings(method, layers=layers, steps=120, validate_every=20, batch=32, rate=3e-3))
    losses = [entry["loss"] for entry in tuned.facts["history"][1:]]
    assert losses[-1] < 0.9 * losses[0]
    before = tune(NONE, problem).validation
    assert tuned.facts["history"][0]["validation"] == pytest.approx(before)
    assert tuned.validation >= before
    assert tuned.facts["step"] > 0
    assert measured(tuned, problem, problem.validation) == pytest.approx(tuned.validation)


def test_an_adapter_trained_on_wrong_labels_stays_the_identity(problem):
    for query in problem.train:
        problem.data.labels[query] = {(row + 30) % 60: 1.0 for row in problem.data.labels[query]}
    tuned = tune("Adapter", problem, settings("Adapter", steps=60, validate_every=20, rate=1e-1))
    assert tuned.facts["step"] == 0
    assert len(tuned.facts["history"]) == 2, "the first validation is more than 5% lower, so training stops"
    np.testing.assert_allclose(tuned.queries(problem.validation), problem.data.queries[problem.validation], atol=1e-6)


def test_ranking_loss_equals_its_formula():
    similarity = torch.tensor([[0.9, 0.2, 0.6], [0.1, 0.8, 0.7], [0.5, 0.4, 0.3]])
    relevant = torch.eye(3, dtype=torch.bool)
    relevant[0, 2] = True
    weights = np.exp(10 * similarity.numpy().astype(np.float64))
    weights[0, 2] = 0.0
    expected = -np.log(np.diag(weights) / weights.sum(axis=1)).mean()
    assert float(ranking_loss(similarity, relevant, 10.0)) == pytest.approx(expected, rel=1e-5)
    weights[weights < np.exp(10 * 0.45)] = 0.0
    np.fill_diagonal(weights, np.exp(10 * np.diag(similarity.numpy())))
    expected = -np.log(np.diag(weights) / weights.sum(axis=1)).mean()
    assert float(ranking_loss(similarity, relevant, 10.0, threshold=0.45)) == pytest.approx(expected, rel=1e-5)


def test_batches_contain_training_pairs_and_mark_all_relevant_documents(problem):
    data = problem.data
    data.labels[problem.train[0]][5] = 2.0
    for _, (query, row, relevant) in zip(range(20), batches(problem, 16, 0), strict=False):
        assert set(query) <= set(problem.train)
        assert (relevant == [[document in data.labels[number] for document in row] for number in query]).all()
        assert relevant.diagonal().all()


# Fine-tuning the model.


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """Save a transformer of two layers with random weights."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text_problem(tiny_model):
    """Create the toy problem with vectors of the tiny model."""
    data = toy(documents=30, queries=90)
    model = load_model({"model": tiny_model, "tokens": 16, "trained": "full"}, "cpu")
    with torch.no_grad():
        both = (data.document_texts, data.query_texts)
        documents, queries = (TokenizedTexts(model, texts).embed(np.arange(len(texts))).numpy() for texts in both)
    data = corpora.DataSet("toy", documents, queries, data.labels, data.document_texts, data.query_texts)
    train, validation, _ = data.split_rows(0)
    return Problem(data, train, validation)


QUICK = {"tokens": 16, "batch": 16, "steps": 20, "validate_every": 5, "rate": 2e-3, "stop_drop": 1.0}


@pytest.mark.parametrize("method", ["PTFT", "PTFT-L"])
def test_ptft_learns_and_keeps_its_best_checkpoint(text_problem, tiny_model, method):
    tuned = tune(method, text_problem, settings(method, model=tiny_model, **QUICK))
    history = tuned.facts["history"]
    assert history[-1]["loss"] < history[1]["loss"]
    assert tuned.validation == max(entry["validation"] for entry in history)
    assert tuned.facts["step"] > 0
    assert tuned.validation > tune(NONE, text_problem).validation
    rows = candidates(text_problem)
    column_of = {row: column for column, row in enumerate(rows.tolist())}
    labels = text_problem.labels(text_problem.validation)
    ranking = Ranking([{column_of[row]: 1.0 for row in entry} for entry in labels], R1)
    scores = torch.from_numpy(tuned.queries(text_problem.validation)) @ torch.from_numpy(tuned.documents[rows]).T
    assert ranking.mean(scores) == pytest.approx(tuned.validation)


def test_ptft_of_the_last_layer_trains_no_other_parameters(tiny_model):
    model = load_model({"model": tiny_model, "tokens": 16, "trained": "last layer"}, "cpu")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("layer.1." in name for name in trained)


def test_candidates_of_ptft_include_nearest_and_labelled_documents(text_problem):
    problem, rows = text_problem, set(candidates(text_problem).tolist())
    queries = [*problem.train, *problem.validation]
    assert {row for entry in problem.labels(queries) for row in entry} <= rows
    scores = problem.data.queries[problem.validation] @ problem.data.documents.T
    assert set(np.argsort(-scores, axis=1)[:, :9].ravel().tolist()) <= rows


# All methods.

OWN = ("Nudge", "Nudge, map of queries", "Map alone")


@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith("PTFT")])
def test_validation_metric_of_a_method_equals_evaluate(problem, method):
    quick = {"iterations": 20, "steps": 20}
    defaults = settings(method)
    tuned = tune(method, problem, {**defaults, **{key: value for key, value in quick.items() if key in defaults}})
    # M+N chooses its step before normalisation; NU has no step to choose; the maps are learned again in the end.
    if method not in ("NUDGE-M+N", "NUDGE-NU", *OWN):
        assert measured(tuned, problem, problem.validation) == pytest.approx(tuned.validation)


@pytest.mark.parametrize("metric", ["capped_recall@1", "capped_recall@10", "ndcg@10", "mrr@5"])
def test_ranking_equals_evaluate(metric):
    random = np.random.default_rng(3)
    documents, queries = unit(random.standard_normal((50, 8))), unit(random.standard_normal((30, 8)))
    labels = [{int(row): float(random.integers(1, 3)) for row in random.choice(50, 4)} for _ in range(30)]
    labels[4] = {}
    ranking = Ranking(labels, metric)
    scores = torch.from_numpy(queries[ranking.has_relevant] @ documents.T)
    assert ranking.mean(scores) == pytest.approx(evaluate(documents, queries, labels, metric)[metric].mean)


def measured(tuned, problem, query_rows):
    labelled = tuned.queries(query_rows), problem.labels(query_rows)
    return evaluate(tuned.documents, *labelled, R1, similarity=tuned.similarity)[R1].mean


def test_the_grid_is_searched_on_the_validation_queries(problem):
    tuned = tune("NUDGE-IM", problem, {"metric": R1, "iterations": 20, "grid": {"rate": [1e-9, 1e-2]}})
    assert [trial["settings"]["rate"] for trial in tuned.facts["trials"]] == [1e-9, 1e-2]
    assert tuned.facts["chosen"]["settings"]["rate"] == 1e-2
    assert tuned.validation == max(trial["validation"] for trial in tuned.facts["trials"])


def test_settings_agree_with_the_paper():
    for method in METHODS:
        if method in OWN:
            continue
        defaults = settings_of(method)
        assert defaults["metric"] == "capped_recall@1", "recall@1 is the validation metric of the paper"
        assert grid_points(defaults)
    for method in ("Adapter", "Adapter-L", "PTFT", "PTFT-L"):
        assert settings_of(method)["stop_drop"] == 0.05
    for method in ("NUDGE-N", "NUDGE-M", "NUDGE-M+N"):
        assert settings_of(method)["guard"] == 0
    assert settings_of("PTFT")["grid"]["trained"] == ["full", "last layer"]
    assert 1 in settings_of("Adapter")["grid"]["layers"]
    assert max(settings_of("Adapter")["grid"]["layers"]) > 1
    for method in ("Adapter-L", "PTFT-L"):
        assert settings_of(method)["grid"]["threshold"]
    assert CANDIDATES == 10
    iterative = importlib.import_module("iterative_closed").ITERATIVE
    alpha_t = [(settings["rate"], settings["iterations"]) for settings in iterative.values()][:3]
    assert alpha_t == [(1e-4, 1000), (1e-3, 100), (1e-2, 10)]


# Data sets.


def test_a_failed_download_is_one_line_that_names_the_local_layout(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no route to host\nand more")

    for library in ("ir_datasets", "datasets"):
        monkeypatch.setitem(sys.modules, library, types.SimpleNamespace(load=refuse, load_dataset=refuse))
    monkeypatch.setenv("NUDGEVEC_DATA", str(tmp_path))
    assert len(hub.NAMES) == 9
    for name in hub.NAMES:
        with pytest.raises(SystemExit) as error:
            corpora.load(name)
        message = str(error.value)
        assert "\n" not in message
        assert "no route to host" in message
        assert f"{tmp_path / name}/corpus.jsonl" in message
        assert "qrels/*.tsv" in message
    assert not list(tmp_path.iterdir()), "no partial download remains"
    with pytest.raises(SystemExit, match="Unknown data set 'nothing'"):
        corpora.load("nothing")


def test_a_missing_library_is_reported_in_the_same_way(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(SystemExit, match=r"scifact could not be downloaded .*ir_datasets.*BEIR layout"):
        hub.fetch("scifact", tmp_path / "scifact")


def test_a_missing_data_folder_is_a_one_line_error(monkeypatch):
    monkeypatch.delenv("NUDGEVEC_DATA", raising=False)
    with pytest.raises(SystemExit, match="NUDGEVEC_DATA"):
        corpora.load("scifact")


def test_beir_sets_are_read_with_ir_datasets(tmp_path, monkeypatch):
    row = types.SimpleNamespace
    splits = {
        "beir/scifact/train": row(
            docs=[row(doc_id="d1", title="One", text="first"), row(doc_id="d2", title="Two", text="second")],
            queries=[row(query_id="q1", text="which is first")],
            qrels=[row(query_id="q1", doc_id="d1", relevance=1)],
        ),
        "beir/scifact/test": row(
            docs=[], queries=[row(query_id="q2", text="which is second")],
            qrels=[row(query_id="q2", doc_id="d2", relevance=2)],
        ),
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "ir_datasets", row(load=splits.get))
    monkeypatch.setenv("NUDGEVEC_DATA", str(tmp_path))
    data = corpora.load("scifact", "wordllama")
    assert data.document_texts == ["One first", "Two second"]
    assert data.labels == [{0: 1.0}, {1: 2.0}]
    assert data.documents.shape == (2, 256)


def test_kilt_corpus_contains_paragraphs_of_answer_pages(tmp_path, monkeypatch):
    def question(query, page, first, last):
        source = {"wikipedia_id": page, "start_paragraph_id": first, "end_paragraph_id": last}
        return {"id": query, "input": f"question {query}", "output": [{"provenance": [source]}]}

    tasks = {
        "nq": {"train": [question("a", "7", 0, 1)], "validation": [question("b", "7", 1, 1)]},
        "hotpotqa": {"train": [question("c", "9", 0, 0)]},
        "triviaqa_support_only": {"train": [{**question("t", "9", 1, 1), "input": ""}]},
    }
    pages = [
        {"wikipedia_id": number, "wikipedia_title": f"T{number}", "text": {"paragraph": ["p0", "p1"]}}
        for number in ("7", "8", "9")
    ]

    def load_dataset(name, task=None, **_):
        questions = {"train": [{"question_id": "t", "question": "question t"}]}
        return {"kilt_tasks": tasks.get(task), "kilt_wikipedia": pages, "trivia_qa": questions}[name]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    monkeypatch.setenv("NUDGEVEC_DATA", str(tmp_path))
    data = corpora.load("nq", "wordllama")
    assert data.document_texts == ["T7 p0", "T7 p1", "T9 p0", "T9 p1"]
    assert data.query_texts == ["question a", "question b"]
    assert data.labels == [{0: 1.0, 1: 1.0}, {1: 1.0}]
    trivia = corpora.load("triviaqa", "wordllama")
    assert trivia.query_texts == ["question t"], "KILT has the id only"
    assert trivia.labels == [{3: 1.0}]


def test_captions_are_queries_for_their_image(tmp_path, monkeypatch):
    from PIL import Image

    rows = [{"image": Image.new("RGB", (4, 4)), "caption": ["a dark square", "nothing"]} for _ in range(2)]
    fake = types.SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    hub.fetch("flickr", tmp_path / "flickr")
    from nudgevec.text.readers import beir

    collection = beir.read(tmp_path / "flickr")
    assert [path.is_file() for path in collection.documents.images] == [True, True]
    assert collection.merged_qrels["1-0"] == {"1": 1.0}
    assert len(collection.queries) == 4


def test_models_of_the_paper_are_available_by_name():
    assert {"BGE-S", "GTE-L", "TE3-L", "CLIP-B", "CLIP-L"} <= set(corpora.MODELS)
    with pytest.raises(SystemExit, match="Unknown model 'x'"):
        corpora.embedder_of("x")


# The commands, end to end.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Create two tiny data sets in BEIR layout, and settings with few steps."""
    for seed, name in enumerate(("toy", "other")):
        data, home = toy(documents=25, queries=80, seed=seed), tmp_path / "data" / name
        (home / "qrels").mkdir(parents=True)
        (home / "embeddings" / corpora.MODEL).mkdir(parents=True)
        for file, texts in (("corpus.jsonl", data.document_texts), ("queries.jsonl", data.query_texts)):
            lines = [json.dumps({"_id": str(row), "text": text}) for row, text in enumerate(texts)]
            (home / file).write_text("\n".join(lines) + "\n")
        lines = [f"{query}\t{row}\t1" for query, entry in enumerate(data.labels) for row in entry]
        (home / "qrels" / "all.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
        np.save(home / "embeddings" / corpora.MODEL / "corpus.npy", data.documents.astype(np.float16))
        np.save(home / "embeddings" / corpora.MODEL / "queries.npy", data.queries.astype(np.float16))
    shutil.copytree(methods.CONFIG, tmp_path / "config")
    for path in (tmp_path / "config").glob("*.toml"):
        text = path.read_text().replace("steps = 2000", "steps = 20").replace("iterations = 300", "iterations = 5")
        text = text.replace("steps = 1000", "steps = 4").replace("tokens = 256", "tokens = 16")
        path.write_text(text)
        tomllib.loads(text)
    monkeypatch.setenv("NUDGEVEC_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("NUDGEVEC_DATA", str(tmp_path / "data"))
    runs = importlib.import_module("runs")
    runs.load_normalized.cache_clear()
    runs.make_problem.cache_clear()
    yield tmp_path
    runs.load_normalized.cache_clear()
    runs.make_problem.cache_clear()


COMMANDS = {
    "nudge_tables": ("nudge.md", "nudge.png"),
    "few_labels": ("few-labels.md", "few-labels.png"),
    "main_tables": ("main.md", "main-MiniLM.png"),
    "run_time": ("run-time.md", "run-time.png"),
    "shift": ("shift.md", "shift-MiniLM.png"),
    "ablation": ("ablation.md", "ablation-MiniLM.png"),
    "iterative_closed": ("iterative.md", "iterative.png"),
    "training": ("training.md", "training-MiniLM.png"),
    "gamma": ("gamma.md", "gamma-MiniLM.png"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_experiment_runs_and_reruns_from_its_cache(folder, command, monkeypatch):
    module = importlib.import_module(command)
    arguments = [
        "--data",
        "toy,other",
        "--models",
        "MiniLM",
        "--seeds",
        "0,1",
        "--threads",
        str(torch.get_num_threads()),
    ]
    arguments += ["--cache", str(folder / "cache"), "--target", str(folder / "results")]
    module.main(arguments)
    table, figure = (folder / "results" / name for name in COMMANDS[command])
    text = table.read_text()
    assert f"experiments/{command}.py" in text
    assert f"]({figure.name})" in text
    assert "nan" not in text
    assert figure.read_bytes()[:4] == b"\x89PNG"
    if command != "gamma":  # it takes seconds and caches nothing
        for name in ("runs", "run_time", "iterative_closed"):
            monkeypatch.setattr(importlib.import_module(name), "tune", None)
        module.main([*arguments, "--kept"])
        assert table.read_text() == text


@pytest.mark.parametrize("command", ["run_time", "iterative_closed"])
def test_kept_without_cached_times_is_refused(folder, command):
    with pytest.raises(SystemExit, match=r"run without --kept"):
        importlib.import_module(command).main(["--kept", "--data", "toy", "--threads", "1", "--cache", str(folder)])


def test_ptft_is_not_timed_on_a_cpu(folder):
    run_time = importlib.import_module("run_time")
    arguments = ["--data", "toy", "--threads", "1", "--cache", str(folder), "--target", str(folder)]
    options = parse_options(run_time.__doc__, arguments)
    timed = run_time.timed_methods(options)
    assert timed == [method for method in run_time.METHODS if not method.startswith("PTFT")]
    assert run_time.timed_methods(replace(options, run_ptft=True)) == list(run_time.METHODS)
    seconds = {"toy": {method: {"fit": 1.0, "tuning": 300.0} for method in timed}}
    write_json(folder / "run_time" / "CPU.json", {"machine": "none", "model": "MiniLM", "seconds": seconds})
    run_time.main([*arguments, "--kept"])
    table = (folder / "run-time.md").read_text()
    assert "| Adapter | 1 (x 1), with tuning 300 (x 300) | 1 (x 1), with tuning 300 (x 300) |" in table
    assert "| PTFT | not run | not run |" in table


def test_main_tables_state_where_a_method_was_not_run(folder):
    main_tables = importlib.import_module("main_tables")
    values = [0.0, 1.0, 0.5]
    run = {"tests": {"test": {"query": [0, 1, 2], "R@1": values, "R@10": values, "NDCG@10": values}}}
    for name in ("toy", "other"):
        for method, changed in main_tables.ROWS.values():
            if name == "toy" or not method.startswith("PTFT"):
                chosen = {**settings_of(method), **(changed or {})}
                write_json(run_path(folder / "cache", name, "MiniLM", method, 0, chosen, random_split), run)
    arguments = ["--data", "toy,other", "--models", "MiniLM", "--seeds", "0", "--threads", "1"]
    main_tables.main([*arguments, "--cache", str(folder / "cache"), "--target", str(folder)])
    text = (folder / "main.md").read_text()
    assert "PTFT was run on toy; not on other" in text
    first, second, average = (part.split("###")[0] for part in text.split("### ")[1:4])
    assert "| PTFT | 50.0 | 50.0 | 50.0 | +0.0 (+0.0 to +0.0) | +0.0 (+0.0 to +0.0) |" in first
    assert "| PTFT | not run | not run | not run |  |  |" in second
    assert "| PTFT | not run | not run | not run |  |  |" in average


def test_resamples_are_shared_by_methods_and_differ_between_data_sets():
    tables = importlib.import_module("tables")

    def resampled(queries, shift=0.0):
        values = np.random.default_rng(0).random(len(queries)) + shift
        return tables.mean([{"tests": {"test": {"query": queries, "m": values.tolist()}}}], "m").resampled

    first = resampled(list(range(50)))
    np.testing.assert_allclose(resampled(list(range(50)), shift=1.0) - first, 100.0)
    assert abs(np.corrcoef(first, resampled(list(range(50, 100))))[0, 1]) < 0.1


def test_runs_of_the_gpu_part_are_added_to_the_tables(folder, tiny_model):
    everything, gpu, main_tables, training = map(
        importlib.import_module, ("everything", "gpu", "main_tables", "training")
    )
    gpu_cache = folder / "gpu"
    common = ["--data", "toy", "--seeds", "0", "--threads", "1"]
    gpu.main(["--device", "cpu", "--workers", "1", "--weights", tiny_model, "--cache", str(gpu_cache), *common])
    times = json.loads((gpu_cache / "run_time" / "CPU.json").read_text())
    assert {"NUDGE-N", "PTFT", "PTFT-L"} <= set(times["seconds"]["toy"])
    everything.add_runs(gpu_cache, folder / "cache")
    arguments = ["--models", "MiniLM", "--cache", str(folder / "cache"), "--target", str(folder), *common]
    main_tables.main(arguments)
    assert "| PTFT-L |" in (folder / "main.md").read_text()
    training.main(arguments)
    assert "| toy | PTFT | end |" in (folder / "training.md").read_text()
