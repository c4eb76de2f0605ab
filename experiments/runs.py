"""Runs that are kept: one JSON file per split, data set, model, method, seed and settings, read back where it is there.

A file holds every test query's value of every metric, so that tables, averages and intervals are made from it without
running anything again. What a run depends on besides its name, the settings, stands in the file.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import numpy as np
from methods import settings_of, tune
from methods.protocol import Problem, Settings

from nudgevec import evaluate

METRICS = {"R@1": "capped_recall@1", "R@10": "capped_recall@10", "NDCG@10": "ndcg@10"}
LOCAL = ("scifact", "nfcorpus", "arguana", "metatool")


@dataclass(frozen=True)
class Options:
    """What the command line of every experiment can say."""

    data: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    device: str
    cache: Path
    target: Path
    threads: int
    ptft: bool = False
    """Run PTFT where it was not run yet; the other experiments only show what ``gpu.py`` has left."""
    kept: bool = False
    """Take no times: show those that are kept."""


def options(description: str | None, arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=",".join(LOCAL), help="data sets, with commas")
    parser.add_argument("--models", default="MiniLM,wordllama", help=f"of {', '.join(corpora.MODELS)}")
    parser.add_argument("--seeds", default="0,1,2", help="random splits")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cache", type=Path, default=Path(".cache/experiments"), help="where runs are kept")
    parser.add_argument("--target", type=Path, default=Path("docs/results"), help="where tables and figures go")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of PyTorch")
    parser.add_argument("--kept", action="store_true", help="show the times that are kept, take none")
    given = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(given.threads)
    seeds = tuple(int(seed) for seed in given.seeds.split(","))
    return Options(
        tuple(given.data.split(",")),
        tuple(given.models.split(",")),
        seeds,
        given.device,
        given.cache,
        given.target,
        given.threads,
        kept=given.kept,
    )


@dataclass(frozen=True)
class Split:
    """Numbers of queries to learn from, to choose by, and to test on; there may be several tests."""

    train: np.ndarray
    validation: np.ndarray
    tests: dict[str, np.ndarray]


def random_split(data: corpora.DataSet, seed: int) -> Split:
    """The paper's 0.7 / 0.1 / 0.2."""
    train, validation, test = data.deal(seed)
    return Split(train, validation, {"test": test})


@functools.lru_cache(maxsize=2)
def data_set(name: str, model: str) -> corpora.DataSet:
    return corpora.load(name, model).unit()


@functools.lru_cache(maxsize=8)
def problem(name: str, model: str, seed: int, device: str, split: Any = random_split) -> tuple[Problem, Split]:
    data = data_set(name, model)
    parts = split(data, seed)
    return Problem(data, parts.train, parts.validation, device), parts


def result(
    chosen: Options,
    name: str,
    model: str,
    method: str,
    seed: int,
    settings: Settings | None = None,
    split: Any = random_split,
) -> dict[str, Any] | None:
    """The result of one run: from its file, or made now and kept.

    None for PTFT where it was not run.
    """
    settings = settings_of(method) if settings is None else settings
    path = where(chosen.cache, name, model, method, seed, settings, split)
    if path.is_file():
        return json.loads(path.read_text())
    if method.startswith("PTFT") and not chosen.ptft:
        return None
    task, parts = problem(name, model, seed, chosen.device, split)
    began = time.perf_counter()
    tuned = tune(method, task, settings)
    seconds = time.perf_counter() - began
    tests = {}
    for test, numbers in parts.tests.items():
        scores = evaluate(
            tuned.documents,
            tuned.queries(numbers),
            task.labels(numbers),
            list(METRICS.values()),
            similarity=tuned.similarity,
            resamples=1,
        )
        values = {short: scores[metric].per_query.tolist() for short, metric in METRICS.items()}
        tests[test] = {"query": numbers[scores.query].tolist(), **values}
    kept = {
        "data": name,
        "model": model,
        "method": method,
        "seed": seed,
        "settings": settings,
        "device": chosen.device,
        "seconds": seconds,
        "validation": tuned.validation,
        "facts": tuned.facts,
        "tests": tests,
    }
    keep(path, kept)
    print(f"{split.__name__} {name} {model} {method} seed {seed}: {seconds:.1f} s", flush=True)
    return json.loads(path.read_text())


def where(cache: Path, name: str, model: str, method: str, seed: int, settings: Settings, split: Any) -> Path:
    told = {key: value for key, value in settings.items() if key != "model"}
    mark = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]
    return cache / split.__name__ / name / model / f"{method.replace(' ', '-')}-{seed}-{mark}.json"


def keep(path: Path, value: Any) -> None:
    """Write a JSON file in one step; NaN, which JSON does not have, becomes null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(_plain(value)))
    part.replace(path)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value
