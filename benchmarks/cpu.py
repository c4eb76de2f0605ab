"""CPU benchmarks: `make bench`, or `python benchmarks/cpu.py TARGET SECTION...` for some of the sections.

Every figure comes from a process of its own (`worker.py`). Sections are the functions here that yield lines.
"""

from __future__ import annotations

import itertools
import json
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
CASE = {"n": 100_000, "d": 384, "train": 20_000, "validation": 2_000, "labelled": 10_000}
# A vector of this length is added to all vectors of the anisotropic case: two documents have a cosine of 0.83.
COMMON = 2.2
PROCESSES = 3
METRICS = "recall@1", "ndcg@10", "recall@100", "ndcg@100"


def measure(**spec):
    done = subprocess.run(
        [sys.executable, HERE / "worker.py", json.dumps(spec)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{spec}\n{done.stderr}")
    result = json.loads(done.stdout)
    print(spec, result, file=sys.stderr, flush=True)
    return result


def pairs(count=PROCESSES, **spec):
    """Runs of the plain pass and of nudgevec in turn, because a shared machine is not equally fast all the time."""
    options = {name: spec.pop(name) for name in ("method", "metric") if name in spec}
    return [
        (measure(task="plain", repeat=3, **spec), measure(task="nudgevec", repeat=3, **options, **spec))
        for _ in range(count)
    ]


def ratio(runs, key="best"):
    """The median of the ratios, with the lowest and the highest."""
    ratios = sorted(ours[key] / other[key] for other, ours in runs)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def the_case():
    yield "## 100,000 documents"
    yield ""
    yield f"`{CASE}`. The plain pass is `(Q @ D.T).max(1)` in float32. Warm: best of 3 calls in a process; cold:"
    yield f"the first call. Medians of {PROCESSES} pairs of processes, with the lowest and highest. `nudge-ft` 0.1.2 is"
    yield "run once per method, on its plain path."
    yield ""
    yield "| method, metric | warm / plain pass | cold / plain pass | faster than nudge-ft N | than nudge-ft M | MB |"
    yield "|---|---|---|---|---|---|"
    peers = {method: measure(task="nudge-ft", method=method, **CASE)["first"] for method in "NM"}
    for method, metric in itertools.product("NM", METRICS):
        runs = pairs(method=method, metric=metric, **CASE)
        warm = statistics.median(ours["best"] for _, ours in runs)
        faster = " | ".join(f"{peers[peer] / warm:.1f} x" for peer in "NM")
        memory = max(ours["grown_mb"] for _, ours in runs)
        yield f"| {method}, {metric} | {ratio(runs)} | {ratio(runs, 'first')} | {faster} | {memory} |"
    yield ""


def anisotropic():
    yield "## 100,000 documents, anisotropic"
    yield ""
    yield f"The same with a vector of length {COMMON} added to all: two documents have a cosine of 0.83."
    yield ""
    yield "| method, metric | warm / plain pass | MB |"
    yield "|---|---|---|"
    for method in "NM":
        runs = pairs(method=method, metric="ndcg@10", common=COMMON, **CASE)
        yield f"| {method}, ndcg@10 | {ratio(runs)} | {max(ours['grown_mb'] for _, ours in runs)} |"
    yield ""


def real_sets():
    yield "## Real data sets"
    yield ""
    yield "MiniLM vectors, at most 1,000 validation queries. Time of nudgevec over that of `nudge-ft` (its grid, for"
    yield f"recall@1) for the same method; best of 5 calls, medians of {PROCESSES} pairs of processes."
    yield ""
    yield "| data set | method | capped_recall@1 | ndcg@10 |"
    yield "|---|---|---|---|"
    for name, method in itertools.product(("nfcorpus", "scifact", "metatool"), "NM"):
        runs = {"capped_recall@1": [], "ndcg@10": []}
        for _ in range(PROCESSES):
            peer = measure(task="nudge-ft", method=method, repeat=5, name=name)
            for metric, measured in runs.items():
                ours = measure(task="nudgevec", method=method, metric=metric, repeat=5, name=name)
                measured.append((peer, ours))
        yield f"| {name} | {method} | {' | '.join(ratio(measured) for measured in runs.values())} |"
    yield ""


def growth():
    yield "## Growth"
    yield ""
    yield "NDCG@10, best of 2 calls, relative to the first value of a series; exponents are fitted to the whole series."
    yield ""
    base = {"n": 100_000, "d": 384, "train": 5_000, "validation": 500, "labelled": 4_000}
    half = {**base, "n": 50_000}
    label_heavy = {**base, "n": 20_000, "labelled": 15_000}
    series = [
        ("documents", "n", base, (10_000, 30_000, 100_000, 300_000, 1_000_000)),
        ("dimensions", "d", half, (384, 1024, 3072)),
        ("validation queries", "validation", half, (250, 1000, 4000)),
        ("labels per query", "labels", label_heavy, (1, 4, 16, 40)),
    ]
    yield "| what grows | method | values | time | MB | exponent |"
    yield "|---|---|---|---|---|---|"
    for (what, key, rest, values), method in itertools.product(series, "NM"):
        runs = [measure(task="nudgevec", method=method, repeat=2, **{**rest, key: value}) for value in values]
        times = [run["best"] for run in runs]
        exponent = np.polyfit(np.log(values), np.log(times), 1)[0]
        relative = ", ".join(f"{time / times[0]:.1f}" for time in times)
        memory = ", ".join(str(run["grown_mb"]) for run in runs)
        shown = "; ".join(f"{value:,}" for value in values)
        yield f"| {what} | {method} | {shown} | {relative} | {memory} | {exponent:.2f} |"
    yield ""


def from_disk():
    yield "## From disk"
    yield ""
    yield "1,000,000 x 384 float32, 1,000 validation queries, NUDGE-N, NDCG@10; files are in the cache of the system."
    yield ""
    yield "| source | time / array in memory | MB |"
    yield "|---|---|---|"
    spec = {"n": 1_000_000, "d": 384, "train": 5_000, "validation": 1_000, "labelled": 4_000, "repeat": 2}
    runs = {source: measure(task="nudgevec", source=source, **spec) for source in SOURCES}
    for source, run in runs.items():
        yield f"| {source} | {run['best'] / runs['array']['best']:.2f} | {run['grown_mb']} |"
    yield ""


def start_up():
    yield "## Start-up"
    yield ""
    yield "Seconds of a new Python process, best of 5: median of what a process costs that does nothing is subtracted."
    yield ""
    yield "| what | seconds |"
    yield "|---|---|"
    fit = (
        "import numpy as np; from nudgevec import NudgeN; r = np.random.default_rng(0); d = r.standard_normal((50, 8), "
        "np.float32); NudgeN(guard=0).fit(d, (d[:9], [[1]] * 9), (d[9:12], [[1]] * 3))"
    )
    nothing, numpy = start("pass"), start("import numpy")
    yield f"| `import numpy` | {numpy - nothing:.2f} |"
    yield f"| `import nudgevec` | {start('import nudgevec') - nothing:.2f} |"
    yield f"| NumPy, nudgevec and a small fit with compiled loops on disk | {start(fit) - nothing:.2f} |"
    empty = scratch() / "numba"
    shutil.rmtree(empty, ignore_errors=True)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", fit], check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(empty)})
    yield f"| the first fit after installation, which compiles | {time.perf_counter() - began - nothing:.1f} |"
    yield ""


def start(code):
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return min(times)


def main(target, *names):
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(line.split(":")[1].strip() for line in facts if line.startswith("model name"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "nudge-ft", "nudgevec"))
    command = f"python benchmarks/cpu.py TARGET {' '.join(names)}" if names else "make bench"
    lines = [
        "# Benchmarks on the CPU",
        "",
        f"Made by `{command}`. {processor}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}, "
        f"{versions}. MB: growth of the process during the first call.",
        "",
    ]
    sections = {section.__name__: section for section in (the_case, anisotropic, growth, from_disk, start_up)}
    if os.environ.get("NUDGEVEC_DATA"):
        sections["real_sets"] = real_sets
    unknown = set(names) - set(sections)
    if unknown:
        sys.exit(
            f"no section {', '.join(sorted(unknown))}; there are {', '.join(sections)} (real_sets if NUDGEVEC_DATA)"
        )
    # No measurement is to include compiling.
    measure(task="nudgevec", **{**CASE, "n": 20_000})
    try:
        for name, section in sections.items():
            if not names or name in names:
                lines += section()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("\n".join(lines) + "\n")
    finally:
        shutil.rmtree(scratch(), ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/benchmarks-cpu.md"), *sys.argv[2:])
