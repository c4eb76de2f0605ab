"""One measurement in a process of its own: `python benchmarks/worker.py '{"task": "nudgevec", ...}'`.

Prints a JSON line: seconds of the first and of the best call, and by how much the first made the process grow.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
from peer import theirs


def problem(n, d, train, validation, labelled, labels=1, seed=0, on_disk=False, common=0.0):
    """Unit documents; every labelled one has a hidden topic that its queries scatter around. In the end, a vector of
    length ``common`` is added to all."""
    random = np.random.default_rng(seed)

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    path = scratch() / f"{n}x{d}.npy"
    documents = np.lib.format.open_memmap(path, "w+", np.float32, (n, d)) if on_disk else np.empty((n, d), np.float32)
    for start in range(0, n, 100_000):
        block = random.standard_normal((min(100_000, n - start), d), dtype=np.float32)
        documents[start : start + len(block)] = unit(block)
    if on_disk:
        documents = np.load(path, mmap_mode="r")  # closes the file that was written
    scatter = np.float32(2.35 / np.sqrt(d))
    picked = random.choice(n, labelled, replace=False)
    topics = unit(documents[picked] + scatter * random.standard_normal((labelled, d), dtype=np.float32))
    answers = random.integers(0, labelled, (train + validation, labels))
    queries = topics[answers].mean(axis=1) + scatter * random.standard_normal((train + validation, d), dtype=np.float32)
    queries = unit(queries).astype(np.float32)
    if common:
        documents, queries = (unit(vectors + np.float32(common / np.sqrt(d))) for vectors in (documents, queries))
    rows = [sorted(set(picked[line].tolist())) for line in answers]
    return documents, (queries[:train], rows[:train]), (queries[train:], rows[train:])


def real(name):
    """A data set of the folder named by NUDGEVEC_DATA, split 0.7/0.1/0.2 with at most 1,000 validation queries."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "experiments"))
    import corpora

    data = corpora.load(name)
    train, validation = (
        (queries[:most].astype(np.float32), [list(rows) for rows in labels[:most]])
        for (queries, labels), most in zip(data.split(0), (None, 1000), strict=False)
    )
    return data.documents.astype(np.float32), train, validation


def main(spec):
    task = spec.pop("task")
    repeat = spec.pop("repeat", 1)
    options = {name: spec.pop(name) for name in ("method", "metric", "engine", "source") if name in spec}
    documents, train, validation = real(**spec) if "name" in spec else problem(**spec)
    call = TASKS[task](documents, train, validation, **options)
    del documents
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start the peak afresh
    times, grown = [], 0.0
    for _ in range(repeat):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            call()
        times.append(time.perf_counter() - began)
        grown = grown or (memory("VmHWM") - before) / 2**20
    print(json.dumps({"first": times[0], "best": min(times), "grown_mb": round(grown)}))


def plain(documents, train, validation):
    """The yardstick: all scores and their maximum."""
    queries = validation[0]
    return lambda: (queries @ documents.T).max(1)


def ours(documents, train, validation, method="N", metric="ndcg@10", engine="cpu", source="array"):
    import nudgevec

    if engine == "torch":
        import torch  # noqa: F401  its import is not the work to be measured
    corpus = SOURCES[source](documents)
    kind = {"N": nudgevec.NudgeN, "M": nudgevec.NudgeM}[method]
    return lambda: kind(metric, engine=engine).fit(corpus, train, validation)


def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def mapped(documents):
    path = scratch() / f"{documents.shape[0]}x{documents.shape[1]}.npy"
    np.save(path, documents)
    return np.load(path, mmap_mode="r")


def parquet(documents, id_column=None, **options):
    """Four files; without options, as PyArrow writes them: with a dictionary at first, compressed (snappy)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from nudgevec import ParquetCorpus

    folder = scratch() / f"{documents.shape[0]}x{documents.shape[1]}"
    folder.mkdir(exist_ok=True)
    for start in range(0, len(documents), 250_000):
        part = documents[start : start + 250_000]
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
        table = pa.table({"id": range(start, start + len(part)), "vector": vectors})
        pq.write_table(table, folder / f"{start:09d}.parquet", **options)
    return ParquetCorpus(folder, id_column=id_column)


def scratch():
    folder = Path(__file__).parent.parent / ".cache" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


PLAIN = {"compression": "none", "use_dictionary": False, "row_group_size": 16384}
SOURCES = {
    "array": lambda documents: documents,
    "mapped": mapped,
    "parquet, plain": lambda documents: parquet(documents, **PLAIN),
    "parquet, plain, with ids": lambda documents: parquet(documents, "id", **PLAIN),
    "parquet, as PyArrow writes it": parquet,
    "parquet, zstd": lambda documents: parquet(documents, compression="zstd"),
}
TASKS = {"plain": plain, "nudgevec": ours, "nudge-ft": theirs}

if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
