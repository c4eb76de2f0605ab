"""The label log: nothing is lost, no source can drag a document around, and a query keeps its split."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import collections_on_disk as disk
from nudgevec import LabelLog, NudgeN, cli
from nudgevec.errors import LabelError, NudgeWarning, OptionError
from nudgevec.feedback.event import Event
from nudgevec.feedback.log import DEFAULT_WEIGHTS
from nudgevec.runs import folder
from nudgevec.text.embedders import static
from nudgevec.text.splits import SPLITS, normalise, split_of


@pytest.fixture
def log(tmp_path):
    with LabelLog(tmp_path / "log.sqlite") as made:
        yield made


def everything(labels):
    return {query: grades for qrels in labels.values() for query, grades in qrels.items()}


def test_events_are_stored_unchanged(log):
    log.add("Café?", "d1", "click", 2.0, propensity=0.5, time=100.0, source="web")
    assert list(log) == [Event("Café?", "d1", "click", 2.0, 0.5, 100.0, "web")]
    assert everything(log.labels()) == {"café?": {"d1": pytest.approx(DEFAULT_WEIGHTS["click"] * 2 / 0.5)}}


def test_spellings_are_merged_and_votes_add_up(log):
    log.add("Reset  password", "a", "thumbs_up", source="x")
    log.add("reset PASSWORD", "a", "thumbs_up", source="y")
    log.add("reset password", "a", "thumbs_down", source="z")
    log.add("reset password", "b", "thumbs_up", source="x", time=1)
    log.add("reset password", "b", "thumbs_down", source="y", time=2)
    assert everything(log.labels()) == {"reset password": {"a": 1.0}}


def test_the_same_file_twice_counts_once(log):
    events = [Event(f"q{number}", "d", time=5.0, source="file") for number in range(10)]
    assert log.extend(events) == 10
    assert log.extend(events) == 0
    assert len(log) == 10


def test_half_life(log):
    log.add("old", "d", time=86400.0)
    log.add("new", "d", time=86400.0 * 31)
    log.extend([Event("undated", "d")])
    labels = everything(log.labels(half_life=15))
    assert labels["undated"]["d"] == 1
    assert labels["new"]["d"] == 1
    assert labels["old"]["d"] == pytest.approx(0.25)


def test_weights_of_signals_can_be_changed(log):
    log.add("q", "d", "click")
    log.set_weights({"click": 0.8, "hover": 0.1})
    log.add("q", "e", "hover")
    assert everything(log.labels())["q"] == {"d": 0.8, "e": 0.1}


def test_ten_thousand_votes_of_one_client_count_as_much_as_its_cap(tmp_path):
    """Votes beyond the cap have no effect, whatever their number."""
    documents = static.embed(["resetting a password", "holiday rules", "parking at the office"])
    texts = [text for text in (f"forgot login {number}" for number in range(400)) if split_of(text) == "train"][:40]

    def tuned(name, events):
        with LabelLog(tmp_path / name) as log:
            log.extend(events)
            labels = log.labels(cap=1.0)["train"]
        rows = [{int(key): weight for key, weight in grades.items()} for grades in labels.values()]
        return labels, NudgeN(gamma=0.2).fit(documents, (static.embed(list(labels)), rows)).patch_

    honest = [Event(text, "0", time=float(number), source=f"user{number}") for number, text in enumerate(texts)]
    attack = next(text for text in (f"cheap pills {number}" for number in range(99)) if split_of(text) == "train")
    flood = [Event(attack, "0", time=float(number), source="bot") for number in range(10_000)]
    once = [Event(attack, "0", time=0.0, source="bot")]
    flooded, moved = tuned("flood", honest + flood)
    assert flooded[attack]["0"] == pytest.approx(1.0)
    assert np.allclose(moved.after, tuned("once", honest + once)[1].after, atol=1e-6)
    honest_only = tuned("honest", honest)[1]
    angle = np.degrees(np.arccos(np.clip(moved.after[0] @ honest_only.after[0], -1, 1)))
    assert angle < 1


def test_splits_never_change(log):
    for number in range(300):
        log.add(f"query {number}", "d")
    before = log.labels()
    assert {query: name for name in SPLITS for query in before[name]} == {
        f"query {number}": split_of(f"query {number}") for number in range(300)
    }
    for number in range(300, 600):
        log.add(f" QUERY {number}", "d")
    after = log.labels()
    for name in SPLITS:
        assert set(before[name]) <= set(after[name])
    keys = [set(map(normalise, after[name])) for name in SPLITS]
    assert len(keys[0] | keys[1] | keys[2]) == sum(map(len, keys))


def test_synthetic_queries_are_never_tested_on(log):
    for number in range(200):
        log.add(f"made up {number}", "d", "synthetic", source="synthetic")
        log.add(f"made up {number}", "e", "synthetic", source="somebody")
    assert not log.labels()["test"]
    assert len(log.labels()["train"]) > 100


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (("", "d"), "the event has no query text"),
        (("q", ""), "the event of query 'q' has no document id"),
        (("q", "d", "wink"), "unknown signal 'wink': use one of click"),
        (("q", "d", "click", float("nan")), "value must be a number from -1e6 to 1e6, not nan"),
        (("q", "d", "click", 1e308), "value must be a number from -1e6 to 1e6, not 1e"),
        (("q", "d", "click", 10**400), "value must be a number from -1e6 to 1e6"),
        (("q", "d", "click", 1.0, 1.0, -1e300), "time must be a number of seconds since 1970"),
        (("q\ud800", "d"), "the query of the event is not a text of valid Unicode"),
        (("q", "d\udfff"), "the document of the event is not a text of valid Unicode"),
        (("q", "d", "click", 1.0, 1.0, 0.0, None), "the source of the event is not a text of valid Unicode: None"),
        (("q", "d", "click", 1.0, 0.0), "propensity must be a probability greater than 0"),
    ],
)
def test_bad_events_are_refused_and_nothing_is_half_written(log, event, message):
    with pytest.raises(LabelError, match=message):
        log.extend([Event("fine", "d"), Event(*event)])
    assert len(log) == 0


def test_threads_share_a_log(log):
    """An event that was acknowledged survives the failure of another thread's import."""
    inside, added = threading.Event(), threading.Event()

    def events():
        yield Event("q", "d")
        inside.set()
        added.wait(1)
        raise RuntimeError

    def importing():
        with pytest.raises(RuntimeError):
            log.extend(events())

    thread = threading.Thread(target=importing)
    thread.start()
    inside.wait()
    log.add("precious", "d")
    added.set()
    thread.join()
    assert [event.query for event in log] == ["precious"]


def test_equal_events_of_one_second_all_count(log):
    for _ in range(100):
        log.add("q", "d", "click", time=1.7e9, source="web")
    assert len(log) == 100
    assert everything(log.labels())["q"]["d"] == pytest.approx(100 * DEFAULT_WEIGHTS["click"])
    assert max(event.time for event in log) - 1.7e9 < 0.001


def test_extreme_values_of_an_old_log_do_not_erase_the_labels_of_others(log):
    """Earlier versions accepted values whose weight was infinite, and with a cap NaN."""
    log.add("q", "d", source="honest")
    with sqlite3.connect(log.path) as connection:
        rows = [("q", "d", "judgement", value, 0.01, time, "attacker") for value, time in ((1e308, 1.0), ("much", 2.0))]
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    for options in ({}, {"cap": 1.0}, {"half_life": 1.0}):
        with pytest.warns(NudgeWarning, match="are ignored: 2"):
            assert everything(log.labels(**options)) == {"q": {"d": 1.0}}


def test_the_largest_weights_stay_finite(log):
    log.set_weights({"click": 1e6})
    for number in range(50):
        log.add("q", "d", "click", 1e6, propensity=1e-300, source=f"user{number % 2}")
    assert np.isfinite(everything(log.labels())["q"]["d"])
    assert everything(log.labels(cap=1.0)) == {"q": {"d": pytest.approx(2.0)}}
    for weight in (1e7, float("nan"), 10**400):
        with pytest.raises(OptionError, match="must be a number from -1e6 to 1e6"):
            log.set_weights({"click": weight})


def test_cases_and_forms_of_every_letter_share_a_split():
    letters = [chr(code) for code in range(0x110000) if chr(code).isalpha() and chr(code) != "ı"]
    assert not [letter for letter in letters if normalise(letter.upper()) != normalise(letter)]
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    assert not [
        letter
        for letter in letters
        if {normalise(unicodedata.normalize(form, letter)) for form in forms} != {normalise(letter)}
    ]
    assert normalise("ΰ ΐ ᾳ".upper()) == normalise("ΰ ΐ ᾳ")


ADD_UNTIL_FULL = """
import resource, sys
from nudgevec import LabelLog
from nudgevec.errors import LabelError
with LabelLog(sys.argv[1]) as log:
    log.add("first", "d")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        for number in range(100_000):
            log.add("q" * 1000, str(number))
    except LabelError as error:
        print(error)
"""


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    path = tmp_path / "log.sqlite"
    done = subprocess.run([sys.executable, "-c", ADD_UNTIL_FULL, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"{path}: (disk I/O error|database or disk is full)\n", done.stdout)
    with LabelLog(path) as log:
        assert next(iter(log)).query == "first"
        assert len(log) > 5


@pytest.mark.parametrize("spoil", [lambda page: b"\xff" * len(page), lambda page: bytes(len(page))])
def test_a_damaged_log_is_one_line(tmp_path, capsys, spoil):
    path = tmp_path / "log"
    with LabelLog(path) as log:
        log.extend(Event(f"query {number}", "d" * 100) for number in range(2000))
    contents = bytearray(path.read_bytes())
    contents[4096 * 9 :] = spoil(contents[4096 * 9 :])
    path.write_bytes(contents)
    for command in (["stats", str(path)], ["export", str(path), "--out", str(tmp_path / "out")]):
        assert cli.main(["labels", *command]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "malformed" in error or "not a database" in error


def test_bad_options(log, tmp_path):
    with pytest.raises(OptionError, match="must be greater than 0"):
        log.labels(cap=0)
    (tmp_path / "poem.txt").write_text("roses are red " * 100)
    with pytest.raises(LabelError, match="cannot be opened as a label log"):
        LabelLog(tmp_path / "poem.txt")


def test_a_thousand_events_a_second(log):
    """In CPU time, which does not depend on what else runs. Twenty times as many have been measured on two cores."""
    began = time.process_time()
    for number in range(5000):
        log.add(f"query {number}", "d", "click", source="web")
    assert time.process_time() - began < 5


WRITER = """
import sys
from nudgevec import LabelLog
log = LabelLog(sys.argv[1])
for number in range(10**9):
    log.add(f"query {number}", "d", "click", source=sys.argv[2])
    print(number, flush=True)
"""


def test_nothing_acknowledged_is_lost_on_kill(tmp_path):
    path = tmp_path / "log.sqlite"
    for turn in range(8):
        command = [sys.executable, "-c", WRITER, path, f"writer{turn}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            acknowledged = [running.stdout.readline() for _ in range(random.Random(turn).randint(1, 400))]
            running.send_signal(signal.SIGKILL)
            acknowledged += running.stdout.read().splitlines(keepends=True)
        with LabelLog(path) as log:
            written = {int(event.query.split()[1]) for event in log if event.source == f"writer{turn}"}
        assert written >= {int(number) for number in acknowledged if number.endswith("\n")}
        assert written == set(range(len(written)))


def test_several_processes_at_once(tmp_path):
    path = tmp_path / "log.sqlite"
    code = WRITER.replace("10**9", "500")
    writers = [
        subprocess.Popen([sys.executable, "-c", code, path, f"w{number}"], stdout=subprocess.DEVNULL)
        for number in range(4)
    ]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    with LabelLog(path) as log:
        assert len(log) == 2000


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder of text files, and a file of clicks on them."""
    monkeypatch.chdir(tmp_path)
    corpus, queries, qrels = disk.texts()
    os.mkdir("texts")
    for key, text in corpus.items():
        (tmp_path / "texts" / f"{key}.txt").write_text(text)
    with open("clicks.jsonl", "w") as file:
        for number, (query, grades) in enumerate(qrels.items()):
            event = {"query": queries[query], "document": f"{next(iter(grades))}.txt", "signal": "click"}
            file.write(
                json.dumps({**event, "time": f"2026-01-{1 + number % 28:02d}", "source": f"u{number % 9}"}) + "\n"
            )


def test_from_text_files_and_clicks_to_a_run(files, capsys):
    assert cli.main(["labels", "import", "log.sqlite", "clicks.jsonl"]) == 0
    assert "180 events read, 180 new, 0 already known" in capsys.readouterr().out
    assert cli.main(["labels", "stats", "log.sqlite", "--data", "texts"]) == 0
    output = capsys.readouterr().out
    assert "180 events" in output
    assert re.search(r"^click +180$", output, re.MULTILINE)
    assert "25% of 48 documents are covered" in output
    assert "100% have a relevant document with training labels" in output
    assert cli.main(["tune", "texts", "--labels", "log.sqlite", "--out", "run", "--guard", "0"]) == 0
    facts = folder.SavedRun(Path("run")).facts
    assert facts["counts"]["documents"] == 48
    assert facts["counts"]["moved"] > 0
    assert facts["counts"]["test_queries"] > 20


def test_import_csv_and_qrels(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    disk.beir(tmp_path / "data")
    with open("votes.csv", "w") as file:
        file.write("query,document,signal,value,propensity,time\nhello,d1,thumbs_up,,0.5,2026-03-01T10:00:00\n")
    assert cli.main(["labels", "import", "log", "votes.csv", "--source", "survey"]) == 0
    command = ["labels", "import", "log", "data/qrels.tsv"]
    assert cli.main(command) == 1
    assert "pass their texts with --queries queries.jsonl" in capsys.readouterr().err
    assert cli.main([*command, "--queries", "data/queries.jsonl"]) == 0
    with LabelLog("log") as log:
        events = list(log)
    assert len(events) == 181
    assert events[0] == Event("hello", "d1", "thumbs_up", 1.0, 0.5, 1772359200.0, "survey")
    assert cli.main(["labels", "signals", "log", "--set", "click=0.7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["click"] == 0.7
    assert cli.main(["labels", "export", "log", "--out", "folded"]) == 0
    assert sorted(os.listdir("folded/qrels")) == ["dev.tsv", "test.tsv", "train.tsv"]


def test_equal_clicks_add_up_and_files_count_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with open("events.jsonl", "w") as file:
        file.write('{"query": "q", "document": "d", "colour": "red"}\n' * 3)
    for new in (3, 0):
        assert cli.main(["labels", "import", "log", "events.jsonl", "--signal", "click"]) == 0
        output = capsys.readouterr()
        assert f"3 events read, {new} new" in output.out
        assert "unknown columns are ignored: colour" in output.err
    with LabelLog("log") as log:
        assert everything(log.labels())["q"]["d"] == pytest.approx(3 * DEFAULT_WEIGHTS["click"])


GOOD = '{"query": "q", "document": "d"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + '{"document": "d"}', "line 2: missing column 'query'"),
        (GOOD + '{"query": "q", "document": "d", "value": "much"}', "line 2: could not convert string to float"),
        (GOOD + '{"query": "q", "document": "d", "time": "yesterday"}', "line 2: Invalid isoformat"),
        (GOOD + '{"query": "q", "document": "d", "signal": "wink"}', "unknown signal 'wink'"),
        ('query,document\n"hello,d1\nfoo,d2\n', "unexpected end of data"),
        ("query,document\nhello,d1,click\n", "line 2: expected 2 columns"),
        ("query,document\nhello\n", "line 2: expected 2 columns"),
        ("Question;Document\nhello;d1\n", "line 2: missing column 'query' in Question, Document; --map query=COLUMN"),
        ("query,document\nhello;d1\n", "line 2: expected 2 columns separated by ',', found 1"),
        ("query\n", "line 1: 'query' is neither JSON nor a line of columns"),
        ("query,document\nhello,\n", "line 2: column 'document' is empty"),
        (GOOD + '{"query": ["a"], "document": "d"}', "line 2: the query is ['a'], not a text or a number"),
        (GOOD + '{"query": "q", "document": "d", "value": [1]}', "line 2: float() argument must be"),
        (
            GOOD + '{"query": "q", "document": "d", "value": %s}' % ("9" * 5000),
            "line 2: invalid JSON: a number has too many",
        ),
        (GOOD + "[" * 100_000, "line 2: invalid JSON: it is nested too deeply"),
        (
            GOOD + '{"query": "\\ud83d", "document": "d"}',
            "line 2: the query of the event is not a text of valid Unicode",
        ),
        ("query,document\n", "has no events"),
        ("", "has no events"),
        ("[]", "has no events"),
        ("[1]", "element 1 of the array is not a JSON object: '1'"),
        ("query,document,propensity\nhello,d1,0\n", "line 2: propensity must be a probability greater than 0"),
        ("query,document,time\nhello,d1,1700000000000\n", "times are in seconds since 1970"),
        ("query,document,signal\nhello,d1,wink\n", "line 2: unknown signal 'wink'"),
    ],
)
def test_a_broken_file_imports_nothing(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    name = "events.jsonl" if text.startswith("{") else "events.csv"
    with open(name, "w") as file:
        file.write(text)
    assert cli.main(["labels", "import", "log", name]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not os.path.exists("log"), "a failed import creates no log"
    with LabelLog("log") as log:
        log.add("q", "d")
    assert cli.main(["labels", "import", "log", name]) == 1
    with LabelLog("log") as log:
        assert len(log) == 1


def test_precomputed_vectors_are_not_those_of_a_log(files, capsys):
    cli.main(["labels", "import", "log.sqlite", "clicks.jsonl"])
    assert cli.main(["evaluate", "texts", "--labels", "log.sqlite", "--embedder", "precomputed:m"]) == 1
    assert "belong to the queries of the data, not to those of a label log" in capsys.readouterr().err


def test_a_run_from_a_log_is_measured_again(files, capsys):
    cli.main(["labels", "import", "log.sqlite", "clicks.jsonl"])
    tune = ["tune", "texts", "--labels", "log.sqlite", "--cap", "2", "--out", "run", "--guard", "0", "--json"]
    capsys.readouterr()
    cli.main(tune)
    facts = json.loads(capsys.readouterr().out)
    assert facts["split"] == "0.7 / 0.1 / 0.2 by a hash of the query (seed 0)"
    assert cli.main(["evaluate", "texts", "--run", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == facts["test"]["after"]


def test_pages_are_read_without_their_tags(tmp_path):
    from nudgevec.text import readers

    (tmp_path / "page.html").write_text("<html><script>var x</script><p>fish &amp; <b>chips</b></p></html>")
    (tmp_path / "odd.txt").write_bytes("caf\xe9 au lait".encode("latin-1"))
    with pytest.warns(NudgeWarning, match=r"odd.txt is not valid UTF-8"):
        documents = readers.read_documents(str(tmp_path))
    assert dict(zip(documents.ids, documents.texts, strict=True)) == {
        "odd.txt": "caf  au lait",
        "page.html": "fish & chips",
    }


def test_statistics_suggest_what_to_collect_next(log):
    from nudgevec.feedback.stats import log_statistics

    for number in range(400):
        log.add(f"popular {number}", "known", time=float(number))
        query = f"rare {number}"
        if split_of(query) != "train":
            log.add(query, "unknown", time=float(number))
    statistics = log_statistics(log, ["known", "unknown", "never"])
    assert statistics["coverage"] == pytest.approx(1 / 3)
    assert statistics["collect_next"][0]["document"] == "unknown"
    assert 0.2 < statistics["expected_usefulness"] < 0.8
    wrong = log_statistics(log, ["elsewhere"])
    assert (wrong["coverage"], wrong["expected_usefulness"], wrong["collect_next"]) == (0, None, [])
    assert wrong["labels_of_unknown_documents"] > 400
