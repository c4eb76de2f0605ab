"""All seven experiments, one after the other.

    NUDGEVEC_DATA=... python experiments/everything.py [--add FOLDER] [--kept] [options that all of them have]

``--add`` first copies the runs in FOLDER, made by gpu.py on another machine, to the cache.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from runs import options

COMMANDS = ("main_tables", "run_time", "shift", "ablation", "iterative_closed", "training", "gamma")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--add", type=Path, action="append", default=[])
    added, rest = parser.parse_known_args(arguments)
    chosen = options(__doc__, rest)
    for folder in added.add:
        add(folder, chosen.cache)
    for command in COMMANDS:
        print(f"{command} ...", flush=True)
        importlib.import_module(command).main(rest)


def add(folder: Path, cache: Path) -> None:
    """Bring runs to the cache. Those that are there already stay; run times of another machine are replaced."""
    for path in folder.rglob("*.json"):
        target = cache / path.relative_to(folder)
        if not target.exists() or path.parent.name == "run_time":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


if __name__ == "__main__":
    main()
