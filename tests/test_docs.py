"""The examples of the README, run as they are printed there."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import collections_on_disk as disk
from nudgevec import Patch, demo, open_store
from nudgevec.text.embedders import static
from real_stores import Lance, Postgres

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*.md")]


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in PAGES))
def test_links_lead_somewhere(page):
    """Links to files and to sections."""
    path = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        name, _, section = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), f"{page} links to {target}"
        if section:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            sections = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert section in sections, f"{page} links to {target}"


def shown(marker):
    """Return the text blocks after a marker in the README."""
    return re.findall(r"```\w+\n(.*?)```", README.split(f"<!-- {marker} -->")[1], re.DOTALL)


def test_the_example_prints_what_the_readme_says():
    code, output = shown("example")[:2]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_the_demo_prints_what_the_readme_says():
    out = io.StringIO()
    demo.run([], out)

    def untimed(text):
        return re.sub(r"in \d+\.\d\d s", "in ... s", text.strip())

    assert untimed(out.getvalue()) == untimed(shown("demo")[0])


def ran(script, folder):
    """Return the output of a shell for a block of the README."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NUDGEVEC_CACHE": str(folder / "cache")}
    done = subprocess.run(["bash", "-e"], input=script, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def clicks(folder, named):
    """Write a file of clicks, and return the texts of the documents."""
    corpus, queries, qrels = disk.texts()
    with open(folder / "clicks.jsonl", "w") as file:
        for query, grades in qrels.items():
            document = named(next(iter(grades)))
            for words in (queries[query], f"find {queries[query]}", f"{queries[query]} please"):
                file.write(json.dumps({"query": words, "document": document, "signal": "click"}) + "\n")
    return corpus


def test_the_road_from_texts_and_clicks_to_a_tuned_table(tmp_path):
    corpus = clicks(tmp_path, "{}.txt".format)
    (tmp_path / "texts").mkdir()
    for key, text in corpus.items():
        (tmp_path / "texts" / f"{key}.txt").write_text(text)
    script = shown("texts")[0]
    assert script.count("nudgevec ") == 5
    output = ran(script, tmp_path)
    assert f"{len(corpus)} documents" in output
    patch = Patch.load(tmp_path / "run" / "patch.safetensors")
    assert len(patch) > 5
    with open_store(f"lancedb:{tmp_path}/db#docs") as store:
        assert store.verify(patch).applied == len(patch)
        store.revert(patch)
        original = store.take(list(store.ids))
    assert (original == static.embed([corpus[key.removesuffix(".txt")] for key in store.ids])).all()


@pytest.mark.parametrize("kind", [Lance, Postgres])
def test_use_it_on_your_vector_store(tmp_path, kind):
    corpus = clicks(tmp_path, str)
    store = kind(tmp_path)
    store.fill(static.embed(list(corpus.values())), list(corpus))
    before = store.everything()
    script = re.sub(r"STORE=\S+", f"STORE='{store.url}'", shown("store")[0])
    script = script.replace("$STORE", '"$STORE"').replace("st:all-MiniLM-L6-v2", "static")
    output = ran(script, tmp_path)
    assert "rows have their new vectors" in output
    assert "reverted: " in output
    assert store.everything() == before
