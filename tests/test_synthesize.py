"""Synthetic queries through a real server on loopback."""

from __future__ import annotations

import json

import pytest

import collections_on_disk as disk
import servers
from nudgevec import LabelLog, cli
from nudgevec.feedback.synthetic import _parse_queries
from nudgevec.text.splits import normalise


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))
    disk.beir(tmp_path / "data")


def writer(prompt):
    """A stand-in for a language model: two queries about the document, one about something else, one twice."""
    document = prompt.split("Document:\n")[1].strip()
    words = document.split()
    good = [" ".join(words[:4]), " ".join(words[1:6])]
    return f'1. {good[0]}\n- "{good[1]}"\n* quantum chromodynamics\n{good[0].upper()}\n\n'


def command(url, *more):
    return ["synthesize", "data", "--labels", "log", "--llm", url, "--model", "m", "--per-document", "4", *more]


def test_queries_are_written_filtered_and_marked(capsys):
    with LabelLog("log") as log:
        log.add("espresso", "coffee-0", "click")
    with servers.running([500, "drop"], chat=writer) as (url, seen):
        assert cli.main(command(url, "--top", "5", "--json")) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["documents"] == 47, "all but the one with a label"
    assert outcome["written"] == 47 * 4
    assert outcome["kept"] + outcome["lost"] + outcome["known"] == outcome["written"]
    assert outcome["known"] >= 47
    assert outcome["kept"] > 47
    assert len(seen) == 49, "47, and two failed attempts"
    with LabelLog("log") as log:
        events = [event for event in log if event.source == "synthetic"]
        assert len(events) == outcome["kept"]
        assert not any(event.document == "coffee-0" for event in events)
        assert not any("chromodynamics" in event.query for event in events)
        assert len({normalise(event.query) for event in events}) == len(events)
        assert all(query == "espresso" for query in log.labels()["test"])


@pytest.mark.parametrize("n_answers", [12, 36])
def test_an_interrupted_run_is_resumed(capsys, n_answers):
    """In the first batch of documents, or a later one."""
    with servers.running([None] * n_answers + [400], chat=writer) as (url, seen):
        assert cli.main(command(url)) == 1
        assert "refused the request: 400" in capsys.readouterr().err
        del seen[:]
        assert cli.main(command(url)) == 0
        assert len(seen) == 48 - n_answers, "queries from before the failure are kept"
        del seen[:]
        assert cli.main(command(url)) == 0
        assert seen == []


def test_dry_run_sends_no_request(capsys):
    with servers.running(chat=writer) as (url, seen):
        assert (
            cli.main(command(url, "--dry-run", "--price", "1", "10", "--language", "French", "--language", "Dutch"))
            == 0
        )
    assert seen == []
    output = capsys.readouterr().out
    assert "48 documents without labels: 96 requests" in output
    assert "No request was sent." in output
    assert "in the currency of --price" in output


def test_numbers_in_queries_stay():
    assert _parse_queries('1. 2.5 inch ssd price\n- -40 degrees\n3) "quoted"\n\n2.5 inch') == [
        "2.5 inch ssd price",
        "-40 degrees",
        "quoted",
        "2.5 inch",
    ]


def test_your_own_prompt(tmp_path, capsys):
    (tmp_path / "prompt.txt").write_text("{n} in {language}, {not a field}. Document:\n{document}")
    with servers.running(chat=writer) as (url, seen):
        assert cli.main(command(url, "--prompt", "prompt.txt", "--limit", "1", "--language", "Dutch")) == 0
    assert seen[0][1]["messages"][0]["content"].startswith("4 in Dutch, {not a field}. Document:\ncoffee 0")
    (tmp_path / "prompt.txt").write_text("write something")
    assert cli.main(command("http://127.0.0.1:9", "--prompt", "prompt.txt")) == 1
    assert "the prompt has no placeholder {document}" in capsys.readouterr().err
    (tmp_path / "prompt.txt").write_bytes("résumé: {document}".encode("latin-1"))
    assert cli.main(command("http://127.0.0.1:9", "--prompt", "prompt.txt")) == 1
    assert "nudgevec: the prompt prompt.txt is not UTF-8: " in capsys.readouterr().err
