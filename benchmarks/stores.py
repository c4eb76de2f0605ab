"""Times to read, patch and revert vector stores.

    python benchmarks/stores.py [docs/results/benchmarks-stores.md]

The stores are those of the tests, in temporary folders. Reading a LanceDB table is compared with LanceDB alone.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import real_stores
from nudgevec import NudgeN, open_store

DIM = 384
ROWS = 20_000
STREAMED = 1_000_000
# Fewer documents where each row is a transaction.
SMALL = {"qdrant": 2_000, "qdrant cosine": 2_000}


def main(target: Path) -> None:
    lines = [
        "# Vector stores: times",
        "",
        f"`python benchmarks/stores.py` on {os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
        f"{DIM} dimensions. A tenth of the documents moves. Times are seconds, one run.",
        "",
        "| store | documents | moved | open and read all | apply | revert |",
        "|---|---|---|---|---|---|",
    ]
    for name, kind in real_stores.STORES.items():
        lines.append(f"| {name} | " + " | ".join(_patched(kind, SMALL.get(name, ROWS))) + " |")
        print(lines[-1], flush=True)
    lines += ["", *_streamed()]
    print(lines[-1], flush=True)
    target.write_text("\n".join(lines) + "\n")


def _patched(kind: type, rows: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        store = kind(folder)
        documents = _vectors(rows)
        ids = store.fill(documents)
        began = time.perf_counter()
        with open_store(store.url) as opened:
            assert sum(len(part) for part, _ in opened.blocks()) == rows
        read = time.perf_counter() - began
        moved = rows // 10
        with open_store(store.url) as opened:
            labels = [[key] for key in ids[:moved]]
            queries = documents[:moved] + _vectors(moved, seed=1)
            patch = NudgeN(gamma=0.1).fit(opened, (queries, labels)).patch_
        times = []
        for verb in ("apply", "revert"):
            with open_store(store.url) as opened:
                began = time.perf_counter()
                getattr(opened, verb)(patch)
                times.append(time.perf_counter() - began)
        store.release()
    return [f"{rows:,}", f"{len(patch):,}", *(f"{seconds:.2f}" for seconds in (read, *times))]


def _streamed() -> list[str]:
    """Compare the time to read a large table with that of LanceDB alone."""
    import lancedb

    with tempfile.TemporaryDirectory() as folder:
        database = lancedb.connect(folder)
        table = database.create_table("docs", _batches(), schema=_SCHEMA)
        assert table.count_rows() == STREAMED
        ratios, nudgevec_times, lancedb_times, grown = [], [], [], 0.0
        for _ in range(3):
            began = time.perf_counter()
            rows = sum(len(batch) for batch in table.search().select(["id", "vector"]).to_batches(batch_size=4096))
            lancedb_times.append(time.perf_counter() - began)
            began = time.perf_counter()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with open_store(f"lancedb:{folder}#docs") as opened:
                assert sum(len(part) for part, _ in opened.blocks()) == rows == STREAMED
            nudgevec_times.append(time.perf_counter() - began)
            grown = max(grown, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
            ratios.append(nudgevec_times[-1] / lancedb_times[-1])
    spans = [f"{min(times):.2f}-{max(times):.2f}" for times in (lancedb_times, nudgevec_times, ratios)]
    return [
        f"Reading {STREAMED:,} x {DIM} from LanceDB, ids and vectors: LanceDB alone {spans[0]} s, nudgevec {spans[1]} "
        f"s, a ratio of {spans[2]} (three runs). Peak memory grew by at most {grown:.0f} MB over LanceDB alone, which "
        "includes the list of ids."
    ]


_SCHEMA = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), DIM))])


def _batches():
    for start in range(0, STREAMED, 50_000):
        flat = pa.array(_vectors(50_000, seed=start).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, DIM)
        yield pa.record_batch([pa.array([f"doc {start + row}" for row in range(50_000)]), vectors], schema=_SCHEMA)


def _vectors(rows: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal((rows, DIM), dtype=np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/benchmarks-stores.md"))
