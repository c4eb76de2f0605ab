"""The file of a label log: reading changes nothing, and files of other programs are refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import collections_on_disk as disk
from nudgevec import cli
from nudgevec.errors import LabelError
from nudgevec.feedback.log import LabelLog

READ = ["stats", "export", "signals"]
# Root can write everywhere, unless it gives up this capability.
DROP = ["setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))


def command(verb, log):
    return ["labels", verb, str(log), *(["--out", f"{log}-out"] if verb == "export" else [])]


def make_log(path):
    with LabelLog(path) as log:
        for number in range(50):
            log.add(f"query {number}", f"d{number % 5}", "click", time=float(number + 1))


def foreign(path, tables):
    with sqlite3.connect(path) as connection:
        connection.executescript(tables)
    connection.close()


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE contacts (name TEXT); INSERT INTO contacts VALUES ('Ada')",
        "CREATE TABLE events (name TEXT, day TEXT); INSERT INTO events VALUES ('birthday', '1815-12-10')",
        "PRAGMA journal_mode = WAL; CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('years of work')",
    ],
    ids=["other tables", "other events", "write-ahead"],
)
def test_files_of_other_programs_are_refused_and_not_changed(tables, capsys):
    foreign("mine.db", tables)
    disk.beir(Path("data"), {"train": 0.6, "dev": 0.2, "test": 0.2})
    Path("new.jsonl").write_text('{"query": "a", "document": "d0"}\n')
    before = Path("mine.db").read_bytes()
    commands = [command(verb, "mine.db") for verb in READ]
    commands += [
        ["labels", "import", "mine.db", "new.jsonl"],
        ["labels", "signals", "mine.db", "--set", "click=1"],
        ["tune", "data", "--labels", "mine.db", "--out", "run"],
    ]
    for arguments in commands:
        assert cli.main(arguments) == 1, arguments
        assert capsys.readouterr().err == (
            "nudgevec: mine.db is not a label log: it has no table of events. Nothing was changed\n"
        )
    assert Path("mine.db").read_bytes() == before
    assert sorted(os.listdir()) == ["data", "mine.db", "new.jsonl"]


WRITER = """
import os, sqlite3
connection = sqlite3.connect("mine.db", isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE notes (text TEXT)")
print(flush=True)
input()
os._exit(0)
"""


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "running"])
def test_what_another_program_has_not_moved_into_its_file_stays_where_it_is(killed, capsys):
    """Its table is in the write-ahead log only, which the last connection moves into the file when it is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER], **pipes) as writer:
        assert writer.stdout.readline() == b"\n"
        if killed:
            writer.communicate(b"\n")
        Path("new.jsonl").write_text('{"query": "a", "document": "d0"}\n')
        before = [Path(name).read_bytes() for name in ("mine.db", "mine.db-wal")]
        assert len(before[1]) > 0
        for arguments in [*(command(verb, "mine.db") for verb in READ), ["labels", "import", "mine.db", "new.jsonl"]]:
            assert cli.main(arguments) == 1
            assert "mine.db is not a label log" in capsys.readouterr().err
            assert [Path(name).read_bytes() for name in ("mine.db", "mine.db-wal")] == before
        if not killed:
            writer.communicate(b"\n")


def test_a_log_of_a_killed_process_is_whole():
    code = "import os; from nudgevec import LabelLog; LabelLog('log').add('q', 'd'); os._exit(0)"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", code], check=True)
    assert Path("log-wal").exists()
    with LabelLog("log", read_only=True) as log:
        assert len(log) == 3
    subprocess.run([sys.executable, "-c", code], check=True)
    with LabelLog("log") as log:
        assert len(log) == 4


@pytest.mark.parametrize("verb", READ)
def test_reading_changes_nothing(verb, capsys):
    make_log("labels#1 50%.sqlite")
    before = Path("labels#1 50%.sqlite").read_bytes()
    assert cli.main(command(verb, "labels#1 50%.sqlite")) == 0
    assert Path("labels#1 50%.sqlite").read_bytes() == before
    assert {name for name in os.listdir() if not name.endswith("-out")} == {"labels#1 50%.sqlite"}


def test_reading_creates_no_log(capsys):
    with pytest.raises(LabelError, match="cannot be opened as a label log"):
        LabelLog("none.sqlite", read_only=True)
    Path("empty.sqlite").touch()
    assert cli.main(["labels", "stats", "empty.sqlite"]) == 1
    assert os.listdir() == ["empty.sqlite"]
    assert Path("empty.sqlite").read_bytes() == b""


def test_a_log_is_read_while_others_write():
    with LabelLog("labels.sqlite") as writer:
        writer.add("first", "d0")
        with LabelLog("labels.sqlite", read_only=True) as reader:
            assert len(reader) == 1
            writer.add("second", "d0")
            assert [event.query for event in reader] == ["first", "second"]
            with pytest.raises((LabelError, sqlite3.OperationalError), match="readonly"):
                reader.add("third", "d0")
    assert len(LabelLog("labels.sqlite", read_only=True)) == 2


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root can write everywhere")
@pytest.mark.parametrize("verb", ["stats", "signals"])
def test_a_log_in_a_folder_without_write_permission(verb):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_log(folder / "labels.sqlite")
        (folder / "labels.sqlite").chmod(0o444)
        folder.chmod(0o555)
        program = [sys.executable, "-m", "nudgevec", *command(verb, folder / "labels.sqlite")]
        done = subprocess.run([*DROP, *program], capture_output=True, text=True)
        folder.chmod(0o755)
        assert (done.returncode, done.stderr) == (0, "")
        assert "click" in done.stdout
        assert os.listdir(folder) == ["labels.sqlite"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root can write everywhere")
def test_an_import_writes_nothing_but_the_log():
    program = [sys.executable, "-m", "nudgevec", "labels", "import"]
    Path("here").mkdir()
    Path("good.jsonl").write_text('{"query": "a", "document": "d0"}\n')
    Path("bad.jsonl").write_text('{"query": "a"}\n')
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        for name, code in (("bad", 1), ("good", 0), ("good", 0)):
            for mode in (0o555, 0o755):
                Path("here").chmod(mode)
                done = subprocess.run([*DROP, *program, log, f"../{name}.jsonl"], cwd="here", capture_output=True)
                assert done.returncode == code, done.stderr
                assert os.listdir("here") == []
                assert os.listdir(folder) == ([] if code else ["log"])


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_of_a_log_respect_the_umask(umask):
    previous = os.umask(umask)
    try:
        with LabelLog("labels.sqlite") as log:
            log.add("a query", "d0")
            modes = {path.name: path.stat().st_mode & 0o777 for path in Path().glob("labels.sqlite*")}
    finally:
        os.umask(previous)
    assert modes == dict.fromkeys(["labels.sqlite", "labels.sqlite-wal", "labels.sqlite-shm"], 0o666 & ~umask)


def test_many_processes_create_one_log():
    code = """
import sys
from nudgevec.feedback.log import LabelLog
print("ready", flush=True)
for line in sys.stdin:
    with LabelLog(line.strip()) as log:
        log.add("query", "d0", source=sys.argv[1])
    print("done", flush=True)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(number)], **pipes) for number in range(4)]
    for number in range(100):
        for writer in writers:
            assert writer.stdout.readline() == ("done\n" if number else "ready\n")
        for writer in writers:
            writer.stdin.write(f"log{number}.sqlite\n")
            writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    for number in range(100):
        with LabelLog(f"log{number}.sqlite", read_only=True) as log:
            assert len(log) == 4
