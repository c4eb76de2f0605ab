"""Where nothing moves, the user learns why and what to do."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import nudgevec
from nudgevec import NudgeN, cli
from nudgevec.core.curve import Choice
from nudgevec.errors import NudgeWarning


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_vectors(folder, *, shared, noise=0.3):
    """Write 200 documents and 150 queries near theirs; those of the splits ask for the same documents or for others."""
    random = np.random.default_rng(0)
    documents = random.standard_normal((200, 16)).astype(np.float32)
    starts = {"train": 0, "validation": 0 if shared else 60, "test": 0 if shared else 120}
    rows = np.concatenate([start + np.arange(50) for start in starts.values()])
    folder.mkdir()
    np.save(folder / "documents.npy", documents)
    np.save(folder / "queries.npy", documents[rows] + noise * random.standard_normal((150, 16)).astype(np.float32))
    (folder / "qrels").mkdir()
    for number, name in enumerate(starts):
        lines = [f"{query} 0 {rows[query]} 1" for query in range(50 * number, 50 * number + 50)]
        (folder / "qrels" / f"{name}.txt").write_text("\n".join(lines))


def test_queries_that_ask_for_other_documents(tmp_path, capsys):
    write_vectors(tmp_path / "data", shared=False, noise=1.0)
    with pytest.warns(NudgeWarning, match="nothing moves: "):
        nudgevec.tune("data", out="warned", guard=5)
    assert cli.main(["tune", "data", "--out", "run", "--guard", "5"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith("nudgevec: warning: nothing moves: ")
    assert "No document moved: " in output.out
    assert "0 of 50 test queries (0%) have a relevant document that is labelled for a training query too." in output.out
    assert "0 of 50 validation queries have a relevant document that is labelled for a training query" in output.out
    wanted = re.search(r"Collect next: training queries for documents .*, such as (\d+), ", output.out)
    assert 60 <= int(wanted[1]) < 110
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Collect next: " in card


def test_a_gain_that_may_be_chance(tmp_path, capsys):
    write_vectors(tmp_path / "data", shared=True, noise=0.9)
    assert cli.main(["tune", "data", "--method", "N", "--out", "run", "--guard", "20"]) == 0
    output = capsys.readouterr()
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    needed, evidence = facts["validation"]["queries_needed"], facts["validation"]["evidence"]
    assert evidence > 0
    assert needed == pytest.approx(50 * (20.84 / evidence) ** 2, abs=1)
    assert f"takes about {needed - 50:,} more held-out queries, which are {3 * (needed - 50):,} more labelled" in (
        output.out
    )
    assert "Collect next: more training queries for the same documents" in output.out
    assert "--guard 0" in output.out
    assert cli.main(["tune", "data", "--method", "N", "--out", "moved", "--guard", "0"]) == 0
    assert "Collect next" not in capsys.readouterr().out


def test_a_gain_is_seen_with_as_many_queries_as_estimated():
    """In four of five cases, or nearly: the estimate is about the mean of the gains."""
    random = np.random.default_rng(0)
    passed = []
    for _ in range(300):
        gains = random.choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=4000)
        evidence = gains.sum() / np.sqrt(gains @ gains)
        needed = Choice(0.0, (0.0, 0.0), 0.5, 0.5, evidence, 0.1).queries_needed(len(gains), guard=1.0)
        more = random.choice(gains, needed)
        passed.append(more.sum() > np.sqrt(more @ more))
    assert 0.7 < np.mean(passed) < 0.9


def test_documents_that_cannot_move():
    documents = np.eye(4)
    queries, labels = documents[:2], [[0], [1]]
    with pytest.warns(NudgeWarning, match="nothing moves: no document can move: .* at their queries already"):
        NudgeN().fit(documents, (queries, labels), (queries[:1] + 0.1, labels[:1]))


def test_no_step_that_helps():
    documents = np.eye(4)
    train, validation = (documents[:1] + documents[1:2], [[0]]), (documents[2:3], [[2]])
    with pytest.warns(NudgeWarning, match=r"nothing moves: no step raises validation ndcg@10 above 1\.0000"):
        NudgeN().fit(documents, train, validation)


def test_a_given_step_is_taken(tmp_path, capsys):
    write_vectors(tmp_path / "data", shared=False)
    assert cli.main(["tune", "data", "--out", "run", "--gamma", "0.2"]) == 0
    output = capsys.readouterr()
    assert "NUDGE-N moved 50 documents; gamma 0.2 was given." in output.out
    assert output.err == ""
    assert cli.main(["tune", "data", "--out", "refitted", "--gamma", "0.2", "--refit"]) == 0
    assert "NUDGE-N moved 100 documents" in capsys.readouterr().out
    assert cli.main(["tune", "data", "--out", "still", "--gamma", "0"]) == 0
    output = capsys.readouterr()
    assert "No document moved: with gamma 0, no vector changes." in output.out
    assert "without --gamma, they show which step gains most" in output.out
    assert cli.main(["tune", "data", "--out", "bad", "--gamma", "-1"]) == 1
    assert "gamma must be None or a number between 0 and 4" in capsys.readouterr().err
