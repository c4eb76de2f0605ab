"""One suite for all engines: whatever filters, the answer is the same to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from itertools import product

import numpy as np
import pytest
import torch

from nudgevec import ArrayCorpus, NudgeM, NudgeN, demo, engines, evaluate
from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.rounding import error_of
from nudgevec.arithmetic.scratch import Scratch
from nudgevec.corpus import Reader
from nudgevec.cut.columns import Columns
from nudgevec.cut.lines import Bars, Curves, Levels
from nudgevec.cut.overtaking import Lone
from nudgevec.engines import device_engine, integers, numpy_engine, pytorch, torch_engine, torch_meeting, torch_sieve
from nudgevec.engines.device_engine import DeviceEngine
from nudgevec.engines.numpy_engine import NumpyEngine, NumpyMeeting
from nudgevec.engines.pytorch import pair_products
from nudgevec.engines.torch_engine import TorchEngine
from nudgevec.errors import OptionError
from nudgevec.motion import Motion
from nudgevec.scan.nearest import Reach, candidates, nearest
from problems import learnable


@pytest.fixture(params=["numpy", "torch", "torch without integers", "torch, alike", "device"])
def engine(request, monkeypatch):
    """The name of each engine in turn, in tiles that are not too few. The one for GPUs runs on CPU tensors."""
    if request.param == "device":
        monkeypatch.setattr(engines, "_torch_engine", lambda: DeviceEngine("cpu"))
        monkeypatch.setattr(device_engine, "_TILE_BYTES", 1 << 17)
    if "torch" in request.param:
        monkeypatch.setattr(numpy_engine, "_NARROWEST", 32)
        monkeypatch.setattr(torch_sieve, "_FIRST_SCORES", 1)
        monkeypatch.setattr(torch_sieve, "_TILE_SCORES", 1 << 10)
        monkeypatch.setattr(torch_sieve, "_SPREAD", 1e-9 if "alike" in request.param else np.inf)
        monkeypatch.setattr(torch_meeting, "_MOST_LEFT", 0 if "alike" in request.param else 1)
        monkeypatch.setattr(integers, "_SCORES", 1)
        monkeypatch.setattr(integers, "ROUND", 48)
    monkeypatch.setattr(numpy_engine, "_WORTH_LEAVING_OUT", 0)
    if "without" in request.param:
        monkeypatch.setattr(torch_engine, "multiplies_integers", lambda: False)
    # On CPU tensors bfloat16 is left to PyTorch's own products: some virtual machines die of those of oneDNN.
    torch._C._set_mkldnn_enabled(request.param != "device")
    yield "numpy" if request.param == "numpy" else "torch"
    torch._C._set_mkldnn_enabled(True)


def emoji():
    search = demo.load()
    return search.documents, search.part(search.train), search.part(search.validation)


def lengths():
    """Documents of very different lengths, some duplicated."""
    documents, train, validation, _ = learnable(3)
    documents = documents * np.geomspace(0.01, 100, len(documents))[:, None]
    documents[300:320] = documents[0]
    return documents, train, validation


def close():
    """Documents that differ by less than bfloat16 can tell, and queries between them."""
    documents, train, validation, _ = learnable(5)
    centre = np.ones(documents.shape[1]) / documents.shape[1] ** 0.5
    return (
        (centre + 1e-3 * documents).astype(np.float32),
        *((centre + 1e-3 * queries, labels) for queries, labels in (train, validation)),
    )


class Stream:
    """A corpus that is no array: its vectors are gone when a block is."""

    def __init__(self, vectors):
        self.vectors, self.ids, self.dim = vectors, range(len(vectors)), vectors.shape[1]

    def take(self, ids):
        return self.vectors[np.asarray(ids)]

    def blocks(self):
        for start in range(0, len(self.vectors), 100):
            yield self.ids[start : start + 100], self.vectors[start : start + 100].copy()


PROBLEMS = {
    "one answer": lambda: learnable()[:3],
    "several answers": emoji,
    "float16": lambda: (learnable()[0].astype(np.float16), *learnable()[1:3]),
    "lengths": lengths,
    "close": close,
    "many dimensions": lambda: learnable(dim=700)[:3],
    "stream": lambda: (Stream(learnable()[0]), *learnable()[1:3]),
    "blocks": lambda: (ArrayCorpus(learnable()[0], block_rows=23), *learnable()[1:3]),
}


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["capped_recall@1", "ndcg@10", "recall@10"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_answer(engine, method, metric, name):
    problem = PROBLEMS[name]()
    one, other = (method(metric, guard=0, engine=each).fit(*problem) for each in ("numpy", engine))
    assert one.gamma_ == other.gamma_
    assert np.array_equal(one.curve_.edges, other.curve_.edges)
    assert np.array_equal(one.curve_.values, other.curve_.values)
    assert np.array_equal(one.patch_.after, other.patch_.after)


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-6, 1e-9])
def test_nearest_however_close_the_scores(engine, spread):
    """Down to differences that no filter can see."""
    random = np.random.default_rng(0)
    centre = random.standard_normal(48)
    documents = centre + spread * random.standard_normal((3000, 48))
    queries = centre + random.standard_normal((70, 48))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = nearest(
        Reader(ArrayCorpus(documents, block_rows=500)), queries, 12, cosine=True, engine=engines.pick(engine, 0)
    )
    reference = nearest(Reader(documents), queries, 12, cosine=True, engine=engines.pick("numpy", 0))
    assert np.array_equal(found.row, reference.row)
    assert np.array_equal(found.score, reference.score)
    exact = np.longdouble(queries) @ np.longdouble(documents).T / np.sqrt((np.longdouble(documents) ** 2).sum(axis=1))
    best = np.sort(exact, axis=1)[:, ::-1][:, :12]
    np.testing.assert_allclose(found.score, best.astype(np.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("most", [1 << 20, 200])
@pytest.mark.parametrize("cosine", [True, False])
def test_nothing_above_a_floor_is_missed(engine, cosine, most, monkeypatch):
    """However few documents come up to it: none, some, or more than the lists take."""
    random = np.random.default_rng(0)
    documents = random.standard_normal((1000, 24)).astype(np.float32)
    documents[500:510] = documents[0]
    queries = random.standard_normal((60, 24))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    reader = Reader(documents)
    full = nearest(reader, queries, 20, cosine=cosine, engine=engines.pick("numpy", 0))
    floor = np.where(np.arange(60) % 3 == 0, full.score[:, 0] + 1e-9, full.score[np.arange(60), np.arange(60) % 20])
    floor[:10] = full.score[:10, -1] - 1
    monkeypatch.setattr("nudgevec.scan.shortlist._MOST_KEPT", most)
    found = nearest(reader, queries, 20, cosine=cosine, floor=floor, engine=engines.pick(engine, 0))
    above = full.score >= floor[:, None]
    assert np.array_equal(found.row[above], full.row[above])
    assert np.array_equal(found.score[above], full.score[above])
    assert (found.score[~above] < np.broadcast_to(floor[:, None], above.shape)[~above]).all()
    assert (found.row == -1).any()


@pytest.mark.parametrize(("k", "rows"), [(2, 150), (8, 150), (8, 5)])
def test_with_enough_documents_above_the_labels_no_more_are_looked_for(engine, k, rows, monkeypatch):
    """With k - 1 above a ceiling there need be no others; with fewer, all of the best are found."""
    monkeypatch.setattr(numpy_engine, "_NARROWEST", 1)
    for module in (numpy_engine, torch_sieve):
        monkeypatch.setattr(module, "_FIRST_SCORES", 1)
        monkeypatch.setattr(module, "_TILE_SCORES", 1)
    # What was found is known when the next document is looked at.
    monkeypatch.setattr(numpy_engine.CpuSieve, "patience", 0)
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    random = np.random.default_rng(0)
    documents = random.standard_normal((rows, 24)).astype(np.float32)
    queries = random.standard_normal((300, 24))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    exact = queries @ documents.T.astype(np.float64) / np.linalg.norm(documents.astype(np.float64), axis=1)
    scores = -np.sort(-exact, axis=1)
    above = random.integers(0, min(3 * k, rows), 300)
    ceiling = scores[np.arange(300), above] + 1e-9
    reach = Reach(np.full(300, -np.inf), ceiling)
    picked = engines.pick(engine, 0)
    found = candidates(Reader(documents), queries, k, cosine=True, reach=reach, engine=picked)
    scored = np.where(found.row >= 0, np.take_along_axis(exact, found.row, axis=1), -np.inf)
    scored = -np.sort(-scored, axis=1)[:, :k]
    hidden = above >= k - 1
    assert ((scored[hidden] > ceiling[hidden, None]).sum(axis=1) >= k - 1).all()
    np.testing.assert_allclose(scored[~hidden], scores[~hidden, :k], rtol=0, atol=1e-12)
    if k < rows and not isinstance(picked, DeviceEngine):
        assert (np.abs(scored[hidden] - scores[hidden, :k]) > 1e-9).any(), "nobody was left out"


def test_more_than_can_be_kept_in_mind(engine, monkeypatch):
    """Thousands of documents within the error of any filter, and room for a few hundred."""
    random = np.random.default_rng(0)
    documents = 1 + 1e-9 * random.standard_normal((3000, 16))
    queries = np.abs(random.standard_normal((20, 16)))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    reference = nearest(Reader(documents), queries, 7, cosine=True, engine=engines.pick("numpy", 0))
    monkeypatch.setattr("nudgevec.scan.shortlist._MOST_KEPT", 500)
    monkeypatch.setattr("nudgevec.engines.numpy_engine._TILE_SCORES", 1000)
    monkeypatch.setattr("nudgevec.engines.torch_sieve._TILE_SCORES", 1000)
    found = nearest(Reader(documents), queries, 7, cosine=True, engine=engines.pick(engine, 0))
    assert np.array_equal(found.row, reference.row)
    assert np.array_equal(found.score, reference.score)


def test_lists_stay_short_where_many_score_about_the_same(engine, monkeypatch):
    """Few of them in each tile, and many in all."""
    documents = np.tile(np.eye(16), (192, 1))
    documents[::100] = 1 + 1e-9 * np.random.default_rng(0).standard_normal((31, 16))
    queries = np.full((5, 16), 0.25)
    for module, name in ("numpy_engine", "_TILE_BYTES"), ("device_engine", "_TILE_BYTES"):
        monkeypatch.setattr(f"nudgevec.engines.{module}.{name}", 1)
    found = candidates(Reader(documents), queries, 7, cosine=True, engine=engines.pick(engine, 0))
    assert 7 <= found.row.shape[1] <= 14
    reference = nearest(Reader(documents), queries, 7, cosine=True, engine=engines.pick("numpy", 0))
    assert all(set(best) <= set(row) for best, row in zip(reference.row.tolist(), found.row.tolist(), strict=True))


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("k", [10, 300])
@pytest.mark.parametrize("cross", [1.0, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("most", [0.25, 1.0])
def test_no_moving_document_is_missed(turns, k, cross, most, monkeypatch):
    """All pairs that reach the levels are found, also where scores are as small as the errors of few bits: queries and
    documents have little in common. (Then they are too many, and PyTorch looks closer unless it may leave all.)"""
    monkeypatch.setattr(torch_meeting, "_MOST_LEFT", most)
    monkeypatch.setattr(integers, "_SCORES", 1)
    monkeypatch.setattr(integers, "ROUND", 333)
    monkeypatch.setattr(numpy_engine, "_MEETING_SCORES", 1)
    monkeypatch.setattr(numpy_engine, "_FEWEST_DOCUMENTS", 333)
    random = np.random.default_rng(1)
    queries, ends, count = random.standard_normal((40, 30)), random.standard_normal((2, 700, 30)), 700
    queries[:, :15] *= cross
    ends[:, :, 15:] *= cross
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    ends /= np.linalg.norm(ends, axis=2, keepdims=True)
    stop = np.arccos(np.einsum("ij,ij->i", *ends)) if turns else np.full(count, np.pi / 2)
    motion = Motion(
        rows=np.arange(count),
        start=ends[0],
        length=np.ones(count),
        direction=(ends[1] - np.cos(stop)[:, None] * ends[0]) / np.sin(stop)[:, None] if turns else ends[1],
        stop=stop,
        labels=np.ones(count, np.int64),
        turns=turns,
        scale=1.0,
    )
    columns = Columns.of(motion)
    first, slope = queries @ motion.start.T / motion.units, queries @ motion.direction.T

    def scores(phi):
        return first * np.cos(np.minimum(phi, stop)) + slope * np.sin(np.minimum(phi, stop))

    levels = np.array([-0.1, 0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.4])
    labels, stills = (Levels(*each) for each in np.float32(random.choice(levels, (2, 2, 40))))
    low, high = np.zeros(40), np.full(40, motion.end)
    if turns:
        labels, stills = Levels(labels.low, labels.low), Levels(stills.low, stills.low)
    else:
        low, high = np.sort(random.uniform(0, motion.end, (2, 40)), axis=0)

    def reaches_at(phi):
        bars = [each.low if turns else each.low * np.cos(phi) + each.high * np.sin(phi) for each in (labels, stills)]
        return scores(phi) >= np.maximum(*bars)[:, None]

    def between(each):
        return Levels(*((np.cos(phi) * each.low + np.sin(phi) * each.high).astype(np.float32) for phi in (low, high)))

    way = labels.stricter(stills)
    asked = Bars(way, low, high, labels, stills) if turns else Bars(way, low, high, between(labels), between(stills))
    reaches = np.zeros((40, count), np.bool_)
    for phi in np.linspace(0, motion.end, 120):
        inside = (low + 1e-3 <= phi) & (phi <= high - 1e-3)
        reaches |= reaches_at(phi) & inside[:, None]
    ends = scores(0), scores(motion.end)
    kept = np.sort(np.minimum(*ends), axis=1)[:, -k]
    reaches &= np.maximum(*ends) >= kept[:, None]
    assert reaches.any()
    for kind, numbers in product(meetings(columns, queries, monkeypatch), (np.arange(40), np.arange(2, 40, 3))):
        some = Bars(
            asked.way.at(numbers), low[numbers], high[numbers], asked.labels.at(numbers), asked.stills.at(numbers)
        )
        met = kind.among(numbers, some, nobody_alone(len(numbers)), k)
        assert (np.diff(met.query) >= 0).all()
        listed = np.zeros_like(reaches[numbers])
        listed[met.query, met.column] = True
        assert (listed | ~reaches[numbers]).all()
        np.testing.assert_allclose(met.first, first[numbers[met.query], met.column], atol=1e-5)


def meetings(columns, queries, monkeypatch):
    """All filters for moving documents, NumPy's also with products begun beforehand."""
    with monkeypatch.context() as small:
        small.setattr(numpy_engine, "_MEETING_SCORES", len(columns) * len(queries))
        begun = NumpyEngine().meeting(columns, queries)
    assert begun.begun is not None
    others = NumpyMeeting(columns, queries, Scratch([])), TorchEngine().meeting(columns, queries)
    return begun, *others, DeviceEngine("cpu").meeting(columns, queries)


def nobody_alone(lines):
    """Lines of which none has a single label."""
    label, rests = (Curves(*np.zeros((6, count), np.float32)) for count in (lines, 0))
    return Lone.of(np.zeros(lines, np.bool_), label, np.empty(0, np.int64), rests)


def misrounded(upward):
    """A vector that rounding to bfloat16 takes nearer to a query of ones, or farther, as much as it can."""
    agrees = np.arange(256) < 141
    size = 1 + 2.0**-8 * np.where(agrees == upward, 1.02, 0.98)
    return np.where(agrees, size, -size) / 16


@pytest.mark.parametrize("of_query", [False, True])
def test_the_worst_that_rounding_to_8_bits_can_do(engine, of_query):
    """All of what rounding loses counts against the best document, which has to be found all the same: the floor
    stands just below it."""
    halves, ones = np.full(256, 100.49), np.full(256, 127.0)
    halves[0] = 127
    query, best = (halves, ones) if of_query else (ones, halves)
    documents = np.zeros((400, 256))
    documents[4] = best @ query / (query @ query) * (1 - 1e-4) * query
    documents[300] = best
    query /= np.linalg.norm(query)
    for row, scale in ((300, 1.0), (4, 1 - 1e-4)):
        assert documents[row] @ query == pytest.approx(scale * (best @ query))
    found = nearest(Reader(documents), query[None], 1, cosine=False, engine=engines.pick(engine, 0))
    assert found.row.tolist() == [[300]]


@pytest.mark.parametrize("spread", [1.5, np.inf])
def test_a_document_much_longer_than_those_before(engine, spread, monkeypatch):
    """8 bits, of which it takes all for itself, do not tell the others of its tile apart."""
    monkeypatch.setattr(torch_sieve, "_SPREAD", spread)
    random = np.random.default_rng(2)
    documents, queries = random.standard_normal((600, 30)), random.standard_normal((20, 30))
    documents[500] *= 1000
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = nearest(Reader(documents), queries, 9, cosine=False, engine=engines.pick(engine, 0))
    scores = queries @ documents.T
    assert np.array_equal(found.row, np.argsort(-scores, axis=1)[:, :9])


def test_the_worst_that_rounding_can_do_to_the_scan(engine):
    documents = np.stack([misrounded(upward=True)] * 6 + [misrounded(upward=False)]).astype(np.float32)
    documents[6, 0] = 1.25 / 16
    queries = np.full((1, 256), 1 / 16)
    scores = documents.astype(np.float64) @ queries[0]
    assert scores[6] > scores[0]
    found = nearest(Reader(documents), queries, 3, cosine=False, engine=engines.pick(engine, 0))
    assert found.row.tolist() == [[6, 0, 1]]


@pytest.mark.parametrize("of_query", [False, True])
def test_the_worst_that_rounding_can_do_to_moving_documents(of_query, monkeypatch):
    """All of what rounding loses counts against a document that just comes up to the level."""
    monkeypatch.setattr(torch_meeting, "_MOST_LEFT", 1.0)
    moving, queries = np.full((2, 1, 256), 1 / 16)
    moving[0] = 100.49
    moving[0, 0] = 127
    moving /= np.linalg.norm(moving)
    if of_query:
        moving, queries = queries, moving
    motion = Motion(np.arange(1), moving, np.ones(1), moving, np.full(1, np.pi / 2), np.ones(1, np.int64), turns=False)
    columns = Columns.of(motion)
    reached, never = np.float32((queries @ moving.T)[0] - 1e-5), np.ones(1, np.float32)
    angles = np.zeros(1), np.full(1, motion.end)
    for kind, level in product(
        meetings(columns, queries, monkeypatch), (Levels(reached, never), Levels(never, reached))
    ):
        assert kind.among(np.arange(1), Bars(level, *angles, level, level), nobody_alone(1), 1).column.tolist() == [0]


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_nothing_that_moves(engine, method):
    documents = np.eye(30)
    still = (documents[:5], [{row: 1.0} for row in range(5)]) if method is NudgeN else None
    if method is NudgeM:
        twice = np.concatenate([documents[:5], documents[:5]])
        still = (twice, [{row: 1.0} for row in range(5)] + [{row: -1.0} for row in range(5)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuner = method(engine=engine).fit(documents, still, (documents[5:9], [[row] for row in range(5, 9)]))
    assert tuner.gamma_ == 0
    assert len(tuner.patch_) == 0


def test_evaluate_is_the_same(engine):
    documents, _, validation = emoji()
    one, other = (evaluate(documents, *validation, engine=each) for each in ("numpy", engine))
    for metric in one:
        assert np.array_equal(one[metric].per_query, other[metric].per_query)


def test_many_nearest_documents(engine):
    """More than an engine lists at a time, over many tiles, the first of them tiny."""
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((5000, 12)), random.standard_normal((20, 12))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)

    class Uneven(Stream):
        def blocks(self):
            for start, stop in ((0, 5), (5, 1500), (1500, 5000)):
                yield self.ids[start:stop], self.vectors[start:stop].copy()

    found = nearest(Reader(Uneven(documents)), queries, 600, cosine=False, engine=engines.pick(engine, 0))
    best = np.argsort(-(queries @ documents.T), axis=1)[:, :600]
    assert np.array_equal(found.row, best)


@pytest.mark.parametrize("pairs", [0, 1, 300])
def test_products_of_single_pairs(pairs):
    random = np.random.default_rng(0)
    left, right = (random.standard_normal((rows, 48)).astype(np.float32) for rows in (30, 50))
    i, j = np.divmod(np.sort(random.choice(30 * 50, pairs, replace=False)), 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        products = pair_products(left, i, right, j)
    assert products.dtype == np.float32
    np.testing.assert_allclose(products, (left[i] * right[j]).sum(axis=1), rtol=0, atol=48 * error_of(48))


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_vectors_of_few_dimensions(engine, dim):
    random = np.random.default_rng(dim)
    documents, queries = random.standard_normal((300, dim)), random.standard_normal((40, dim))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = nearest(Reader(documents), queries, 5, cosine=False, engine=engines.pick(engine, 0))
    best = np.sort(queries @ documents.T, axis=1)[:, ::-1][:, :5]
    np.testing.assert_allclose(found.score, best, rtol=0, atol=1e-14)


def test_unknown_engines_are_named():
    with pytest.raises(OptionError, match="unknown engine 'abacus': use one of auto, numpy, torch"):
        NudgeN(engine="abacus").fit(*learnable()[:3])


@pytest.mark.parametrize(
    ("work", "able", "name"), [(1e6, True, "numpy"), (1e13, True, "torch"), (1e13, False, "numpy")]
)
def test_auto_weighs_the_work(work, able, name, monkeypatch):
    monkeypatch.setattr(pytorch, "multiplies_integers", lambda: able)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engines.pick("auto", work).name == name


def test_integers_are_not_multiplied_where_that_goes_wrong():
    """With other instructions, which PyTorch can be told to use, sums overflow."""
    asked = "from nudgevec.engines.pytorch import multiplies_integers; print(multiplies_integers())"
    for limit, right in ((None, pytorch.has_integers()), ("AVX2", False)):
        environment = os.environ | ({"ONEDNN_MAX_CPU_ISA": limit} if limit else {})
        done = subprocess.run(
            [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(right)


def test_what_the_cpu_has_is_what_pytorch_says():
    if torch.backends.cpu.get_cpu_capability() in ("NO AVX", "DEFAULT", "AVX2"):
        assert not pytorch.has_integers()
    with open("/proc/cpuinfo") as info:
        assert pytorch.has_integers() == ("avx512_vnni" in info.read().split())


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_read_only_files(engine, similarity, tmp_path):
    documents, _, validation, _ = learnable()
    np.save(tmp_path / "d.npy", documents)
    mapped = np.load(tmp_path / "d.npy", mmap_mode="r")
    one = evaluate(mapped, *validation, "ndcg@10", similarity=similarity, engine=engine)["ndcg@10"]
    other = evaluate(documents, *validation, "ndcg@10", similarity=similarity, engine="numpy")["ndcg@10"]
    assert np.array_equal(one.per_query, other.per_query)


@pytest.mark.parametrize("count", [7, 700])
def test_documents_that_all_point_away(engine, count):
    random = np.random.default_rng(0)
    documents = np.abs(random.standard_normal((count, 64)))
    queries = -np.abs(random.standard_normal((9, 64)))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = nearest(Reader(documents), queries, 5, cosine=True, engine=engines.pick(engine, 0))
    exact = queries @ (documents / np.linalg.norm(documents, axis=1, keepdims=True)).T
    assert np.array_equal(found.row, np.argsort(-exact, axis=1)[:, :5])


@pytest.mark.parametrize("size", [1e-23, 1e-15, 1.0, 1e10])
def test_dot_products_of_any_size(engine, size):
    random = np.random.default_rng(0)
    documents = (size * (1 + 1e-6 * random.standard_normal((4000, 64)))).astype(np.float32)
    queries = np.abs(random.standard_normal((9, 64)))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = nearest(Reader(documents), queries, 5, cosine=False, engine=engines.pick(engine, 0))
    exact = queries @ documents.astype(np.float64).T
    np.testing.assert_allclose(found.score, np.sort(exact, axis=1)[:, ::-1][:, :5], rtol=1e-13)
