"""Every method the paper compares, by name, behind one function: ``tune(method, problem, settings)``.

A method is a function from a problem and one set of settings to a ``Tuned``. Settings come from ``config/METHOD.toml``;
where that file has a ``grid``, every combination is tried and the best on the validation queries is kept.
"""

from __future__ import annotations

import importlib
import itertools
import time
import tomllib
from pathlib import Path
from typing import Any

from methods.protocol import Problem, Settings, Tuned

NONE = "No fine-tuning"
CONFIG = Path(__file__).parent.parent / "config"
# Method -> (file of settings, module, function); the modules are imported when they are needed.
METHODS = {
    "NUDGE-N": ("nudge-n", "closed_form", "nudge_n"),
    "NUDGE-M": ("nudge-m", "closed_form", "nudge_m"),
    "NUDGE-M+N": ("nudge-mn", "closed_form", "nudge_mn"),
    "NUDGE-NU": ("nudge-nu", "closed_form", "nudge_nu"),
    "NUDGE-IM": ("nudge-im", "iterative", "nudge_im"),
    "NUDGE-IN": ("nudge-in", "iterative", "nudge_in"),
    "NUDGE-IM+R": ("nudge-imr", "iterative", "nudge_imr"),
    "Adapter": ("adapter", "adapter", "adapter"),
    "Adapter-L": ("adapter-l", "adapter", "adapter"),
    "PTFT": ("ptft", "ptft", "ptft"),
    "PTFT-L": ("ptft-l", "ptft", "ptft"),
    NONE: ("none", "closed_form", "none"),
}


def settings_of(method: str) -> Settings:
    """The settings of a method as its file has them."""
    return tomllib.loads((CONFIG / f"{METHODS[method][0]}.toml").read_text())


def tune(method: str, problem: Problem, settings: Settings | None = None) -> Tuned:
    """Run a method, over its grid where it has one. ``facts`` tell what was chosen and how long it took."""
    settings = settings_of(method) if settings is None else settings
    _, module, function = METHODS[method]
    run = getattr(importlib.import_module(f"methods.{module}"), function)
    best: Tuned | None = None
    trials: list[dict[str, Any]] = []
    for single in combinations(settings):
        began = time.perf_counter()
        tuned = run(problem, single)
        trials.append({"settings": single, "validation": tuned.validation, "seconds": time.perf_counter() - began})
        if best is None or tuned.validation > best.validation:
            best, best.facts["chosen"] = tuned, trials[-1]
    assert best is not None
    best.facts["trials"] = trials
    return best


def combinations(settings: Settings) -> list[Settings]:
    """One plain set of settings per point of the grid."""
    plain = {key: value for key, value in settings.items() if key != "grid"}
    grid = settings.get("grid", {})
    return [{**plain, **dict(zip(grid, point, strict=True))} for point in itertools.product(*grid.values())]
