"""One suite for all engines: wherever products run, the answer is the same to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from nudgevec import ArrayCorpus, NudgeM, NudgeMN, NudgeN, demo, evaluate
from nudgevec.core.exact import scaled_queries
from nudgevec.core.scan import TopK, merge
from nudgevec.corpus import Reader
from nudgevec.engines import ENGINES, pick
from nudgevec.engines.cpu import CpuEngine
from nudgevec.engines.torch import TorchEngine
from nudgevec.errors import OptionError
from problems import learnable


@pytest.fixture(params=["cpu", "torch", "torch in small blocks"])
def engine(request):
    """Each engine in turn. The one for GPUs runs on CPU tensors."""
    if request.param == "cpu":
        return CpuEngine()
    return TorchEngine("cpu", block_rows=48 if "small" in request.param else None)


def emoji():
    search = demo.load()
    return search.documents, search.part(search.train), search.part(search.validation)


def lengths():
    """Documents of very different lengths, some duplicated."""
    documents, train, validation, _ = learnable(3)
    documents = documents * np.geomspace(0.01, 100, len(documents))[:, None]
    documents[300:320] = documents[0]
    return ArrayCorpus(documents, block_rows=37), train, validation


def close():
    """Documents that differ by little, and queries between them."""
    documents, train, validation, _ = learnable(5)
    centre = np.ones(documents.shape[1]) / documents.shape[1] ** 0.5
    return (
        (centre + 1e-3 * documents).astype(np.float32),
        *((centre + 1e-3 * queries, labels) for queries, labels in (train, validation)),
    )


def anisotropic():
    """Two documents have a cosine of 0.83, as with some embedding models."""
    documents, train, validation, _ = learnable(7, rows=2000, dim=48, train=900, held=300)
    common = np.full(48, 2.2 / 48**0.5, np.float32)

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    documents = unit(documents + common)
    assert 0.8 < (documents[:1000] @ documents[1000:].T).mean() < 0.86
    return documents, *((unit(queries + common), labels) for queries, labels in (train, validation))


def many_labels():
    """40 graded labels per query."""
    documents, train, validation, _ = learnable(8, rows=1500, train=150, held=80)

    def labelled(queries):
        best = np.argsort(-(queries @ documents.T), axis=1)[:, :80:2]
        return queries, [{int(row): 1.0 + place % 3 for place, row in enumerate(line)} for line in best]

    return documents, labelled(train[0]), labelled(validation[0])


class Stream:
    """A corpus that is no array: its vectors are gone when a block is."""

    def __init__(self, vectors):
        self.vectors, self.ids, self.dim = vectors, range(len(vectors)), vectors.shape[1]

    def take(self, ids):
        raise AssertionError("labelled documents were in the stream already")

    def blocks(self):
        for start in range(0, len(self.vectors), 100):
            yield self.ids[start : start + 100], self.vectors[start : start + 100].copy()


class CountedStream(Stream):
    """A stream that counts how often it is read."""

    passes = 0

    def blocks(self):
        self.passes += 1
        yield from super().blocks()


PROBLEMS = {
    "one answer": lambda: learnable()[:3],
    "several answers": emoji,
    "float16": lambda: (learnable()[0].astype(np.float16), *learnable()[1:3]),
    "lengths": lengths,
    "close": close,
    "anisotropic": anisotropic,
    "40 labels per query": many_labels,
    "many dimensions": lambda: learnable(dim=700)[:3],
    "stream": lambda: (Stream(learnable()[0]), *learnable()[1:3]),
    "blocks": lambda: (ArrayCorpus(learnable()[0], block_rows=23), *learnable()[1:3]),
}


def same(one, other):
    assert one.gamma_ == other.gamma_
    assert np.array_equal(one.curve_.edges, other.curve_.edges)
    assert np.array_equal(one.curve_.values, other.curve_.values)
    assert np.array_equal(one.patch_.after, other.patch_.after)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["capped_recall@1", "ndcg@10", "recall@100"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_answer(engine, method, metric, name):
    documents, train, validation = PROBLEMS[name]()
    # The reference has all documents in one block, in float64: none of the problems has both.
    vectors = getattr(documents, "vectors", documents)
    whole = ArrayCorpus(np.array(vectors, np.float64), block_rows=10**6)
    one = method(metric, guard=0, engine="cpu").fit(whole, train, validation)
    other = method(metric, guard=0, engine=engine).fit(documents, train, validation)
    assert one.gamma_ == other.gamma_
    assert np.array_equal(one.curve_.edges, other.curve_.edges)
    assert np.array_equal(one.curve_.values, other.curve_.values)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("name", ["anisotropic", "40 labels per query"])
@pytest.mark.parametrize("metric", ["ndcg@10", "mrr@3", "recall@100"])
def test_the_curve_is_what_evaluate_measures(method, name, metric):
    documents, train, validation = PROBLEMS[name]()
    tuner = method(metric, guard=0).fit(documents, train, validation)
    gammas = [0.0, *np.quantile(tuner.curve_.edges[:-1], [0.1, 0.5, 0.9])[:3] + 1e-4, tuner.gamma_]
    for gamma in gammas:
        moved = method(gamma=gamma).fit(documents.astype(np.float64), train).transform(documents.astype(np.float64))
        measured = evaluate(moved, *validation, metric, similarity=method.similarity)[metric].mean
        assert tuner.curve_(gamma) == pytest.approx(measured, abs=1e-9)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_the_number_of_threads_does_not_matter(method):
    problem = learnable()[:3]
    before, fitted = numba.get_num_threads(), []
    try:
        for threads in {1, before}:
            numba.set_num_threads(threads)
            fitted.append(method(guard=0).fit(*problem))
    finally:
        numba.set_num_threads(before)
    same(fitted[0], fitted[-1])


def search(engine, documents, queries, k, *, cosine=True, floor=None, skip=None):
    reader = Reader(documents)
    return engine.top_k(reader.blocks(skip, cosine=cosine), scaled_queries(queries), k, cosine=cosine, floor=floor)


def brute(documents, queries, cosine):
    wide, asked = np.longdouble(documents), np.longdouble(scaled_queries(queries))
    exact = asked @ wide.T
    return exact / np.sqrt((wide**2).sum(axis=1)) if cosine else exact


def exact_score(a, b):
    """The exact score as it is defined, of all pairs at once: float64, eight partial sums in the order of dimensions,
    added in pairs; the dimensions after the last multiple of eight belong to the first sum."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    sums, whole = np.zeros((8, *np.broadcast_shapes(a.shape[:-1], b.shape[:-1]))), a.shape[-1] // 8 * 8
    for i in range(a.shape[-1]):
        sums[i % 8 if i < whole else 0] += a[..., i] * b[..., i]
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))


def ranked(documents, queries, k, *, cosine=True):
    """The k best documents of every query by the exact scores of all."""
    scores = exact_score(scaled_queries(queries)[:, None], documents[None])
    if cosine:
        scores /= np.sqrt(exact_score(documents, documents))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(best, np.take_along_axis(scores, best, axis=1))


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 440])
def test_top_k_is_exact(engine, cosine, dtype, k):
    random = np.random.default_rng(0)
    documents = (random.standard_normal((500, 12)) * random.uniform(0.2, 5, (500, 1))).astype(dtype)
    documents[100:110] = documents[0]  # exact ties, ranked by row
    queries = random.standard_normal((40, 12))
    skip = np.sort(random.choice(500, 60, replace=False))
    found = search(engine, ArrayCorpus(documents, block_rows=33), queries, k, cosine=cosine, skip=skip)
    exact = brute(documents, queries, cosine).astype(np.float64)
    exact[:, skip] = -np.inf
    best = np.argsort(-np.round(exact, 13), axis=1, kind="stable")[:, :k]
    assert np.array_equal(found.rows, best)
    np.testing.assert_allclose(found.scores, np.take_along_axis(exact, best, axis=1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-9])
def test_top_k_however_close_the_scores(engine, spread):
    """Down to differences that no filter can see."""
    random = np.random.default_rng(0)
    centre = random.standard_normal(48)
    documents = centre + spread * random.standard_normal((3000, 48))
    queries = centre + random.standard_normal((70, 48))
    found = search(engine, ArrayCorpus(documents, block_rows=500), queries, 12)
    reference = ranked(documents, queries, 12)
    assert np.array_equal(found.rows, reference.rows)
    assert np.array_equal(found.scores, reference.scores)
    best = np.sort(brute(documents, queries, True), axis=1)[:, ::-1][:, :12]
    np.testing.assert_allclose(found.scores, best.astype(np.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("cosine", [True, False])
def test_nothing_above_a_floor_is_missed(engine, cosine):
    """However few documents reach it: none, some, or more than the lists hold."""
    random = np.random.default_rng(0)
    documents = random.standard_normal((1000, 24)).astype(np.float32)
    documents[500:510] = documents[0]
    queries = random.standard_normal((60, 24))
    full = ranked(documents, queries, 20, cosine=cosine)
    floor = np.where(np.arange(60) % 3 == 0, full.scores[:, 0] + 1e-9, full.scores[np.arange(60), np.arange(60) % 20])
    floor[:10] = full.scores[:10, -1] - 1
    found = search(engine, documents, queries, 20, cosine=cosine, floor=floor)
    above = full.scores >= floor[:, None]
    assert np.array_equal(found.rows[above], full.rows[above])
    assert np.array_equal(found.scores[above], full.scores[above])
    assert (found.scores[~above] < np.broadcast_to(floor[:, None], above.shape)[~above]).all()
    assert (found.rows == -1).any()


def test_shards_are_merged_to_the_same_lists(engine):
    """Of any size, empty ones included, in any order."""
    random = np.random.default_rng(0)
    documents, queries = random.integers(-2, 3, (300, 6)) + 0.5, random.standard_normal((30, 6))
    whole = ranked(documents, queries, 25)
    bounds = [0, 3, 100, 290, 300]
    shards = []
    for begin, end in pairwise(bounds):
        found = search(engine, documents[begin:end], queries, 25)
        shards.append(TopK(np.where(found.rows >= 0, found.rows + begin, -1), found.scores))
    merged = TopK(np.full((30, 25), -1), np.full((30, 25), -np.inf))
    for shard in reversed(shards):
        merged = merge(merged, shard)
    assert np.array_equal(merged.rows, whole.rows)
    assert np.array_equal(merged.scores, whole.scores)


@pytest.mark.parametrize("count", [7, 700])
def test_documents_that_all_point_away(engine, count):
    random = np.random.default_rng(0)
    documents = np.abs(random.standard_normal((count, 64)))
    queries = -np.abs(random.standard_normal((9, 64)))
    found = search(engine, documents, queries, 5)
    assert np.array_equal(found.rows, np.argsort(-brute(documents, queries, True), axis=1)[:, :5])


@pytest.mark.parametrize("size", [1e-30, 1e-23, 1e-15, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("cosine", [True, False])
def test_vectors_of_any_length(engine, size, cosine):
    random = np.random.default_rng(0)
    documents = (size * (1 + 1e-6 * random.standard_normal((4000, 64)))).astype(np.float32)
    queries = np.abs(random.standard_normal((9, 64)))
    found = search(engine, documents, queries, 5, cosine=cosine)
    best = np.sort(brute(documents, queries, cosine), axis=1)[:, ::-1][:, :5]
    np.testing.assert_allclose(found.scores, best.astype(np.float64), rtol=1e-13)


def test_one_vector_much_longer_than_the_others(engine):
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((400, 32)), random.standard_normal((20, 32))
    for size in (1e3, 1e20, 1e150):
        documents[17] = size * queries[3]
        found = search(engine, documents, queries, 4, cosine=False)
        exact = brute(documents, queries, False)
        assert np.array_equal(found.rows, np.argsort(-exact, axis=1)[:, :4])


def test_read_only_files(engine, tmp_path):
    documents, _, validation, _ = learnable()
    np.save(tmp_path / "d.npy", documents)
    mapped = np.load(tmp_path / "d.npy", mmap_mode="r")
    one = evaluate(mapped, *validation, "ndcg@10", engine=engine)["ndcg@10"]
    other = evaluate(documents, *validation, "ndcg@10", engine="cpu")["ndcg@10"]
    assert np.array_equal(one.per_query, other.per_query)


def test_unknown_engines_are_named():
    with pytest.raises(OptionError, match="unknown engine 'abacus': use one of auto, cpu, torch"):
        NudgeN(engine="abacus").fit(*learnable()[:3])


def test_engines_of_other_packages():
    class Abacus(CpuEngine):
        name = "abacus"

    ENGINES.register("abacus", Abacus)
    try:
        assert isinstance(pick("abacus", 0), Abacus)
        same(NudgeN(engine="abacus").fit(*learnable()[:3]), NudgeN(engine="cpu").fit(*learnable()[:3]))
    finally:
        ENGINES.unregister("abacus")


def test_little_work_stays_on_the_cpu():
    assert pick("auto", 1e6).name == "cpu"


@pytest.mark.parametrize("setting", ["", "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'", "medium"])
def test_precision_settings_of_pytorch_are_kept(setting):
    """In a process of its own: settings are global."""
    code = f"""
import torch
from nudgevec import NudgeN
from problems import learnable
{f"torch.set_float32_matmul_precision('{setting}')" if setting == "medium" else setting}
before = torch.get_float32_matmul_precision() if {setting == "medium"} else torch.backends.mkldnn.matmul.fp32_precision
data = learnable()[:3]
gammas = [NudgeN(guard=0, engine=engine).fit(*data).gamma_ for engine in ("cpu", "torch")]
assert gammas[0] == gammas[1]
after = torch.get_float32_matmul_precision() if {setting == "medium"} else torch.backends.mkldnn.matmul.fp32_precision
assert before == after, (before, after)
"""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_fits_in_several_threads_leave_the_threads_of_the_blas_alone():
    def threads():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    problem = learnable()[:3]
    before = threads()
    with ThreadPoolExecutor(4) as pool:
        gammas = list(pool.map(lambda _: NudgeN(engine="cpu").fit(*problem).gamma_, range(12)))
    assert len(set(gammas)) == 1
    assert threads() == before


def test_without_a_folder_for_compiled_code(tmp_path):
    """Every process compiles anew, and says so."""
    (tmp_path / "file").touch()
    code = "from nudgevec.core.exact import norms; import numpy as np; print(norms(np.eye(2)))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "file")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "[1. 1.]\n"
    assert "no cache folder is writable" in done.stderr


def test_something_else_than_an_engine_is_refused():
    with pytest.raises(OptionError, match="unknown engine 42"):
        NudgeN(engine=42).fit(*learnable()[:3])


@pytest.mark.parametrize(
    ("method", "copies", "passes"),
    [(NudgeN, 1, 1), (NudgeM, 1, 1), (NudgeMN, 1, 2), (NudgeN, 3, 2), (NudgeM, 3, 2), (NudgeMN, 3, 3)],
)
def test_a_corpus_is_read_once(method, copies, passes):
    """Once, once more to rank equal documents by their ids, and once more where the result has another similarity."""
    documents, train, validation, test = learnable(rows=200)
    stream = CountedStream(np.repeat(documents, copies, axis=0))

    def labelled(part):
        return part[0], [[copies * row for row in entry] for entry in part[1]]

    tuner = method(guard=0).fit(stream, labelled(train), labelled(validation), labelled(test))
    assert stream.passes == passes
    for vectors, result in (
        (stream.vectors, tuner.test_.before),
        (tuner.patch_.apply(stream.vectors), tuner.test_.after),
    ):
        measured = evaluate(vectors, *labelled(test), similarity=tuner.similarity)
        for metric in measured:
            assert np.array_equal(measured[metric].per_query, result[metric].per_query)
