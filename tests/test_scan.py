"""The scan keeps what can matter, and how it cuts the work up never shows in the answer."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nudgevec import NudgeM, NudgeN
from nudgevec.arithmetic import pairs, parallel, tables
from nudgevec.arithmetic.pairs import pair_dots
from nudgevec.corpus import ArrayCorpus, Reader
from nudgevec.cut import cutter, cutting
from nudgevec.cut.known import Known
from nudgevec.engines import numpy_engine, torch_sieve
from nudgevec.engines.device_engine import DeviceEngine
from nudgevec.engines.numpy_engine import NumpyEngine
from nudgevec.errors import VectorError
from nudgevec.scan import nearest, scan, shortlist
from nudgevec.scan.nearest import candidates
from nudgevec.scan.scan import Scan
from nudgevec.sweep import ranks, sweep
from problems import learnable


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 600])
def test_nearest_is_exact(cosine, dtype, k):
    random = np.random.default_rng(0)
    documents = (random.standard_normal((500, 12)) * random.uniform(0.2, 5, (500, 1))).astype(dtype)
    documents[100:110] = documents[0]  # exact ties, ranked by row
    queries = random.standard_normal((40, 12))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    skip = random.choice(500, 60, replace=False)
    found = nearest.nearest(
        Reader(ArrayCorpus(documents, block_rows=33)), queries, k, cosine=cosine, skip=skip, engine=NumpyEngine()
    )

    exact = queries @ documents.astype(np.float64).T
    if cosine:
        exact /= np.linalg.norm(documents.astype(np.float64), axis=1)
    exact[:, skip] = -np.inf
    k = min(k, 440)
    best = np.argsort(-np.round(exact, 13), axis=1, kind="stable")[:, :k]
    assert np.array_equal(found.row, best)
    np.testing.assert_allclose(found.score, np.take_along_axis(exact, best, axis=1), atol=1e-12)


def test_near_ties_below_float32_are_told_apart():
    """Documents whose scores differ by less than the filter can see."""
    base = np.ones((300, 8))
    base[:, 0] += np.random.default_rng(0).permutation(300) * 1e-10
    query = np.eye(8)[:1]
    found = nearest.nearest(Reader(base), query, 300, cosine=False, engine=NumpyEngine())
    assert np.array_equal(found.row[0], np.argsort(-base[:, 0], kind="stable"))


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("dim", [77, 9000])
def test_pair_dots_depend_on_their_own_rows_only(dim, cosine):
    random = np.random.default_rng(0)
    left, right = random.standard_normal((50, dim)), random.standard_normal((60, dim)).astype(np.float32)
    i, j = random.integers(0, 50, 500), random.integers(0, 60, 500)
    together = pair_dots(left, i, right, j, cosine=cosine)
    alone = [pair_dots(left, i[n : n + 1], right, j[n : n + 1], cosine=cosine)[0] for n in range(500)]
    assert np.array_equal(together, alone)
    taken = right[j].astype(np.float64)
    exact = (left[i] * taken).sum(axis=1) / (np.linalg.norm(taken, axis=1) if cosine else 1)
    np.testing.assert_allclose(together, exact, rtol=0, atol=1e-11)


def anywhere(queries):
    return nearest.Reach(np.full(queries, -np.inf), np.full(queries, np.inf))


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_documents_below_all_labels_are_let_go(method, monkeypatch):
    """Of the documents at rest few are kept, and the answer is what it is with all of them."""
    documents, train, validation, _ = learnable(rows=2000, train=300, held=100)
    # Some labels rest.
    validation = validation[0], [[row, 500 + row] if row % 3 == 0 else [row] for (row,) in validation[1]]
    kept = []

    def fitted():
        def counted(*some, **options):
            kept.append(candidates(*some, **options))
            return kept[-1]

        with monkeypatch.context() as patched:
            patched.setattr(scan, "candidates", counted)
            return method("ndcg@100").fit(documents, train, validation)

    tuner = fitted()
    monkeypatch.setattr(Known, "reach", lambda known, labels, queries, *_: anywhere(len(queries)))
    reference = fitted()
    some, everyone = ((found.row >= 0).sum(axis=1) for found in kept)
    assert (everyone == 101).all()
    assert some.mean() < 50
    assert (some == 0).any()
    assert np.array_equal(tuner.curve_.edges, reference.curve_.edges)
    assert np.array_equal(tuner.curve_.values, reference.curve_.values)
    assert tuner.choice_ == reference.choice_


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_nobody_wants_more(engine, monkeypatch):
    """All labels are out of reach: nothing more is multiplied, and what is wrong with a document is still told."""
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    for module in (numpy_engine, torch_sieve):
        monkeypatch.setattr(module, "_FIRST_SCORES", 1)
        monkeypatch.setattr(module, "_TILE_SCORES", 1)
    documents = np.random.default_rng(0).standard_normal((2000, 16)).astype(np.float32)
    queries, labels = -documents[:1], [[0]]
    tuner = NudgeM("recall@3", guard=0, engine=engine).fit(documents, (documents[1:2], [[1]]), (queries, labels))
    assert tuner.curve_.values.tolist() == [0.0]
    documents[-1, 3] = np.nan
    with pytest.raises(VectorError, match="row 1999"):
        NudgeM("recall@3", guard=0, engine=engine).fit(documents, (documents[1:2], [[1]]), (queries, labels))


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["capped_recall@1", "ndcg@10", "recall@100"])
def test_queries_whose_labels_are_out_of_reach_are_asked_about_no_longer(method, metric, monkeypatch):
    """Enough documents at rest are above these wherever they go, and the answer is what it is with all queries."""
    documents, train, validation, _ = learnable(rows=2000, train=300, held=100)
    # Some labels rest.
    validation = validation[0], [[500 + row] if row % 3 == 0 else [row] for (row,) in validation[1]]
    monkeypatch.setattr(numpy_engine, "_NARROWEST", 40)
    monkeypatch.setattr(numpy_engine, "_FIRST_SCORES", 1)
    monkeypatch.setattr(numpy_engine, "_TILE_SCORES", 1)
    # Many threads would take many tiles before the first is known.
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    asked = []

    def fitted():
        def counted(self, prepared, floor, queries, *, first, over=numpy_engine.NumpySieve.over):
            asked[-1] += len(floor) * len(prepared.rows)
            return over(self, prepared, floor, queries, first=first)

        asked.append(0)
        with monkeypatch.context() as patched:
            patched.setattr(numpy_engine.NumpySieve, "over", counted)
            return method(metric, guard=0, engine="numpy").fit(documents, train, validation)

    tuner = fitted()
    monkeypatch.setattr(
        Known, "reach", lambda *some, reach=Known.reach: reach(*some)._replace(highest=anywhere(100)[1])
    )
    reference = fitted()
    fewer, everyone = asked
    assert fewer < 0.9 * everyone
    assert np.array_equal(tuner.curve_.edges, reference.curve_.edges)
    assert np.array_equal(tuner.curve_.values, reference.curve_.values)
    assert tuner.choice_ == reference.choice_


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["capped_recall@1", "ndcg@10", "mrr@5"])
def test_sizes_never_show_in_the_answer(method, metric, monkeypatch):
    documents, train, validation, _ = learnable(rows=150, train=300, held=100)
    random = np.random.default_rng(3)

    def more(part):
        return part[0], [{**dict.fromkeys(entry, 3), int(random.integers(37)): 1} for entry in part[1]]

    train, validation = more(train), more(validation)
    reference = method(metric).fit(documents, train, validation)
    assert len(reference.curve_.values) > 20
    settings = [
        (numpy_engine, "_TILE_SCORES", 500),
        (numpy_engine, "_QUERIES", 3),
        (numpy_engine, "_WORTH_LEAVING_OUT", 0),
        (pairs, "_FEW_PAIR_BYTES", 1000),
        (pairs, "_FEW_PAIRS", 8),
        (shortlist, "_MOST_KEPT", 40),
        (parallel, "ROWS", 3),
        (cutter, "_GROUP_QUERIES", 1),
        (cutter, "_GROUP_PAIRS", 200),
        (cutter, "_MOST_PAIRS", 50),
        (numpy_engine, "_MEETING_SCORES", 1),
        (parallel, "cores", lambda: 1),
        (parallel, "cores", lambda: 7),
        (cutter, "_FEWEST_QUERIES", 1),
        (cutter, "_FEWEST_SCORES", 1),
        (numpy_engine, "_FEWEST_QUERIES", 1),
        (numpy_engine, "_FEWEST_DOCUMENTS", 1),
        (cutter, "_LARGEST_GROUP", 500),
        (cutter, "_IN_COMMON", -1e9),
        (cutter, "_PAIRS", 7),
        (cutting, "_CELL_PAIRS", 1),
        (cutting, "_CELL_PAIRS", 10**9),
        (cutting, "_CELL_DEPTH", 3),
        (cutting, "_IN_VAIN", -1),
        (cutting, "_IN_VAIN", 1000),
        (ranks, "_PAIRS", 5),
        (ranks, "_OFTEN", 0),
    ]
    for module, name, value in settings:
        with monkeypatch.context() as patched:
            if name in ("_TILE_SCORES", "_WORTH_LEAVING_OUT"):
                patched.setattr(numpy_engine, "_NARROWEST", 10)
                patched.setattr(numpy_engine, "_FIRST_SCORES", 1)
                patched.setattr(numpy_engine, "_TILE_SCORES", 1)
            patched.setattr(cutter, "_GROUP_SCORES", 1 << (9 if name.startswith("_GROUP") else 19))
            patched.setattr(cutter, "_GROUP_PAIRS", 0)
            patched.setattr(cutter, "_FEW_LISTED", 0)
            if name == "_MOST_PAIRS":
                patched.setattr(cutter, "_FEWEST_QUERIES", 1)
            patched.setattr(module, name, value)
            tuner = method(metric).fit(documents, train, validation)
        assert tuner.gamma_ == reference.gamma_, name
        assert np.array_equal(tuner.curve_.edges, reference.curve_.edges), name
        assert np.array_equal(tuner.curve_.values, reference.curve_.values), name
        assert np.array_equal(tuner.patch_.after, reference.patch_.after), name


def group_sizes(method, setting, values, monkeypatch):
    """Of how many queries the groups are, for each value of a setting."""
    documents, train, validation, _ = learnable(rows=150, train=300, held=100)
    sizes = []

    def spied(self, group, cells=cutter.Cutter._cells):
        sizes[-1].append(group.stop - group.start)
        return cells(self, group)

    monkeypatch.setattr(cutter.Cutter, "_cells", spied)
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    for value in values:
        sizes.append([])
        monkeypatch.setattr(cutter, setting, value)
        method().fit(documents, train, validation)
    return sizes


def test_groups_are_larger_where_queries_meet_few_documents(monkeypatch):
    monkeypatch.setattr(cutter, "_GROUP_SCORES", 1)
    monkeypatch.setattr(cutter, "_GROUP_QUERIES", 5)
    monkeypatch.setattr(cutter, "_FEWEST_QUERIES", 1)
    sizes = group_sizes(NudgeN, "_GROUP_PAIRS", (0, 100, 1 << 17), monkeypatch)
    least, some, most = map(max, sizes)
    assert least == 5 < some < most == sum(sizes[0]) == sum(sizes[1])


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_groups_are_smaller_where_queries_meet_many_documents(method, monkeypatch):
    monkeypatch.setattr(cutter, "_FEWEST_QUERIES", 2)
    sizes = group_sizes(method, "_MOST_PAIRS", (1, 50, 1 << 19), monkeypatch)
    least, some, most = map(max, sizes)
    assert least == 2 < some < most == sum(sizes[0]) == sum(sizes[1])


@pytest.mark.parametrize("shape", [(0, 8), (3, 5), (16, 24), (512, 256), (1024, 1024), (1023, 1000), (513, 257)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_all_true_is_all_that_is_true(shape, share):
    table = np.random.default_rng(0).random(shape) < share
    assert np.array_equal(tables.all_true(table), np.flatnonzero(table))
    assert np.array_equal(tables.all_true(table[:, ::-1]), np.flatnonzero(table[:, ::-1]))


def test_where_cells_meet_does_not_show():
    """The gains of a query at the ends of its cells cancel where two meet, and those of another stay."""
    phi, query, delta = np.array([0.0, 0.5, 0.5, 0.5, 1.0]), np.array([0, 0, 0, 1, 0]), np.array([4, 4, -4, 3, -4])
    lasting = sweep._lasting(phi, query, delta)
    assert [each.tolist() for each in lasting] == [[0.0, 0.5, 1.0], [0, 1, 0], [4, 3, -4]]
    assert [len(each) for each in sweep._lasting(phi[:0], query[:0], delta[:0])] == [0, 0, 0]


def test_a_pass_that_nobody_waits_for_ends():
    """On a device it waits for what labels never come below; when something goes wrong before that is known, it is let
    go."""
    random = np.random.default_rng(0)
    reader, queries = Reader(random.standard_normal((300, 8))), np.eye(8)

    def fail():
        with (
            pytest.raises(ZeroDivisionError),
            Scan(reader, queries, 3, np.arange(20), cosine=True, engine=DeviceEngine("cpu")),
        ):
            raise ZeroDivisionError

    failing = threading.Thread(target=fail, daemon=True)
    failing.start()
    failing.join(60)
    assert not failing.is_alive()
