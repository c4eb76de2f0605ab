"""Run all seven experiments of the paper.

    NUDGEVEC_DATA=... python experiments/everything.py [--add FOLDER] [--kept] [common options]

``--add`` first copies the runs in FOLDER, which ``gpu.py`` created on another machine, to the cache.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from runs import parse_options

COMMANDS = ("main_tables", "run_time", "shift", "ablation", "iterative_closed", "training", "gamma")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--add", type=Path, action="append", default=[])
    parsed, common = parser.parse_known_args(arguments)
    options = parse_options(__doc__, common)
    for folder in parsed.add:
        add_runs(folder, options.cache)
    for command in COMMANDS:
        print(f"{command} ...", flush=True)
        importlib.import_module(command).main(common)


def add_runs(folder: Path, cache: Path) -> None:
    """Copy runs to the cache. Cached runs are not replaced; cached run times are."""
    for path in folder.rglob("*.json"):
        target = cache / path.relative_to(folder)
        if not target.exists() or path.parent.name == "run_time":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


if __name__ == "__main__":
    main()
