"""The command line: data folders in, run folders out, and one clear line on errors."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import collections_on_disk as disk
import nudgevec
from nudgevec import cli
from nudgevec.runs import folder, pipeline
from nudgevec.tables import Column, print_table
from nudgevec.text import readers

METRICS = ["ndcg@10", "recall@10", "mrr@10", "success@1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))
    disk.beir(tmp_path / "data", {"train": 0.6, "dev": 0.2, "test": 0.2})


def test_tune_leaves_a_run_folder(capsys):
    assert cli.main(["tune", "data", "--out", "runs/one"]) == 0
    output = capsys.readouterr()
    assert "data: 48 documents; 108 training, 36 validation and 36 test queries.\nSplit: as given.\n" in output.out
    assert output.err == ""
    assert sorted(os.listdir("runs/one")) == [
        "README.md",
        "documents.jsonl",
        "patch.safetensors",
        "queries.jsonl",
        "queries.safetensors",
        "query_curves.safetensors",
        "run.json",
    ]
    assert os.listdir("runs") == ["one"]
    saved = folder.SavedRun(Path("runs/one"))
    facts, patch = saved.facts, saved.patch
    assert facts["method"] == "auto"
    assert facts["map"]["side"] == "documents"
    assert facts["map"]["sigma"] > 0
    assert facts["gamma"] == patch.gamma > 0
    assert list(facts["test"]["before"]) == list(facts["test"]["after"]) == METRICS
    assert facts["test"]["change"]["ndcg@10"]["mean"] > 0.01
    assert facts["validation"]["after"] > facts["validation"]["before"]
    assert facts["counts"]["moved"] == len(patch) == len(folder.SavedRun(Path("runs/one")).documents())
    assert facts["counts"]["test_queries_with_documents_in_training"] == 36
    assert facts["embedder"] == "static"
    assert facts["versions"]["nudgevec"] == nudgevec.__version__
    card = Path("runs/one/README.md").read_text()
    assert "# data, tuned with Nudge" in card
    assert f"{100 * facts['test']['after']['ndcg@10']['mean']:.1f}" in card


@pytest.mark.parametrize("method", ["N", "M"])
def test_a_run_keeps_the_curve_of_every_query(method):
    run = nudgevec.tune("data", method=method, metric="mrr@5", out="run")
    curves = folder.SavedRun(Path("run")).query_curves()
    assert sorted(curves) == ["test", "validation"]
    for name, (ids, by_query) in curves.items():
        queries = run.data.queries[name]
        for gamma in (0.0, 0.07, run.patch.gamma):
            tuner = pipeline.STEP_METHODS[method](gamma=gamma)
            tuner.fit(run.data.documents, (run.data.queries["train"].vectors, run.data.queries["train"].labels))
            moved = tuner.transform(run.data.documents)
            measured = nudgevec.evaluate(moved, queries.vectors, queries.labels, "mrr@5", similarity=tuner.similarity)
            assert ids == [queries.ids[number] for number in measured.query]
            assert by_query(gamma) == pytest.approx(measured["mrr@5"].per_query, abs=1e-9)
    records = folder.SavedRun(Path("run")).queries()
    assert [record["id"] for record in records] == curves["test"][0]
    assert [record["after"] for record in records] == pytest.approx(curves["test"][1](run.patch.gamma), abs=1e-9)


def test_a_method_whose_gamma_is_that_of_another_similarity_has_no_curve_of_the_test_queries():
    run = nudgevec.tune("data", method="M+N", out="run")
    assert run.test.query_curves is None
    assert list(folder.SavedRun(Path("run")).query_curves()) == ["validation"]


def test_names_of_metrics_may_be_in_capitals(capsys):
    assert cli.main(["tune", "data", "--out", "run", "--metric", " NDCG@5 ", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "ndcg@5"


@pytest.mark.parametrize("option", [["--metric", "ndgc@5"], ["--method", "X"], ["--guard", "-1"]])
def test_options_are_checked_before_anything_is_read(option, capsys):
    assert cli.main(["tune", "nothing-here", "--out", "run", *option]) == 1
    assert "nothing-here" not in capsys.readouterr().err


def test_figures_equal_those_of_the_library():
    cli.main(["tune", "data", "--out", "run", "--method", "N", "--metric", "mrr@5", "--json"])
    saved = folder.SavedRun(Path("run"))
    facts, patch = saved.facts, saved.patch
    data = pipeline.prepare(readers.read("data"))
    test = data.queries["test"]
    for documents, name in ((data.documents, "before"), (patch.apply(data.documents), "after")):
        measured = nudgevec.evaluate(documents, test.vectors, test.labels, ["mrr@5", *METRICS], similarity="cosine")
        for metric, score in measured.items():
            assert facts["test"][name][metric] == {"mean": score.mean, "low": score.low, "high": score.high}
    tuner = nudgevec.NudgeN("mrr@5")
    train, validation = data.queries["train"], data.queries["validation"]
    tuner.fit(data.documents, (train.vectors, train.labels), (validation.vectors, validation.labels))
    assert tuner.gamma_ == facts["gamma"]
    assert np.array_equal(tuner.patch_.after, patch.after)


def test_json_is_json(capsys):
    cli.main(["tune", "data", "--out", "run", "--method", "M", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts == folder.SavedRun(Path("run")).facts
    assert facts["similarity"] == "dot"
    cli.main(["evaluate", "data", "--run", "run", "--json"])
    measured = json.loads(capsys.readouterr().out)
    assert measured["test"] == facts["test"]["after"]
    cli.main(["inspect", "run", "--json", "--top", "2"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"] == facts
    assert len(shown["moved"]) == 2
    assert all(entry["after"] > entry["before"] for entry in shown["won"])


def test_inspect_shows_texts_and_answers(capsys):
    cli.main(["tune", "data", "--out", "run"])
    capsys.readouterr()
    assert cli.main(["inspect", "run"]) == 0
    output = capsys.readouterr().out
    assert "Queries with the largest gains (ndcg@10; * marks relevant documents)" in output
    assert "degrees" in output
    best = max(folder.SavedRun(Path("run")).queries(), key=lambda entry: entry["after"] - entry["before"])
    assert best["text"] in output
    assert f"*{next(iter(best['labels']))}" in output
    assert len(best["top_after"]) == 10


def test_evaluate_prints_intervals(capsys):
    assert cli.main(["evaluate", "data", "--metric", "ndcg@3"]) == 0
    output = capsys.readouterr().out
    assert "data: 36 test queries, cosine similarity.\nDocuments: the original vectors.\nSplit: as given.\n" in output
    assert "ndcg@3" in output


def test_a_folder_of_vectors_without_a_split(capsys):
    data = pipeline.prepare(readers.read("data"))
    os.mkdir("vectors")
    texts = readers.read("data")
    np.save("vectors/documents.npy", data.documents.vectors)
    Path("vectors/documents.ids").write_text("\n".join(texts.documents.ids))
    from nudgevec.text.embedders import static

    np.save("vectors/queries.npy", static.embed(texts.queries.texts))
    Path("vectors/queries.ids").write_text("\n".join(texts.queries.ids))
    lines = [
        f"{query} 0 {key} {grade:g}" for query, grades in texts.merged_qrels.items() for key, grade in grades.items()
    ]
    Path("vectors/qrels.txt").write_text("\n".join(lines))
    assert cli.main(["tune", "vectors", "--out", "run"]) == 0
    facts = folder.SavedRun(Path("run")).facts
    assert facts["split"] == "0.7 / 0.1 / 0.2 by a hash of the query (seed 0)"
    assert facts["embedder"] == "given"
    capsys.readouterr()
    assert cli.main(["tune", "vectors", "--out", "two", "--embedder", "static"]) == 1
    assert "has vectors, so there is nothing to embed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "nowhere", "--out", "run"], "nowhere does not exist"),
        (["tune", "data", "--out", "data"], "data exists and is not a run folder, so it is not overwritten"),
        (["tune", "data", "--out", "run", "--metric", "luck@10"], "unknown metric"),
        (["tune", "data", "--out", "run", "--method", "Z"], "unknown method 'Z'"),
        (["tune", "data", "--out", "run", "--embedder", "abacus"], "unknown embedder 'abacus'"),
        (["inspect", "data"], "data is not a run folder"),
        (["evaluate", "data", "--run", "data"], "data is not a run folder"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, capsys):
    assert cli.main(arguments) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nudgevec: ")
    assert message in output.err
    assert output.err.count("\n") == 1
    assert not os.path.exists("run")


def test_evaluate_measures_the_test_queries_of_the_run(capsys):
    tune = [
        "tune",
        "data",
        "--out",
        "run",
        "--resplit",
        "--seed",
        "4",
        "--metric",
        "recall@3",
        "--guard",
        "0",
        "--json",
    ]
    assert cli.main(tune) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["settings"]["seed"] == 4
    assert cli.main(["evaluate", "data", "--run", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == facts["test"]["after"]
    assert cli.main(["evaluate", "data", "--run", "run", "--seed", "5"]) == 0
    assert "these are not the test queries of the run" in capsys.readouterr().err


def test_a_run_over_other_vectors_is_refused(capsys):
    assert cli.main(["tune", "data", "--out", "run", "--guard", "0"]) == 0
    os.makedirs("data/embeddings/other")
    random = np.random.default_rng(0)
    for name, rows in (("corpus", 48), ("queries", 180)):
        np.save(f"data/embeddings/other/{name}.npy", random.standard_normal((rows, 256)).astype(np.float32))
    capsys.readouterr()
    assert cli.main(["evaluate", "data", "--run", "run", "--embedder", "precomputed:other"]) == 1
    assert "other vectors than the patch was made from" in capsys.readouterr().err


def test_files_in_another_encoding(capsys):
    text = Path("data/corpus.jsonl").read_bytes()
    Path("data/corpus.jsonl").write_bytes(text + '{"_id": "x", "text": "café"}\n'.encode("latin-1"))
    assert cli.main(["evaluate", "data"]) == 1
    assert "corpus.jsonl: the text after line" in capsys.readouterr().err


def test_a_label_with_two_grades(capsys):
    with open("data/qrels/train.tsv") as file:
        query, key, _ = file.readlines()[1].split("\t")
    with open("data/qrels/train.tsv", "a") as file:
        file.write(f"{query}\t{key}\t3\n")
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    assert f"another grade of document {key} for query {query}; the last one is used" in capsys.readouterr().err


def test_queries_without_labels_are_not_counted(capsys):
    lines = Path("data/qrels/test.tsv").read_text().splitlines()
    spoilt = [line.rsplit("\t", 1)[0] + "\t0" for line in lines[1:11]]
    Path("data/qrels/test.tsv").write_text("\n".join([lines[0], *spoilt, *lines[11:]]) + "\n")
    assert cli.main(["tune", "data", "--out", "run", "--guard", "0"]) == 0
    output = capsys.readouterr().out
    assert "and 26 test queries" in output
    assert "26 of 26 test queries (100%) have a relevant document" in output


def test_texts_with_odd_line_breaks(capsys):
    with open("data/corpus.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"_id": "odd", "text": "coffee\u2028and\u0085bicycles"}, ensure_ascii=False) + "\n")
    text = Path("data/qrels/train.tsv").read_text().splitlines()
    Path("data/qrels/train.tsv").write_text("\n".join([*text, text[1].split("\t")[0] + "\todd\t1"]) + "\n")
    assert cli.main(["tune", "data", "--out", "run", "--guard", "0"]) == 0
    assert cli.main(["inspect", "run", "--top", "100"]) == 0
    assert "odd" in capsys.readouterr().out


def test_empty_texts_are_ignored_with_a_warning(capsys):
    with open("data/corpus.jsonl", "a") as file:
        file.write('{"_id": "void", "title": "", "text": ""}\n')
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    output = capsys.readouterr()
    assert output.err == (
        "nudgevec: warning: documents whose vector is all zeros (no word is known to the embedder) are ignored: 1\n"
    )
    assert folder.SavedRun(Path("run")).facts["counts"]["documents_left_out"] == 1


def test_completion_completes(capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = f"""{script}
COMP_WORDS=(nudgevec tune --me); COMP_CWORD=2; _shtab_nudgevec; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(nudgevec in); COMP_CWORD=1; _shtab_nudgevec; echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()
    assert done == ["--method --metric", "inspect index"]
    assert cli.main(["completion", "zsh"]) == 0
    assert "#compdef nudgevec" in capsys.readouterr().out


def test_progress_is_shown_on_a_terminal_only(monkeypatch, capsys):
    from nudgevec import progress

    show_bars = progress.show_bars
    monkeypatch.setattr(progress, "show_bars", lambda visible: show_bars(visible, delay=0.0))
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        cli.main(["tune", "data", "--out", "run", "--overwrite"])
        assert ("scanning documents" in capsys.readouterr().err) == terminal
        cli.main(["tune", "data", "--out", "run", "--overwrite", "--quiet"])
        assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


ROWS = [("capped_recall@10", "100.0", "[bold]" + 40 * "word "), ("mrr@1", "7.5", "one\ntwo 💉")]
COLUMNS = [Column("metric", min_width=11), Column("mean", number=True), Column("text")]


def test_tables_in_files_are_plain_text(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    print_table(COLUMNS, ROWS, out)
    assert out.getvalue().splitlines() == [
        "metric              mean   text",
        "capped_recall@10   100.0   [bold]" + (40 * "word ").rstrip(),
        "mrr@1                7.5   one",
        "                           two 💉",
    ]


def test_tables_on_a_terminal_fit_its_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    print_table(COLUMNS, ROWS, out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith("capped_recall@10   100.0   [bold]word")
    assert " ".join(lines).count("word") == 40
    assert "─" in lines[1]


def test_tables_are_imported_when_they_are_printed():
    code = """
import sys
from nudgevec.cli import main
try:
    main(["tune", "--help"])
except SystemExit:
    pass
import nudgevec.tables, nudgevec.cli.runs, nudgevec.demo
assert not [name for name in sys.modules if name.split(".")[0] == "rich"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_options_without_effect_are_refused(capsys):
    assert cli.main(["tune", "data", "--out", "run", "--half-life", "30"]) == 1
    assert "a half-life and a cap need a label log: pass labels= (--labels)" in capsys.readouterr().err
    assert cli.main(["tune", "--out", "run"]) == 1
    assert "either as DATA, or --store URL" in capsys.readouterr().err
