"""All seven experiments, one after the other.

    NUDGEVEC_DATA=... python experiments/everything.py [--add FOLDER] [options that all of them have]

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
        shutil.copytree(folder, chosen.cache, dirs_exist_ok=True)
    for command in COMMANDS:
        print(f"{command} ...", flush=True)
        importlib.import_module(command).main(rest)


if __name__ == "__main__":
    main()
