"""Peak memory of a fit does not grow with the corpus, for any block size and number of queries; nor that of a patch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nudgevec import Patch
from real_stores import postgres

LIMIT_MB = 240
# Of CPU time; two or three are usual.
LIMIT_SECONDS = 20

FIT = f"""
import resource, sys
import numpy as np
from nudgevec import ArrayCorpus, {{method}}

def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10

def fit(documents, size):
    random = np.random.default_rng(0)
    queries = random.standard_normal((1000 + {{n_validation}}, documents.shape[1])).astype(np.float32)
    labels = random.integers(0, len(documents), (len(queries), 1)).tolist()
    tuner = {{method}}(guard=0, engine="{{engine}}").fit(
        ArrayCorpus(documents, block_rows=size), (queries[:1000], labels[:1000]), (queries[1000:], labels[1000:])
    )
    assert len(tuner.curve_.values)

documents = np.load(sys.argv[1], mmap_mode="r")
fit(documents[:3000], None)  # load libraries, allocate thread buffers
before = status("VmHWM")
limit = status("VmData") + ({LIMIT_MB} << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
fit(documents, {{size}})
grown = status("VmHWM") - before
assert grown < ({LIMIT_MB} << 20), f"the process grew by {{{{grown >> 20}}}} MB"
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Create 600,000 x 128 float32 vectors: 307 MB, and 2.4 GB for the scores of a thousand queries."""
    path = tmp_path_factory.mktemp("corpus") / "documents.npy"
    mapped = np.lib.format.open_memmap(path, "w+", np.float32, (600_000, 128))
    random = np.random.default_rng(0)
    for start in range(0, 600_000, 50_000):
        mapped[start : start + 50_000] = random.standard_normal((50_000, 128), dtype=np.float32)
    mapped.flush()
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set through /proc")
@pytest.mark.parametrize("method", ["NudgeN", "NudgeM"])
@pytest.mark.parametrize(
    ("size", "n_validation", "engine"),
    [(None, 1000, "cpu"), (1000, 1000, "cpu"), (None, 3, "cpu"), (None, 1000, "torch")],
)
def test_memory_of_a_fit_on_an_array_is_bounded(corpus, method, size, n_validation, engine):
    code = FIT.format(method=method, size=size, n_validation=n_validation, engine=engine)
    process = subprocess.run([sys.executable, "-c", code, corpus], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]


EXTREME = f"""
import time
import numpy as np
from nudgevec import {{method}}, evaluate

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))

random = np.random.default_rng(0)

def some(count):
    return random.standard_normal((count, 64), dtype=np.float32)

def fit(documents, metric, labels):
    queries = some(len(labels))
    half = len(labels) // 2
    {{method}}(metric, guard=0).fit(documents, (queries[:half], labels[:half]), (queries[half:], labels[half:]))
    evaluate(documents, queries, labels, metric)

fit(some(100), "ndcg@10", [[0], [1]])  # load libraries, allocate thread buffers
{{problem}}
before, began = status("VmHWM"), time.process_time()
fit(documents, metric, labels)
grown, seconds = status("VmHWM") - before, time.process_time() - began
assert grown < ({LIMIT_MB} << 20), f"the process grew by {{{{grown >> 20}}}} MB"
assert seconds < {LIMIT_SECONDS}, f"it took {{{{seconds:.0f}}}} seconds of CPU time"
"""

PROBLEMS = {
    "a huge k": 'documents, metric, labels = some(120), "recall@999999999", [[i] for i in range(100)]',
    "equal documents": "documents = some(1).repeat(20_000, axis=0); "
    'metric, labels = "ndcg@10", [[i] for i in range(400)]',
    "nearly equal documents": "documents = some(1) + np.float32(1e-6) * some(20_000); "
    'metric, labels = "recall@100", [[i] for i in range(400)]',
    "5,000 labels per query": 'documents, metric = some(20_000), "ndcg@100"; '
    "labels = [random.choice(20_000, 5000, replace=False).tolist() for _ in range(200)]",
    "5,000 labels per query and a large k": 'documents, metric = some(20_000), "ndcg@1000"; '
    "labels = [random.choice(20_000, 5000, replace=False).tolist() for _ in range(8)]",
    "almost all documents in the top k": 'documents, metric = some(20_000), "recall@19000"; '
    "labels = [random.choice(20_000, n, replace=False).tolist() for n in (10_000, 1000)]",
}


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("method", ["NudgeN", "NudgeM"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_memory_and_time_of_extreme_problems_are_bounded(problem, method):
    code = EXTREME.format(method=method, problem=PROBLEMS[problem])
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]


PARQUET = f"""
import sys
import numpy as np
from nudgevec import NudgeN, ParquetCorpus

def peak_memory():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) << 10

def fit(path):
    corpus, random = ParquetCorpus(path, id_column=None), np.random.default_rng(0)
    queries = random.standard_normal((150, corpus.dim)).astype(np.float32)
    labels = random.integers(0, len(corpus.ids), (150, 1)).tolist()
    NudgeN(guard=0, engine="{{engine}}").fit(corpus, (queries[:100], labels[:100]), (queries[100:], labels[100:]))

fit(sys.argv[1])
before = peak_memory()
fit(sys.argv[2])
grown = peak_memory() - before
assert grown < ({LIMIT_MB} << 20), f"the process grew by {{{{grown >> 20}}}} MB"
"""


@pytest.fixture(scope="module", params=["none", "lz4"])
def parquet_files(request, corpus, tmp_path_factory):
    """Write a small and a large file of one row group each."""
    folder, documents = tmp_path_factory.mktemp("files"), np.load(corpus, mmap_mode="r")
    for name, rows in (("small", 3000), ("large", len(documents))):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(documents[:rows])), documents.shape[1])
        options = {"compression": request.param, "use_dictionary": False, "row_group_size": 1 << 20}
        pq.write_table(pa.table({"vector": vectors}), folder / f"{name}.parquet", **options)
    return folder / "small.parquet", folder / "large.parquet"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("engine", ["cpu", "torch"])
def test_memory_of_a_fit_on_parquet_is_bounded(parquet_files, engine):
    """Row groups are read in pieces, and blocks are released."""
    code = PARQUET.format(engine=engine)
    process = subprocess.run([sys.executable, "-c", code, *parquet_files], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]


# A patch that moves every row. Its vectors are 300 MB before and after.
PATCH_ROWS = 100_000
PATCH_LIMITS_MB = {
    "files": 60,
    "pgvector": 100,
    # The library keeps the vectors of a commit several times.
    "lancedb": 200,
}

PATCH = """
import sys
import numpy as np
from nudgevec import Patch, open_store
from nudgevec.stores.pgvector_binary import COPY_HEADER, COPY_TRAILER, pack_rows

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))

def fill_files(url, ids, vectors):
    return None

def fill_pgvector(url, ids, vectors):
    import psycopg
    name = f"docs{len(ids)}"
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, embedding vector({vectors.shape[1]}))")
        for start in range(0, len(ids), 1000):
            with cursor.copy(f"COPY {name} FROM STDIN (FORMAT BINARY)") as copy:
                copy.write(COPY_HEADER + pack_rows(start, [vectors[start : start + 1000]], "vector") + COPY_TRAILER)
    return f"{url}#{name}"

def fill_lancedb(folder, ids, vectors):
    import lancedb, pyarrow as pa
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), vectors.shape[1]))])
    def batches():
        for start in range(0, len(ids), 1000):
            flat = pa.array(np.ravel(vectors[start : start + 1000]))
            part = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            yield pa.record_batch([pa.array(ids[start : start + 1000]), part], schema=schema)
    name = f"docs{len(ids)}"
    lancedb.connect(folder).create_table(name, pa.RecordBatchReader.from_batches(schema, batches()))
    return f"lancedb:{folder}#{name}"

def use(url, path):
    patch = Patch.load(path)
    patch.save(path + ".copy")
    if url:
        with open_store(url) as store:
            assert store.apply(patch).applied == store.status().applied == store.verify(patch).applied == len(patch)
            assert store.revert(patch).original == len(patch)

kind, place, small, large, limit = sys.argv[1:]
urls = [globals()["fill_" + kind](place, patch.ids, patch.before) for patch in map(Patch.load, (small, large))]
use(urls[0], small)  # load libraries, allocate thread buffers
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
use(urls[1], large)
grown = status("VmHWM") - before
assert grown < (int(limit) << 20), f"the process grew by {grown >> 20} MB"
"""


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """Save a small and a large patch that move every row."""
    folder, random = tmp_path_factory.mktemp("patches"), np.random.default_rng(0)
    for name, n in (("small", PATCH_ROWS // 10), ("large", PATCH_ROWS)):
        before = random.standard_normal((n, 384), dtype=np.float32)
        before /= np.linalg.norm(before, axis=1, keepdims=True)
        rows, counts = np.arange(n), {"labels": np.ones(n, np.int64), "distance": np.ones(n)}
        facts = {"method": "N", "similarity": "cosine", "gamma": 0.1}
        Patch(rows=rows, ids=rows.tolist(), before=before, after=np.roll(before, 1, axis=1), **counts, **facts).save(
            folder / name
        )
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("kind", PATCH_LIMITS_MB)
def test_memory_of_a_patch_of_all_rows_is_bounded(patches, tmp_path, kind):
    place = str(tmp_path)
    if kind == "pgvector":
        import psycopg

        place = postgres().get_uri()
        with psycopg.connect(place) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    command = [sys.executable, "-c", PATCH, kind, place, patches / "small", patches / "large"]
    command.append(str(PATCH_LIMITS_MB[kind]))
    # One pool of memory for all threads: several are fragmented at random.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if kind == "pgvector":
        with psycopg.connect(place) as connection:
            connection.execute(f"DROP TABLE docs{PATCH_ROWS // 10}, docs{PATCH_ROWS}")
    assert process.returncode == 0, process.stderr[-2000:]
