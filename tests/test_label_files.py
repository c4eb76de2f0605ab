"""Files of events in any format, recognised by what they contain; a label log exported and read back."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import collections_on_disk as disk
from nudgevec import LabelLog, cli
from nudgevec.feedback.event import Event
from nudgevec.text import readers

ROWS = [
    {"query": "reset, my password", "document": "faq-7", "signal": "click"},
    {"query": 'the "best" café', "document": "faq-8", "signal": "thumbs_up"},
]
EVENTS = [Event(row["query"], row["document"], row["signal"], source="test") for row in ROWS]


def table(separator):
    quoted = [['"' + value.replace('"', '""') + '"' for value in row.values()] for row in ROWS]
    return "\n".join(separator.join(cells) for cells in [list(ROWS[0]), *quoted]) + "\n"


FORMATS = {
    "array": json.dumps(ROWS, indent=1),
    "lines": "\n" + "\n\n".join(map(json.dumps, ROWS)),
    "comma": table(","),
    "semicolon": table(";"),
    "tab": table("\t"),
    "bar": table("|").replace("query", "Query").replace("\n", "\r\n"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def imported(*arguments):
    assert cli.main(["labels", "import", "log", *arguments, "--source", "test"]) == 0
    with LabelLog("log") as log:
        return list(log)


@pytest.mark.parametrize("name", ["events", "events.csv", "events.jsonl", "events.tsv", "events.json.gz"])
@pytest.mark.parametrize("kind", FORMATS)
def test_the_contents_decide_on_the_format(kind, name):
    """The name of a file has no influence."""
    Path(name).write_text(FORMATS[kind])
    assert imported(name) == EVENTS


@pytest.mark.parametrize(
    "encode", [str.encode, lambda text: text.encode("utf-8-sig"), lambda text: text.encode("utf-16")]
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_encodings_and_compression(encode, compress):
    Path("events").write_bytes(compress(encode(FORMATS["semicolon"])))
    assert imported("events") == EVENTS


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_standard_input(compress):
    command = [sys.executable, "-m", "nudgevec", "labels", "import", "log", "-", "--source", "test"]
    done = subprocess.run(command, input=compress(FORMATS["array"].encode()), capture_output=True, check=True)
    assert b"2 events read, 2 new" in done.stdout
    with LabelLog("log") as log:
        assert list(log) == EVENTS
    done = subprocess.run(command, input=b"", capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"nudgevec: standard input has no events\n")
    done = subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"nudgevec: standard input is closed\n")


def test_columns_can_be_mapped(capsys):
    Path("clicks").write_text("Q;item_id;when\nhello;d1;5\n")
    assert imported("clicks", "--map", "query=q,document=item_id", "--map", "time=when") == [
        Event("hello", "d1", time=5.0, source="test")
    ]
    capsys.readouterr()
    for mapping, message in {
        "query=q": "missing column 'document' in Q, item_id, when; --map document=COLUMN names another one",
        "query=q,document=item_id,time=date": "no column for time=date (--map); it has item_id, q, when",
        "queri=q": "unknown column 'queri': events have query, document, signal, value",
        "query": "--map takes NAME=COLUMN, for example query=q,document=item_id, not 'query'",
        "query=q,query=item_id": "--map names two columns for query: 'q' and 'item_id'",
    }.items():
        assert cli.main(["labels", "import", "other", "clicks", "--map", mapping]) == 1
        assert message in capsys.readouterr().err
    assert not os.path.exists("other")


def test_equal_lines_with_a_time_add_up_and_files_count_once():
    Path("clicks").write_text("query,document,signal,time\n" + "q,d,click,2026-01-05\n" * 100)
    assert len(imported("clicks")) == 100
    assert len(imported("clicks")) == 100


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            "query;document\ncafé;d\n".encode("latin-1"),
            "is not UTF-8, near 'query;document\\ncafé;d\\n'; perhaps it is Latin-1",
        ),
        (gzip.compress(b"query,document\nq,d\n", mtime=0)[:-9], "is not a whole gzip file"),
        (gzip.compress(b"query,document\nq,d\n" * 999, mtime=0)[:30] + b"x" * 99, "is not a whole gzip file"),
        (b"\x00" * 99, "is neither JSON nor a line of columns"),
        (b"q1 0 d1 1\n", "refers to queries by id: pass their texts with --queries queries.jsonl"),
        (b"query-id\tcorpus-id\tscore\nq1\td1\t1\n", "refers to queries by id"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(capsys, contents, message):
    Path("events.csv").write_bytes(contents)
    assert cli.main(["labels", "import", "log", "events.csv"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not os.path.exists("log")


def test_statistics_of_a_file_of_events_are_those_of_its_log(capsys):
    Path("events").write_text(FORMATS["bar"])
    imported("events")
    capsys.readouterr()
    for source in ("log", "events"):
        assert cli.main(["labels", "stats", source, "--json"]) == 0
    one, other = capsys.readouterr().out.split("}\n{")
    assert one + "}\n" == "{" + other


def test_labels_come_back_from_an_export_unchanged(tmp_path, capsys):
    corpus, queries, qrels = disk.texts()
    with LabelLog("log") as log:
        log.extend(
            Event(queries[query], document, value=1 + number / 3, propensity=0.7)
            for number, (query, grades) in enumerate(qrels.items())
            for document in grades
        )
        labels = log.labels()
    assert cli.main(["labels", "export", "log", "--out", "out"]) == 0
    lines = [json.dumps({"_id": key, "text": text}) for key, text in corpus.items()]
    Path("out/corpus.jsonl").write_text("\n".join(lines))
    assert readers.read("out").qrels == labels


@pytest.mark.parametrize("key", ["a\tb", "a\nb", " a", "a\r"])
def test_ids_that_a_label_file_cannot_hold_are_refused(capsys, key):
    with LabelLog("log") as log:
        log.add("q", key)
    assert cli.main(["labels", "export", "log", "--out", "out"]) == 1
    assert f"the document id {key!r} has a tab, a line break or outer white space" in capsys.readouterr().err
    assert not os.path.exists("out")
