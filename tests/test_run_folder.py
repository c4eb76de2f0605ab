"""Run folders: written whole or not at all, other files left alone, and damage noticed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import collections_on_disk as disk
from nudgevec import cli
from nudgevec.runs import folder


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))
    disk.beir(tmp_path / "data", {"train": 0.6, "dev": 0.2, "test": 0.2})


FILES = sorted(
    [
        "README.md",
        "documents.jsonl",
        "patch.safetensors",
        "queries.jsonl",
        "queries.safetensors",
        "query_curves.safetensors",
        "run.json",
    ]
)


def test_overwrite_replaces_a_run(capsys):
    cli.main(["tune", "data", "--out", "run"])
    assert cli.main(["tune", "data", "--out", "run", "--method", "M"]) == 1
    assert folder.SavedRun(Path("run")).facts["method"] == "auto"
    assert cli.main(["tune", "data", "--out", "run", "--method", "M", "--overwrite"]) == 0
    assert folder.SavedRun(Path("run")).facts["method"] == "M"
    assert [name for name in os.listdir() if "run" in name] == ["run"]
    assert sorted(os.listdir("run")) == FILES


def test_overwrite_touches_nothing_but_runs(tmp_path, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    os.mkdir("other")
    Path("other/thesis.txt").write_text("years of work")
    Path("file").write_text("")
    for out in ("data", "other", ".", "", "file", "/proc/none/run"):
        assert cli.main(["tune", "data", "--out", out, "--overwrite"]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before
    assert Path("other/thesis.txt").read_text() == "years of work"
    os.mkdir("empty")
    assert cli.main(["tune", "data", "--out", "empty"]) == 0


def test_overwrite_keeps_files_of_the_user(capsys):
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    Path("run/notes.txt").write_text("years of work")
    Path("run/sub").mkdir()
    Path("run/sub/labels.sqlite").write_text("labels")
    Path("thesis").write_text("years of work")
    Path("run/README.md").unlink()
    Path("run/README.md").symlink_to(Path("thesis").resolve())
    assert cli.main(["tune", "data", "--out", "run", "--overwrite"]) == 0
    assert Path("run/notes.txt").read_text() == Path("thesis").read_text() == "years of work"
    assert Path("run/sub/labels.sqlite").read_text() == "labels"
    assert "tuned with" in Path("run/README.md").read_text()


def test_a_run_does_not_replace_what_it_reads(capsys):
    """BEIR data and run folders both have a file queries.jsonl."""
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    shutil.move("data", "run/data")
    Path("link").symlink_to("run/data")
    for data in ("run/data", "link"):
        assert cli.main(["tune", data, "--out", "run", "--overwrite"]) == 1
        message = capsys.readouterr().err.splitlines()[-1]
        assert message == f"nudgevec: run contains {data}, which this run reads: choose another --out"
    shutil.move("run/data", "data")
    Path("run/clicks.jsonl").write_text('{"query": "a", "document": "d0", "signal": "click"}\n')
    assert cli.main(["tune", "data", "--labels", "run/clicks.jsonl", "--out", "run", "--overwrite"]) == 1
    assert "run contains run/clicks.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["queries.jsonl", "qrels", "qrels/train.tsv"])
def test_a_run_does_not_replace_what_it_reads_through_a_link(link, capsys):
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    target = Path("run") / Path(link).name
    shutil.move(f"data/{link}", target)
    Path(f"data/{link}").symlink_to(target.resolve())
    capsys.readouterr()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert cli.main(["tune", "data", "--out", "run", "--overwrite"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message == f"nudgevec: run contains data/{link}, which this run reads: choose another --out"
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_links_to_other_places_do_not_matter(tmp_path, capsys):
    """A run folder may be in the data folder, and links in either may lead elsewhere."""
    shutil.move("data/queries.jsonl", "queries.jsonl")
    Path("data/queries.jsonl").symlink_to(tmp_path / "queries.jsonl")
    Path("data/nowhere").symlink_to(tmp_path / "nowhere")
    assert cli.main(["tune", "data", "--out", "data/runs/one"]) == 0
    Path("data/runs/one/notes").symlink_to("README.md")
    assert cli.main(["tune", "data", "--out", "data/runs/one", "--overwrite"]) == 0


TUNE_SLOWLY = """
import sys, time
from nudgevec.runs import tuning
fit = tuning.fit
def slowly(*args):
    print("claimed", flush=True)
    sys.stdin.readline()
    return fit(*args)
tuning.fit = slowly
from nudgevec.cli import main
sys.exit(main(["tune", "data", "--out", "run"]))
"""


def test_a_second_tune_into_one_new_folder_is_refused(capsys):
    first = subprocess.Popen(
        [sys.executable, "-c", TUNE_SLOWLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "claimed\n"
    assert cli.main(["tune", "data", "--out", "run", "--method", "M"]) == 1
    assert capsys.readouterr().err == "nudgevec: run: another process is writing to this folder\n"
    first.communicate("go on\n")
    assert first.returncode == 0
    assert folder.SavedRun(Path("run")).facts["method"] == "auto"
    assert sorted(os.listdir("run")) == FILES


def test_a_folder_claimed_by_a_killed_process_is_free(capsys):
    first = subprocess.Popen(
        [sys.executable, "-c", TUNE_SLOWLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "claimed\n"
    first.kill()
    first.communicate()
    assert cli.main(["tune", "data", "--out", "run"]) == 0
    assert sorted(os.listdir("run")) == FILES


@pytest.mark.parametrize("n_moved", [0, 1, 5])
@pytest.mark.parametrize("then", ["inspect", "evaluate", "tune"])
def test_a_kill_while_files_are_moved_leaves_the_new_run(n_moved, then, capsys):
    """The process dies when the new run is complete and some of its files have replaced those of the old one."""
    cli.main(["tune", "data", "--out", "run"])
    code = f"""
import os, signal, sys
from nudgevec.cli import main
replace, moved = os.replace, []
def killed(source, target):
    if ".nudgevec-complete" in str(source):
        if len(moved) == {n_moved}:
            os.kill(os.getpid(), signal.SIGKILL)
        moved.append(source)
    replace(source, target)
os.replace = killed
main(["tune", "data", "--out", "run", "--method", "M", "--overwrite"])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
    if then == "tune":
        assert cli.main(["tune", "data", "--out", "run"]) == 1
        assert "run contains a run" in capsys.readouterr().err
    else:
        arguments = {"inspect": ["inspect", "run"], "evaluate": ["evaluate", "data", "--run", "run"]}[then]
        assert cli.main(arguments) == 0
    assert folder.SavedRun(Path("run")).facts["method"] == "M"
    assert sorted(set(os.listdir("run")) - {".nudgevec-lock"}) == FILES


def test_a_swapped_patch_is_noticed(capsys):
    for out, method in (("n", "N"), ("m", "M")):
        cli.main(["tune", "data", "--out", out, "--method", method])
    shutil.copy("m/patch.safetensors", "n/patch.safetensors")
    capsys.readouterr()
    for command in (
        ["evaluate", "data", "--run", "n"],
        ["revert", "n", "--store", "faiss:x"],
        ["apply", "n", "--store", "faiss:x"],
    ):
        assert cli.main(command) == 1
        assert capsys.readouterr().err == (
            "nudgevec: n: patch.safetensors is not the file that was written with run.json: tune again\n"
        )


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("README.md", "query_curves.safetensors")])
@pytest.mark.parametrize("contents", [b"", b"\xff\xfe", b"{}", b"null", b"[1]", b"[" * 100_000, None], ids=repr)
def test_a_broken_run_folder_is_one_line(name, contents, capsys):
    cli.main(["tune", "data", "--out", "run"])
    capsys.readouterr()
    if contents is None:
        Path("run", name).unlink()
    else:
        Path("run", name).write_bytes(contents)
    for command in (["inspect", "run"], ["apply", "run", "--store", "faiss:x"], ["evaluate", "data", "--run", "run"]):
        code, output = cli.main(command), capsys.readouterr()
        assert output.err.count("\n") == code
    assert cli.main(["tune", "data", "--out", "run", "--overwrite"]) == (name == "run.json")


@pytest.mark.parametrize("name", [".nudgevec-draft", ".nudgevec-complete", ".nudgevec-lock"])
def test_files_of_the_user_with_names_of_drafts_are_kept(name, tmp_path, capsys):
    cli.main(["tune", "data", "--out", "run"])
    if name == ".nudgevec-lock":
        Path("run", name).write_text("years of work")
    else:
        Path("run", name).mkdir()
        Path("run", name, "thesis").write_text("years of work")
    cli.main(["inspect", "run"])
    cli.main(["tune", "data", "--out", "run", "--overwrite"])
    kept = Path("run", name)
    assert (kept if kept.is_file() else kept / "thesis").read_text() == "years of work"
    assert folder.SavedRun(Path("run")).facts["method"] == "auto"


@pytest.mark.parametrize("link", [".nudgevec-complete", ".nudgevec-complete/files", "sub"])
def test_reading_a_run_folder_moves_no_files_through_links(link, tmp_path, capsys):
    """A folder that came from others may look as if a process had been killed while it replaced files."""
    cli.main(["tune", "data", "--out", "run"])
    home, complete = tmp_path / "home", Path("run/.nudgevec-complete")
    for path in (home, home / "files", home / "files/sub", complete, complete / "files"):
        path.mkdir()
    for path in (home, complete):
        (path / "created-by-nudgevec").touch()
    (home / "files/thesis").write_text("years of work")
    if link == "sub":
        (complete / "files/sub").mkdir()
        (complete / "files/sub/thesis").write_text("nothing")
        Path("run/sub").symlink_to(home / "files")
    else:
        shutil.rmtree(Path("run", link))
        Path("run", link).symlink_to(home / "files" if link.endswith("files") else home)
    before = {path: path.is_file() and path.read_bytes() for path in home.rglob("*")}
    cli.main(["inspect", "run"])
    cli.main(["tune", "data", "--out", "run", "--overwrite"])
    assert {path: path.is_file() and path.read_bytes() for path in home.rglob("*")} == before


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_of_a_run_folder_respect_the_umask(umask):
    previous = os.umask(umask)
    try:
        assert cli.main(["tune", "data", "--out", "run"]) == 0
    finally:
        os.umask(previous)
    assert Path("run").stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.stat().st_mode & 0o777 for path in Path("run").iterdir()} == {0o666 & ~umask}


def test_ctrl_c_leaves_nothing_half_written():
    code = """
import time
from nudgevec import Patch
from nudgevec.cli import main
save = Patch.save
def slowly(self, path):
    save(self, path)
    print("saved", flush=True)
    time.sleep(60)
Patch.save = slowly
raise SystemExit(main(["tune", "data", "--out", "run"]))
"""
    running = subprocess.Popen(
        # Background processes of some shells ignore SIGINT.
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)" + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "saved\n"
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, output = running.communicate()
    assert running.returncode == 130
    assert output == "nudgevec: interrupted\n"
    assert not [name for name in os.listdir() if "run" in name]
