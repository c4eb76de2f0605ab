"""CPU benchmarks, each figure from a process of its own: `make bench`, or `python benchmarks/cpu.py TARGET SECTION...`.

Sections are the functions here that yield lines, all of them by default.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from worker import SOURCES, scratch

HERE = Path(__file__).parent
CASE = {"n": 100_000, "d": 384, "train": 20_000, "validation": 2_000, "touched": 10_000}
COMMON = 2.2
TURNS = 3
SMALL_TURNS = 15
MOST_ON_PLAIN_PATH = 300_000
PAUSE = 2.0


def measure(**spec):
    done = subprocess.run(
        [sys.executable, HERE / "worker.py", json.dumps(spec)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{spec}\n{done.stderr}")
    result = json.loads(done.stdout)
    print(spec, result, file=sys.stderr, flush=True)
    return result


def the_case():
    yield "## One case beside its peers"
    yield ""
    yield f"{CASE}. `plain` is one `(Q @ D.T).max(1)` in float32."
    yield f"Each line of ours is {TURNS} fresh processes, in turn with as many of `plain`, because the machine is not"
    yield f"equally fast all the time; it is left alone for {PAUSE:.0f} s before each of them. Ratios are the middle"
    yield "ones of the pairs, with lowest and highest; after them the middle one of ours over that of all of `plain`."
    yield "The first of three calls in a process finds cold caches and memory, the best of them does not."
    yield "The peer is run before, between and after the engines; its figures are the middle ones. Ratios are to its"
    yield "plain path; for its memory-saving one, documents that answer nothing are put apart beforehand."
    yield ""
    yield "| what | first, x plain | best of 3, x plain | faster than nudge-ft N | than nudge-ft M | MB above inputs |"
    yield "|---|---|---|---|---|---|"
    peers, plains, ours = {(method, spare): [] for spare in (False, True) for method in "NM"}, [], {}

    def run_peers():
        for (method, spare), runs in peers.items():
            runs.append(measure(task="nudge-ft", method=method, spare=spare, **CASE))

    for engine in ("cpu",):
        run_peers()
        for method, metric in itertools.product("NM", ("capped_recall@1", "ndcg@10", "recall@100", "ndcg@100")):
            options = {"engine": engine, "method": method, "metric": metric}
            pairs = [pair(repeat=3, **options) for _ in range(TURNS)]
            plains += [plain for plain, _ in pairs]
            ours[f"{engine}, {method}, {metric}"] = pairs
    run_peers()
    theirs = {path: middle(runs, "first") for path, runs in peers.items()}

    def times_as_fast(first):
        return " | ".join(f"{theirs[method, False] / first:.1f} x" for method in "NM")

    for name, pairs in ours.items():
        yield (
            f"| {name} | {shares(pairs, plains, 'first')} | {shares(pairs, plains, 'best')} "
            f"| {times_as_fast(middle([row for _, row in pairs], 'first'))} "
            f"| {max(row['grown_mb'] for _, row in pairs)} |"
        )
    for (method, spare), runs in peers.items():
        first, best = (middle(runs, key) / middle(plains, key) for key in ("first", "best"))
        yield (
            f"| nudge-ft NUDGE{method}{', memory-saving' if spare else ''} | {first:.1f} | {best:.1f} "
            f"| {times_as_fast(theirs[method, spare])} | {max(run['grown_mb'] for run in runs)} |"
        )
    yield ""


def other_metrics():
    yield "## The same case: other metrics"
    yield ""
    yield f"First calls over `plain`, {TURNS} turns each, as above."
    yield ""
    yield "| metric | NumPy, N | NumPy, M | PyTorch, N | PyTorch, M | most MB above inputs |"
    yield "|---|---|---|---|---|---|"
    metrics = "recall@10", "success@10", "mrr@10", "recall@20", "recall@50"
    runs = {metric: turns_of(metric, CASE) for metric in metrics}
    for metric, cells in zip(runs, table(runs.values()), strict=True):
        yield f"| {metric} {cells}"
    yield ""


def much_in_common():
    yield "## The same case: vectors with much in common"
    yield ""
    yield f"A vector of length {COMMON} is added to all: two documents have a cosine of 0.83, as with some models."
    yield f"NDCG@10, first calls over `plain`, {TURNS} turns each, as above."
    yield ""
    yield "| NumPy, N | NumPy, M | PyTorch, N | PyTorch, M | most MB above inputs |"
    yield "|---|---|---|---|---|"
    yield from table([turns_of("ndcg@10", {**CASE, "common": COMMON})])
    yield ""


def pair(repeat=1, case=CASE, **options):
    """One of `plain` and one of ours. Each finds an idle machine: a virtual one hands memory that nobody uses back to
    its host after a while, and what was freed just before comes much faster than what has to be asked for again."""
    time.sleep(PAUSE)
    plain = measure(task="plain", repeat=repeat, **case)
    time.sleep(PAUSE)
    return plain, measure(task="nudgevec", repeat=repeat, **options, **case)


def turns_of(metric, case):
    """Pairs of `plain` and of ours, for all engines and methods."""
    runs = []
    for engine, method in itertools.product(("cpu",), "NM"):
        options = {"engine": engine, "method": method, "metric": metric}
        runs.append([pair(case=case, **options) for _ in range(TURNS)])
    return runs


def table(lines):
    """First calls over `plain`, and the most memory, for lines of such runs."""
    lines = list(lines)
    plains = [plain for runs in lines for pairs in runs for plain, _ in pairs]
    for runs in lines:
        memory = max(row["grown_mb"] for pairs in runs for _, row in pairs)
        yield f"| {' | '.join(shares(pairs, plains, 'first') for pairs in runs)} | {memory} |"


def middle(rows, key):
    return statistics.median(row[key] for row in rows)


def ratios(pairs, key):
    """The middle one of the pairs, the lowest and the highest."""
    each = sorted(row[key] / plain[key] for plain, row in pairs)
    return f"{statistics.median(each):.2f} ({each[0]:.2f} to {each[-1]:.2f})"


def shares(pairs, plains, key):
    """The same, and the middle one of ours over that of all of `plain`."""
    return f"{ratios(pairs, key)}, {middle([row for _, row in pairs], key) / middle(plains, key):.2f}"


def real_sets():
    yield "## Real data sets"
    yield ""
    yield "MiniLM vectors, validation capped at 1,000 queries. Time over that of `nudge-ft`'s grid on recall@1, for the"
    yield "same method: first call in a fresh process, and best of 5. Labels per query: about 40, 1 and 1."
    yield f"{SMALL_TURNS} processes of each, in turn; ratios are the middle ones of the pairs, with lowest and highest."
    yield ""
    yield "| data set | method | metric | first | best of 5 |"
    yield "|---|---|---|---|---|"
    for name, method in itertools.product(("nfcorpus", "scifact", "metatool"), "NM"):
        jobs = {metric: {"task": "nudgevec", "metric": metric} for metric in ("capped_recall@1", "ndcg@10")}
        jobs["peer"] = {"task": "nudge-ft"}
        runs = {job: [] for job in jobs}
        for _ in range(SMALL_TURNS):
            for job, options in jobs.items():
                runs[job].append(measure(method=method, repeat=5, name=name, **options))
        peers = runs.pop("peer")
        for metric, rows in runs.items():
            pairs = list(zip(peers, rows, strict=True))
            yield f"| {name} | {method} | {metric} | {ratios(pairs, 'first')} | {ratios(pairs, 'best')} |"
    yield ""


def growth():
    yield "## Growth"
    yield ""
    yield "CPU engine, NDCG@10, beside the peer on both of its paths; first calls. Times are relative to ours for the"
    yield "first value of a series; exponents are fitted to all of it, and to the last step. On its plain path, whose"
    yield f"memory grows with the documents, the peer is not run with more than {MOST_ON_PLAIN_PATH:,} of them."
    yield ""
    yield "| method, what grows | nudgevec | MB | nudge-ft | MB | nudge-ft, memory-saving | MB |"
    yield "|---|---|---|---|---|---|---|"
    base = {"n": 100_000, "d": 384, "train": 5_000, "validation": 500, "touched": 4_000}
    half = {**base, "n": 50_000}
    label_heavy = {**base, "n": 20_000, "touched": 15_000}
    series = [
        ("documents", "n", base, (10_000, 30_000, 100_000, 300_000, 1_000_000)),
        ("dimensions", "d", half, (384, 1024, 3072)),
        ("validation queries", "validation", half, (250, 1000, 4000)),
        ("labels per query", "labels", label_heavy, (1, 4, 16, 40)),
    ]
    for (what, key, rest, values), method in itertools.product(series, "NM"):
        ours, plain_path, saving = [], [], []
        for value in values:
            spec = {**rest, key: value, "method": method}
            ours.append(measure(task="nudgevec", **spec))
            plain_path.append(measure(task="nudge-ft", **spec) if spec["n"] <= MOST_ON_PLAIN_PATH else None)
            saving.append(measure(task="nudge-ft", spare=True, **spec))
        for value, *rows in zip(values, ours, plain_path, saving, strict=True):
            cells = " | ".join("| " if row is None else grown(row, ours[0]) for row in rows)
            yield f"| {method}, {value:,} {what} | {cells} |"
        cells = " | | ".join(exponent(values, rows) for rows in (ours, plain_path, saving))
        yield f"| {method}, exponent | {cells} | |"
    yield ""


def grown(row, first):
    """Time relative to that of the first, and memory."""
    return f"{row['first'] / first['first']:.1f} | {row['grown_mb']}"


def exponent(values, rows):
    """The one fitted to all, and that of the last step."""
    values, times = zip(*((value, row["first"]) for value, row in zip(values, rows, strict=True) if row), strict=True)
    last = math.log(times[-1] / times[-2]) / math.log(values[-1] / values[-2])
    return f"{np.polyfit(np.log(values), np.log(times), 1)[0]:.2f} (last step {last:.2f})"


def streaming():
    yield "## From disk"
    yield ""
    yield "1,000,000 x 384 float32, 1,000 validation queries, NUDGE-N, NDCG@10, CPU engine, files in the cache."
    yield ""
    yield "| source | speed of the in-memory array | memory above inputs, MB |"
    yield "|---|---|---|"
    spec = {"n": 1_000_000, "d": 384, "train": 5_000, "validation": 1_000, "touched": 4_000, "repeat": 2}
    rows = {source: measure(task="nudgevec", source=source, **spec) for source in SOURCES}
    for source, row in rows.items():
        yield f"| {source} | {100 * rows['array']['best'] / row['best']:.0f}% | {row['grown_mb']} |"
    big = measure(task="nudgevec", on_disk=True, **{**spec, "n": 10_000_000, "repeat": 1})
    speed = 10 * rows["array"]["best"] / big["first"]
    yield f"| mapped, 10,000,000 documents | {100 * speed:.0f}% per document | {big['grown_mb']} |"
    yield ""


def main(target, *chosen):
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(line.split(":")[1].strip() for line in facts if line.startswith("model name"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "nudge-ft", "nudgevec"))
    lines = [
        "# Benchmarks on the CPU",
        "",
        f"Made by `{' '.join(['python benchmarks/cpu.py TARGET', *chosen]) if chosen else 'make bench'}`. "
        f"{processor}, {len(os.sched_getaffinity(0))} cores; "
        f"Python {platform.python_version()}, {versions}.",
        "",
    ]
    sections = [the_case, other_metrics, much_in_common, growth, streaming]
    if os.environ.get("NUDGEVEC_DATA"):
        sections.append(real_sets)
    unknown = set(chosen) - {section.__name__ for section in sections}
    if unknown:
        names = ", ".join(section.__name__ for section in sections)
        sys.exit(f"No section {', '.join(sorted(unknown))}: there are {names} (real_sets where NUDGEVEC_DATA is set).")
    try:
        for section in sections:
            if chosen and section.__name__ not in chosen:
                continue
            lines += section()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("\n".join(lines) + "\n")
    finally:
        shutil.rmtree(scratch(), ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/benchmarks-cpu.md"), *sys.argv[2:])
