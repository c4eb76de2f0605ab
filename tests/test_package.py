"""The package as its users meet it: names, start-up time, the command line, the demo."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import subprocess
import sys
from functools import cached_property
from types import FunctionType

import pytest

import nudgevec
from nudgevec import cli, demo, errors


def test_public_names():
    assert sorted(nudgevec.__all__) == [
        "ArrayCorpus",
        "BeforeAfter",
        "Choice",
        "Comparison",
        "Corpus",
        "Curve",
        "Engine",
        "Evaluation",
        "Event",
        "LabelLog",
        "Nudge",
        "NudgeM",
        "NudgeMN",
        "NudgeN",
        "NudgeNU",
        "ParquetCorpus",
        "Patch",
        "PatchedCorpus",
        "Prepared",
        "QueryCurves",
        "QuerySet",
        "Run",
        "SavedRun",
        "Score",
        "Status",
        "Store",
        "Tuner",
        "compare",
        "evaluate",
        "open_store",
        "tune",
    ]
    assert sorted(errors.__all__) == sorted(
        name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)
    )


def documented():
    """Yield (name, object) of every public function, class, method and property of this package."""
    for name in nudgevec.__all__:
        thing = getattr(nudgevec, name)
        yield name, thing
        for attribute in dir(thing) if isinstance(thing, type) else ():
            member = inspect.getattr_static(thing, attribute)
            function = getattr(member, "fget", None) or getattr(member, "func", None) or member
            is_callable = isinstance(member, (property, cached_property, classmethod, staticmethod, FunctionType))
            if is_callable and not attribute.startswith("_") and function.__module__.startswith("nudgevec."):
                yield f"{name}.{attribute}", getattr(thing, attribute)


DOCUMENTED = dict(documented())


def section(documentation, *titles):
    """Return the first of some sections of a docstring, or None."""
    for title in titles:
        found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n---|\Z)", documentation, re.DOTALL | re.MULTILINE)
        if found:
            return found[1]
    return None


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_are_documented(name):
    """A summary; all parameters; and what is returned, if anything is."""
    thing = DOCUMENTED[name]
    documentation = inspect.getdoc(thing) or ""
    assert documentation.split("\n\n")[0].rstrip().endswith((".", ":")), "no summary"
    if isinstance(thing, (property, cached_property)) or getattr(thing, "_is_protocol", False):
        return
    signature = inspect.signature(thing)
    titles = ("Parameters", "Attributes") if isinstance(thing, type) else ("Parameters",)
    lines = [line for line in (section(documentation, *titles) or "").splitlines() if line[:1].strip()]
    names = {name.strip("*") for line in lines for name in line.partition(" : ")[0].split(", ")}
    assert set(signature.parameters) - {"self"} <= names
    if not isinstance(thing, type) and signature.return_annotation not in (None, "None"):
        assert section(documentation, "Returns", "Yields"), "no section about what is returned"


def modules_loaded_by(code):
    """Return the top-level modules that some code imports in a new process, without those of Python itself."""
    script = f"""
import sys
before = set(sys.modules)
try:
    {code}
except SystemExit:
    pass
print("loaded", *sorted(set(sys.modules) - before))
"""
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    loaded = output.splitlines()[-1].split()[1:]
    return {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names


def test_import_loads_nothing_else():
    """Libraries are imported when they are used, so that the import takes milliseconds (docs/benchmarks.md)."""
    assert modules_loaded_by("import nudgevec") == {"nudgevec"}


def test_help_loads_nothing_else():
    assert modules_loaded_by("from nudgevec import cli; cli.main(['--help'])") == {"nudgevec"}


def test_without_arguments_the_help_is_shown(capsys):
    assert cli.main([]) == 0
    assert "usage: nudgevec" in capsys.readouterr().out


def test_a_terminal_without_emoji():
    done = subprocess.run(
        [sys.executable, "-m", "nudgevec", "demo", "--query", "Espresso"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"hot beverage" in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"nudgevec {nudgevec.__version__}\n"


def test_demo_prints_a_gain_on_unseen_keywords():
    out = io.StringIO()
    demo.run([], out, prompt=io.StringIO("rocket\n\n"))
    text = out.getvalue()
    before, after, change, low = map(float, re.search(r"ndcg@10 +(\S+) +(\S+) +(\S+) +(\S+) to", text).groups())
    assert 28 < before < after
    assert change == pytest.approx(after - before, abs=0.11)
    assert low > 0
    assert text.count("(test keyword)") == 3
    assert "“rocket”" in text
    assert re.search(r"\* ?.* astronaut", text)


def test_demo_splits_never_share_a_query():
    search = demo.load()
    parts = search.train, search.validation, search.test
    splits = [{search.queries[number].tobytes() for number in part} for part in parts]
    assert not splits[0] & splits[1]
    assert not (splits[0] | splits[1]) & splits[2]
    assert sum(map(len, splits)) > 4400


def test_demo_as_json(capsys):
    assert cli.main(["demo", "--json", "--query", "espresso"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["test"]["ndcg@10"]["change"] > 0.01
    assert list(facts["searches"]) == ["espresso"]


def test_demo_command_shows_a_query(capsys):
    assert cli.main(["demo", "--query", "espresso", "--query", "\u4f60"]) == 0
    text = capsys.readouterr().out
    assert "“espresso”" in text
    assert "hot beverage" in text


def test_a_missing_extra_is_one_clear_line(monkeypatch, capsys):
    from nudgevec.text.embedders import static

    static._model.cache_clear()
    monkeypatch.setitem(sys.modules, "wordllama", None)
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "nudgevec: the static embedder needs an optional dependency: pip install 'nudgevec[static]'\n"
    )
