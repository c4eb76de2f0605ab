"""Cached runs and the common command line.

A run is one method on one split of one data set. Its result is a JSON file with the settings and the value of every
metric for every test query, so that tables and intervals can be redrawn without running anything.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import numpy as np
from methods import settings_of, tune
from methods.protocol import Problem, Settings

from nudgevec import evaluate

METRICS = {"R@1": "capped_recall@1", "R@10": "capped_recall@10", "NDCG@10": "ndcg@10"}
DEFAULT_DATA = ("scifact", "nfcorpus", "arguana", "metatool")


@dataclass(frozen=True)
class Options:
    """Options common to all experiments."""

    data: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str
    cache: Path
    target: Path
    threads: int
    run_ptft: bool = False
    """Run PTFT if it is not in the cache. Only ``gpu.py`` does; the other experiments show cached PTFT runs."""
    cached_times: bool = False
    """Show cached run times instead of measuring them (``--kept``)."""


def parse_options(
    description: str | None,
    arguments: Sequence[str] | None = None,
    *,
    default_models: str = "MiniLM,wordllama",
    default_seeds: str = "0,1,2",
) -> Options:
    """Parse the command line of an experiment and set the number of PyTorch threads."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(DEFAULT_DATA), help="data sets, separated by commas")
    parser.add_argument("--models", default=default_models, help=f"models, from {', '.join(corpora.MODELS)}")
    parser.add_argument("--seeds", default=default_seeds, help="seeds of the random splits")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cache", type=Path, default=Path(".cache/experiments"), help="folder of cached runs")
    parser.add_argument("--target", type=Path, default=Path("docs/results"), help="folder for tables and figures")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="number of PyTorch threads")
    parser.add_argument("--kept", action="store_true", help="show cached run times instead of measuring them")
    parsed = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(parsed.threads)
    return Options(
        tuple(parsed.data.split(",")),
        tuple(parsed.models.split(",")),
        tuple(int(seed) for seed in parsed.seeds.split(",")),
        parsed.device,
        parsed.cache,
        parsed.target,
        parsed.threads,
        cached_times=parsed.kept,
    )


@dataclass(frozen=True)
class Split:
    """Query rows of the training set, the validation set and one or more test sets."""

    train: np.ndarray
    validation: np.ndarray
    tests: dict[str, np.ndarray]


Splitter = Callable[[corpora.DataSet, int], Split]
"""Function from a data set and a seed to a split. Its name is part of the path of a cached run."""


def random_split(data: corpora.DataSet, seed: int) -> Split:
    """Split the queries 0.7 / 0.1 / 0.2, as in the paper."""
    train, validation, test = data.split_rows(seed)
    return Split(train, validation, {"test": test})


@functools.lru_cache(maxsize=2)
def load_normalized(name: str, model: str) -> corpora.DataSet:
    """Load a data set with unit vectors."""
    return corpora.load(name, model).normalized()


@functools.lru_cache(maxsize=8)
def make_problem(
    name: str, model: str, seed: int, device: str, splitter: Splitter = random_split
) -> tuple[Problem, Split]:
    """Load and split a data set; the problem has no access to the test queries."""
    data = load_normalized(name, model)
    split = splitter(data, seed)
    return Problem(data, split.train, split.validation, device), split


def load_or_run(
    options: Options,
    name: str,
    model: str,
    method: str,
    seed: int,
    settings: Settings | None = None,
    splitter: Splitter = random_split,
) -> dict[str, Any] | None:
    """Return the result of a run from the cache, or run the method and cache the result.

    Returns None if the method is PTFT, the run is not cached and ``options.run_ptft`` is false.
    """
    settings = settings_of(method) if settings is None else settings
    path = run_path(options.cache, name, model, method, seed, settings, splitter)
    if path.is_file():
        return json.loads(path.read_text())
    if method.startswith("PTFT") and not options.run_ptft:
        return None
    problem, split = make_problem(name, model, seed, options.device, splitter)
    start = time.perf_counter()
    tuned = tune(method, problem, settings)
    seconds = time.perf_counter() - start
    tests = {}
    for test, query_rows in split.tests.items():
        evaluation = evaluate(
            tuned.documents,
            tuned.queries(query_rows),
            problem.labels(query_rows),
            list(METRICS.values()),
            similarity=tuned.similarity,
            resamples=1,
        )
        values = {short: evaluation[metric].per_query.tolist() for short, metric in METRICS.items()}
        tests[test] = {"query": query_rows[evaluation.query].tolist(), **values}
    run = {
        "data": name,
        "model": model,
        "method": method,
        "seed": seed,
        "settings": settings,
        "device": options.device,
        "seconds": seconds,
        "validation": tuned.validation,
        "facts": tuned.facts,
        "tests": tests,
    }
    write_json(path, run)
    print(f"{splitter.__name__} {name} {model} {method} seed {seed}: {seconds:.1f} s", flush=True)
    return json.loads(path.read_text())


def run_path(
    cache: Path, name: str, model: str, method: str, seed: int, settings: Settings, splitter: Splitter
) -> Path:
    """Return the path of a cached run; it contains a hash of all settings except the location of the model."""
    hashed = {key: value for key, value in settings.items() if key != "model"}
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:8]
    return cache / splitter.__name__ / name / model / f"{method.replace(' ', '-')}-{seed}-{digest}.json"


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, with null in place of NaN."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(_without_nan(value)))
    partial.replace(path)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
