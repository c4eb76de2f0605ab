"""Imports go in one direction, and functions stay small enough to read."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import nudgevec

SOURCE = Path(nudgevec.__file__).parent
# Each may import those before it. Names of modules and packages.
LAYERS = [
    "errors",
    "arrays",
    "registry",
    "progress",
    "files",
    "tensors",
    "http",
    "tables",
    "estimator",
    "metrics",
    "labels",
    "core",
    "corpus",
    "engines",
    "evaluation",
    "patch",
    "search",
    "tuners",
    "compat",
    "stores",
    "text",
    "feedback",
    "runs",
    "demo",
    "cli",
]
MODULES = sorted(SOURCE.rglob("*.py"))
# The public names, and the entry point.
OUTSIDE = (SOURCE / "__init__.py", SOURCE / "__main__.py")


def name_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imported(path, *, everywhere=True):
    """The modules of nudgevec that a module imports; those for type checkers and for later do not count as cycles."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, inner = name.partition(".")
            if package == "nudgevec":
                yield inner if inner in NAMES else inner.rpartition(".")[0]


def test_imports_are_found_in_every_form(tmp_path):
    lines = [
        "import nudgevec",
        "import numpy, nudgevec.core.scan as scan",
        "from nudgevec import __version__, metrics",
        "from nudgevec.core import exact",
        "from nudgevec.core.paths import Paths",
        "from nudgevec_other import x",
        "def later():",
        "    import nudgevec.cli",
    ]
    (tmp_path / "module.py").write_text("\n".join(lines))
    found = ["", "core.scan", "", "metrics", "core.exact", "core.paths"]
    assert list(imported(tmp_path / "module.py", everywhere=False)) == found
    assert list(imported(tmp_path / "module.py")) == [*found, "cli"]


@pytest.mark.parametrize("path", [path for path in MODULES if path not in OUTSIDE], ids=name_of)
def test_modules_import_earlier_layers_only(path):
    name = name_of(path)
    layer = name.partition(".")[0]
    assert layer in LAYERS, f"{name} has no place in the list of layers"
    for target in imported(path):
        if target:
            other = target.partition(".")[0]
            assert LAYERS.index(other) <= LAYERS.index(layer), f"{name} imports {target}, which is a later layer"


def test_no_modules_import_each_other_in_a_circle():
    graph = {name_of(path): set(imported(path, everywhere=False)) - {name_of(path)} for path in MODULES}
    list(TopologicalSorter(graph).static_order())


# Functions that may have more than seven parameters, and the reason.
MORE_PARAMETERS = {"_walk": "a leaf is a slice of the candidates on an interval, and its steps go into two arrays"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_are_small(path):
    """At most 60 lines of code (the documentation apart) and 7 parameters (those by keyword only apart)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            parameters = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
            assert lines <= 60, f"{path.name}: {node.name} has {lines} lines"
            most = 8 if node.name in MORE_PARAMETERS else 7
            assert len(parameters) <= most, f"{path.name}: {node.name} has {len(parameters)} parameters"


FIT = """
import sys
import numpy as np
from nudgevec import NudgeN

random = np.random.default_rng(0)
documents, queries = random.standard_normal((60, 8)), random.standard_normal((40, 8))
labels = random.integers(0, 60, (40, 1)).tolist()
data = documents, (queries[:30], labels[:30]), (queries[30:], labels[30:])
modules = []

def note(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("nudgevec.") and name not in modules:
        modules.append(name)

sys.setprofile(note)
NudgeN(guard=0, engine="cpu").fit(*data)
sys.setprofile(None)
print(*modules)
"""


# The modules of a fit in the order they are first called.
STAGES = [
    "tuners.step",
    "engines",
    "corpus.reader",
    "corpus.arrays",
    "labels",
    "search",
    "core.pull",
    "core.scan",
    "core.paths",
    "core.sweep",
    "core.candidates",
    "core.crossings",
    "core.curve",
    "patch",
]
# Small modules that any of these may use.
HELPERS = {"arrays", "registry", "progress", "tensors", "estimator", "metrics", "core.exact", "engines.cpu"}


def test_fit_can_be_followed():
    """A fit on arrays goes through few modules. Loops are not compiled here, because compiled ones leave no trace."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIT], check=True, capture_output=True, text=True, env=environment
    )
    called = [name.removeprefix("nudgevec.") for name in done.stdout.split()]
    assert [name for name in called if name not in HELPERS] == STAGES
