"""The GPU part of the experiments: PTFT and PTFT-L, accuracy over the training of PTFT, and run times.

    NUDGEVEC_DATA=... python experiments/gpu.py --cache FOLDER [--weights MODEL_FOLDER] [--parts ptft,training,time]

Writes JSON files to FOLDER in the layout of the run cache; ``everything.py --add FOLDER`` adds them to the tables. Runs
that are already in FOLDER are skipped, so that the command can be interrupted and resumed.
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
from runs import Options, load_or_run

MODEL = "MiniLM"
PTFT = ("PTFT", "PTFT-L")
Job = tuple[Options, str, str, int, str | None]
"""Options, data set, method, seed, folder of the model."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder of the results")
    parser.add_argument("--weights", help="folder of the pre-trained model (default: the model in the settings)")
    parser.add_argument("--parts", default="ptft,training,time", help="parts to run, separated by commas")
    parser.add_argument("--data", default="scifact,nfcorpus", help="data sets, separated by commas")
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the random splits")
    parser.add_argument("--workers", type=int, default=4, help="number of parallel runs; run times are measured alone")
    parser.add_argument("--threads", type=int, default=4, help="number of PyTorch threads per worker")
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parsed = parser.parse_args(arguments)
    names, seeds = tuple(parsed.data.split(",")), tuple(int(seed) for seed in parsed.seeds.split(","))
    cache, parts = parsed.cache, parsed.parts.split(",")
    options = Options(names, (MODEL,), seeds, parsed.device, cache, cache, parsed.threads, run_ptft=True)
    # The default order ends with the slowest data set; start it first.
    jobs = [(options, name, method, seed, parsed.weights) for name in names[::-1] for seed in seeds for method in PTFT]
    jobs = jobs if "ptft" in parts else []
    watch_jobs = [(options, name) for name in names] if "training" in parts else []
    if parsed.workers == 1:
        _run_all(map, jobs, watch_jobs)
    else:
        with ProcessPoolExecutor(parsed.workers, multiprocessing.get_context("spawn")) as pool:
            _run_all(pool.map, jobs, watch_jobs)
    if "time" in parts:
        run_time.measure(options)


def _run_all(map_function: Any, jobs: list[Job], watch_jobs: list[tuple[Options, str]]) -> None:
    """Run all jobs; the watched runs use settings chosen by the first ones."""
    list(map_function(_run, jobs))
    list(map_function(_run_watched, watch_jobs))


def _run(job: Job) -> None:
    options, name, method, seed, weights = job
    torch.set_num_threads(options.threads)
    settings = settings_of(method)
    load_or_run(options, name, MODEL, method, seed, {**settings, "model": weights or settings["model"]})


def _run_watched(job: tuple[Options, str]) -> None:
    options, name = job
    torch.set_num_threads(options.threads)
    training.watched_run(options, name, MODEL, "PTFT")


if __name__ == "__main__":
    main()
