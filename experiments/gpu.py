"""The part that needs a GPU: PTFT and PTFT-L on SciFact and NFCorpus, PTFT's curves over training, and run times.

    NUDGEVEC_DATA=... python experiments/gpu.py --cache FOLDER [--weights MODEL_FOLDER] [--parts ptft,training,time]

leaves JSON files in FOLDER, laid out like the cache of the other experiments; ``everything.py --add FOLDER`` makes
tables of them. Runs whose file is there are not made again, so that the command can be stopped and resumed.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import run_time
import torch
import training
from methods import settings_of
from runs import Options, result

MODEL = "MiniLM"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", help="folder of the pre-trained model; the settings' own by default")
    parser.add_argument("--parts", default="ptft,training,time")
    parser.add_argument("--data", default="scifact,nfcorpus")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--workers", type=int, default=4, help="runs at a time; run times are always taken alone")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    names, seeds = tuple(given.data.split(",")), tuple(int(seed) for seed in given.seeds.split(","))
    chosen = Options(names, (MODEL,), seeds, given.device, given.cache, given.cache / "results", threads=4)
    parts = given.parts.split(",")
    jobs = []
    if "ptft" in parts:
        # The larger set first: what takes longest should not begin last.
        jobs = [
            (chosen, name, method, seed, given.weights) for name in names[::-1] for seed in seeds for method in PTFT
        ]
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_run, jobs))
        if "training" in parts:
            list(pool.map(_watch, [(chosen, name, given.weights) for name in names]))
    if "time" in parts:
        run_time.measure(chosen)


PTFT = ("PTFT", "PTFT-L")


def _run(job: tuple[Options, str, str, int, str | None]) -> None:
    chosen, name, method, seed, weights = job
    torch.set_num_threads(chosen.threads)
    settings = settings_of(method)
    result(chosen, name, MODEL, method, seed, {**settings, "model": weights or settings["model"]})


def _watch(job: tuple[Options, str, str | None]) -> None:
    chosen, name, _ = job
    torch.set_num_threads(chosen.threads)
    training.watched(chosen, name, MODEL, "PTFT")


if __name__ == "__main__":
    main()
