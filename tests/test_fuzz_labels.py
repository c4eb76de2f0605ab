"""Damaged files of events are refused with one of our errors and change nothing, or give labels that can be used."""

from __future__ import annotations

import contextlib
import io
import json
import math
import shutil

import pytest

from fuzzing import VALUES, cases, damaged
from nudgevec import LabelLog, cli

EVENTS = [
    {
        "query": f"query {number} caf\u00e9",
        "document": f"d{number % 3}",
        "signal": "click",
        "value": 1 + number,
        "propensity": 0.5,
        "time": "2026-03-01T10:00:00",
        "source": "web",
    }
    for number in range(6)
]


def as_json_lines(events):
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def as_csv(events):
    lines = [",".join(events[0]), *(",".join(map(str, event.values())) for event in events)]
    return "\n".join(lines).encode()


def as_qrels(events):
    return "".join(f"q{number}\t{event['document']}\t1\n" for number, event in enumerate(events)).encode()


FILES = {"events.jsonl": as_json_lines, "events.csv": as_csv, "qrels.tsv": as_qrels}


@pytest.fixture
def log(tmp_path):
    """A label log with an event."""
    path = tmp_path / "log.sqlite"
    with LabelLog(path) as log:
        log.add("precious", "d0", "click")
    queries = [json.dumps({"_id": f"q{number}", "text": event["query"]}) for number, event in enumerate(EVENTS)]
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    return path


def import_file(log, file):
    """Import a file into a copy of a log as the command does; return whether it did, and the events of the copy."""
    copy, problem = file.parent / "copy.sqlite", io.StringIO()
    shutil.copyfile(log, copy)
    arguments = ["labels", "import", str(copy), str(file)]
    if file.suffix == ".tsv":
        arguments += ["--queries", str(file.parent / "queries.jsonl")]
    with contextlib.redirect_stderr(problem), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(arguments)
    lines = problem.getvalue().splitlines()
    assert all(line.startswith("nudgevec: ") for line in lines)
    assert sum(not line.startswith("nudgevec: warning: ") for line in lines) == code
    with LabelLog(copy) as imported:
        for qrels in imported.labels().values():
            assert all(math.isfinite(weight) for grades in qrels.values() for weight in grades.values())
        return code == 0, list(imported)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_events_is_refused_or_works(name, log, tmp_path):
    file, contents = tmp_path / name, FILES[name](EVENTS)
    with LabelLog(log) as opened:
        before = list(opened)
    file.write_bytes(contents)
    done, whole = import_file(log, file)
    assert done
    assert len(whole) == 1 + len(EVENTS)
    refused = 0
    for chance in cases(150):
        file.write_bytes(damaged(contents, chance))
        done, after = import_file(log, file)
        assert done or after == before
        refused += not done
    assert refused > 0


def test_events_with_values_of_every_type_are_refused_or_work(log, tmp_path):
    file, imported = tmp_path / "events.jsonl", 0
    with LabelLog(log) as opened:
        before = list(opened)
    for chance in cases(150):
        changes = {name: chance.choice(VALUES) for name in chance.sample(sorted(EVENTS[0]), chance.randint(1, 2))}
        file.write_bytes(as_json_lines([*EVENTS[:3], EVENTS[3] | changes]))
        done, after = import_file(log, file)
        assert done or after == before
        imported += done
    assert imported > 0
