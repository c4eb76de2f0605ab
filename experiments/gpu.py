"""The part that needs a GPU: PTFT and PTFT-L on SciFact and NFCorpus, PTFT's curves over training, and run times.

    NUDGEVEC_DATA=... python experiments/gpu.py --cache FOLDER [--weights MODEL_FOLDER] [--parts ptft,training,time]

leaves JSON files in FOLDER, laid out like the cache of the other experiments; ``everything.py --add FOLDER`` makes
tables of them. Runs whose file is there are not made again, so that the command can be stopped and resumed.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import run_time
import torch
import training
from methods import settings_of
from runs import Options, result

MODEL = "MiniLM"
PTFT = ("PTFT", "PTFT-L")
Job = tuple[Options, str, str, int, str | None]
"""Options, data set, method, seed, folder of the model."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", help="folder of the pre-trained model; the settings' own by default")
    parser.add_argument("--parts", default="ptft,training,time")
    parser.add_argument("--data", default="scifact,nfcorpus")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=4, help="runs at a time; run times are always taken alone")
    parser.add_argument("--threads", type=int, default=4, help="of PyTorch, in each of them")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    names, seeds = tuple(given.data.split(",")), tuple(int(seed) for seed in given.seeds.split(","))
    chosen = Options(names, (MODEL,), seeds, given.device, given.cache, given.cache, given.threads, ptft=True)
    parts = given.parts.split(",")
    # The larger set first: what takes longest should not begin last.
    jobs = [(chosen, name, each, seed, given.weights) for name in names[::-1] for seed in seeds for each in PTFT]
    watched = [(chosen, name) for name in names]
    if given.workers == 1:
        _in_turn(map, jobs if "ptft" in parts else [], watched if "training" in parts else [])
    else:
        with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as pool:
            _in_turn(pool.map, jobs if "ptft" in parts else [], watched if "training" in parts else [])
    if "time" in parts:
        run_time.measure(chosen)


def _in_turn(each: Any, jobs: list[Job], watched: list[tuple[Options, str]]) -> None:
    list(each(_run, jobs))
    list(each(_watch, watched))


def _run(job: Job) -> None:
    chosen, name, method, seed, weights = job
    torch.set_num_threads(chosen.threads)
    settings = settings_of(method)
    result(chosen, name, MODEL, method, seed, {**settings, "model": weights or settings["model"]})


def _watch(job: tuple[Options, str]) -> None:
    chosen, name = job
    torch.set_num_threads(chosen.threads)
    training.watched(chosen, name, MODEL, "PTFT")


if __name__ == "__main__":
    main()
