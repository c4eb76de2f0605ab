"""All methods of the paper, and Nudge, by name, behind one function: ``tune(method, problem, settings)``.

Settings come from ``config/METHOD.toml``, or from the folder that ``NUDGEVEC_CONFIG`` names. If they have a table
``grid``, every combination is tried, and the best one on the validation queries is kept.
"""

from __future__ import annotations

import importlib
import itertools
import os
import time
import tomllib
from pathlib import Path
from typing import Any

from methods.protocol import Problem, Settings, Tuned

NONE = "No fine-tuning"
CONFIG = Path(__file__).parent.parent / "config"
# Method -> settings file, module, function. Modules are imported on first use.
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
    # Of this repository.
    "Nudge": ("nudge", "mapped", "nudge"),
    "Nudge, map of queries": ("nudge-queries", "mapped", "nudge"),
    "Map alone": ("nudge", "mapped", "map_alone"),
}


def settings_of(method: str) -> Settings:
    """Read the settings file of a method."""
    folder = Path(os.environ.get("NUDGEVEC_CONFIG", CONFIG))
    return tomllib.loads((folder / f"{METHODS[method][0]}.toml").read_text())


def tune(method: str, problem: Problem, settings: Settings | None = None) -> Tuned:
    """Run a method for every point of its grid and return the best result on the validation queries.

    ``Tuned.facts`` lists the settings, validation metric and seconds of all trials and of the chosen one.
    """
    settings = settings_of(method) if settings is None else settings
    _, module, function = METHODS[method]
    run = getattr(importlib.import_module(f"methods.{module}"), function)
    best: Tuned | None = None
    trials: list[dict[str, Any]] = []
    for point in grid_points(settings):
        start = time.perf_counter()
        tuned = run(problem, point)
        trials.append({"settings": point, "validation": tuned.validation, "seconds": time.perf_counter() - start})
        if best is None or tuned.validation > best.validation:
            best, best.facts["chosen"] = tuned, trials[-1]
    assert best is not None
    best.facts["trials"] = trials
    return best


def grid_points(settings: Settings) -> list[Settings]:
    """Expand the grid: one dictionary of settings per combination."""
    fixed = {key: value for key, value in settings.items() if key != "grid"}
    grid = settings.get("grid", {})
    return [{**fixed, **dict(zip(grid, point, strict=True))} for point in itertools.product(*grid.values())]
