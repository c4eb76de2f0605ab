"""The curve equals brute force everywhere, for both methods and every metric."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from nudgevec import NudgeM, NudgeN
from nudgevec.arithmetic.rounding import error_of
from nudgevec.cut import cutter, cutting
from nudgevec.engines import numpy_engine
from nudgevec.sweep import ranks
from problems import METRICS, Problem, problems

# A tie is a difference below 1e-12. Where two curves touch without crossing, they are that close within
# sqrt(2e-12) = 1.4e-6 radians of the edge, and brute force sees a tie that the curve places at the edge.
RESOLUTION = 3e-6
# Where to look inside a plateau. Not its middle: in problems made of small whole numbers two documents
# may well be tied exactly there.
INSIDE = 0.4372193


def angle(method, gamma):
    if method is NudgeN:
        return 2 * math.asin(math.sqrt(gamma) / 2)
    return math.pi / 2 if math.isinf(gamma) else math.atan(gamma)


def gamma_at(method, phi):
    return 4 * math.sin(phi / 2) ** 2 if method is NudgeN else math.tan(phi)


METHODS = pytest.mark.parametrize(("method", "move"), [(NudgeN, oracle.move_n), (NudgeM, oracle.move_m)])
SOMEWHERE = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@METHODS
@given(problem=problems(), metric=st.sampled_from(METRICS), where=SOMEWHERE, as_if_large=st.booleans())
def test_curve_equals_brute_force(method, move, problem, metric, where, as_if_large):
    with pytest.MonkeyPatch.context() as patched:
        if as_if_large:
            no_short_cuts(patched, beside=where[0] < 0.5)
        check(method, move, problem, f"{metric}@{problem.k}", where)


def no_short_cuts(patched, beside):
    """Small problems are treated as large ones are, and turning documents compared beside a label or not."""
    for name in ("_NARROWEST", "_FIRST_SCORES", "_TILE_SCORES"):
        patched.setattr(numpy_engine, name, 1)
    patched.setattr(numpy_engine, "_WORTH_LEAVING_OUT", 0)
    patched.setattr(numpy_engine.CpuSieve, "patience", 0)
    patched.setattr(cutter, "_FEW_LISTED", 0)
    patched.setattr(cutter, "_IN_COMMON", -1e9 if beside else np.inf)
    patched.setattr(ranks, "_OFTEN", 0)


@METHODS
@settings(max_examples=max(30, settings().max_examples // 5))
@given(problem=problems(most=60), metric=st.sampled_from(METRICS), where=SOMEWHERE)
def test_curve_equals_brute_force_however_finely_cut(method, move, problem, metric, where):
    """Larger problems, with every interval cut as often as it can be."""
    with pytest.MonkeyPatch.context() as patched:
        no_short_cuts(patched, beside=where[0] < 0.5)
        cut_so_often(patched, 6)
        check(method, move, problem, f"{metric}@{problem.k}", where)


def cut_so_often(patched, times):
    """Intervals are cut this often, whatever is in them."""
    patched.setattr(cutting, "_CELL_PAIRS", 0)
    patched.setattr(cutting, "_CELL_SPARE", -1000)
    patched.setattr(cutting, "_CELL_DEPTH", times)
    patched.setattr(cutting, "_IN_VAIN", -1)


def check(method, move, problem, metric, where):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems repeat queries on purpose
        tuner = method(metric, guard=0).fit(problem.documents, problem.train, problem.validation)
    curve = tuner.curve_
    assert curve.edges[0] == 0
    assert len(curve.edges) == len(curve.values) + 1
    assert (np.diff(curve.edges) > 0).all()

    def brute(gamma):
        moved = move(problem.documents, *problem.train, gamma)
        # Long rays make large scores; a tie is relative to them.
        return oracle.value(moved, *problem.validation, metric, tie=oracle.TIE * max(1.0, gamma))

    assert curve.at_zero == pytest.approx(brute(0.0), abs=1e-9)

    angles = [angle(method, gamma) for gamma in curve.edges]
    for low, high, value in zip(angles, angles[1:], curve.values, strict=False):
        if high - low > RESOLUTION:
            assert value == pytest.approx(brute(gamma_at(method, low + INSIDE * (high - low))), abs=1e-9)
    for part in where:
        phi = part * angles[-1] * (1 - 1e-3)
        if phi > RESOLUTION and min(abs(phi - edge) for edge in angles) > RESOLUTION:
            gamma = gamma_at(method, phi)
            assert curve(gamma) == pytest.approx(brute(gamma), abs=1e-9)

    wide = np.diff(angles) > RESOLUTION
    best = max(curve.at_zero, curve.values[wide].max())
    if best > curve.at_zero:
        assert curve(tuner.gamma_) >= best
        assert curve(tuner.gamma_) == pytest.approx(brute(tuner.gamma_), abs=1e-9)
    elif curve.best == curve.at_zero:
        assert tuner.gamma_ == 0
        assert len(tuner.patch_) == 0
    assert np.isfinite(tuner.transform(problem.documents)).all()


def test_a_label_that_dips_below_both_ends_of_its_way():
    """It turns by the point opposite to the query: a document at rest nearby is ahead of it there and nowhere else."""
    turn = np.radians([170.0, 200.0, 174.0])
    start, pull, rest = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    problem = Problem(np.array([start, rest]), (pull[None], [{0: 1.0}]), (np.eye(2)[:1], [{0: 1.0}]), k=1)
    check(NudgeN, oracle.move_n, problem, "recall@1", [0.05, 0.1, 0.15])
    curve = NudgeN("recall@1", guard=0).fit(problem.documents, problem.train, problem.validation).curve_
    assert curve.values.tolist() == [1, 0, 1]


@pytest.mark.parametrize("beside", [False, True])
def test_ties_with_a_label_that_is_never_in_the_top_k_do_not_count(beside, monkeypatch):
    """One document comes as high as the label of the first query, for an instant, while another is above both of them
    all the time. That is no crossing for the second query to keep away from, whoever has been looked at."""
    documents = np.array([[1.0, 0.0, 1e-13], [0.0, 0.0, 1.0], [0.8, 0.6, 0.0]])
    train = np.array([[0.1, 0.0, 1.0], [0.8, -0.6, 0.0]]), [[1], [2]]
    others = np.random.default_rng(0).standard_normal((50, 3))

    def gammas():
        queries = ([[0.6, 0.0, 0.8], other] for other in others)
        return [NudgeN("recall@1", guard=0).fit(documents, train, (each, [[0], [2]])).gamma_ for each in queries]

    chosen = gammas()
    assert any(chosen)
    no_short_cuts(monkeypatch, beside)
    assert gammas() == chosen


def test_two_ties_for_an_instant_may_take_the_last_places():
    """Two documents, twins, turn up to the height of a label at rest and down again: where they touch it, it is third.
    The other query's metric is best around that angle."""

    def at(angle, first):
        vector = np.zeros(6)
        vector[first : first + 2] = math.cos(angle), math.sin(angle)
        return vector

    documents = np.array([at(0, 0), at(-0.5, 0), at(-0.5, 0), at(-0.9, 2), at(0.6, 2), at(0.6, 2)])
    train = np.array([at(0.2, 0), at(-0.2, 2)]), [{1: 1.0, 2: 1.0}, {3: 1.0}]
    validation = np.array([at(0, 0), at(0, 2)]), [{0: 1.0}, {3: 1.0}]
    tuner = NudgeN("recall@2", guard=0).fit(documents, train, validation)
    moved = oracle.move_n(documents, *train, tuner.gamma_)
    assert tuner.curve_(tuner.gamma_) == oracle.value(moved, *validation, "recall@2") == 1


def test_a_label_out_of_the_top_k_does_not_count_though_its_score_is_off(monkeypatch):
    """Where the angles are cut in two, one label (y) is about to fall below two documents at rest, and the other (z) is
    just out of their reach. z is so long that its float32 scores are off by more than those of documents at rest: in
    some problems they reach y."""
    no_short_cuts(monkeypatch, beside=False)
    cut_so_often(monkeypatch, 1)
    dim, long, middle = 64, 1e4, (0.5 + cutting._ASIDE) * math.pi / 2
    off, off_at_rest = error_of(dim + 32) * 1.5 / math.cos(math.pi / 4), error_of(32)
    for seed in range(20):
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.standard_normal((dim, dim)))[0]
        query, aside = basis[0], iter(basis[1:])

        def at(score, aside=aside, query=query):
            return score * query + math.sqrt(1 - score**2) * next(aside)

        z, pull_z = long * next(aside), at(0.433)
        z_in_the_middle = (query @ z) * math.cos(middle) + (query @ pull_z) * math.sin(middle)
        rest = (z_in_the_middle + off * long + off_at_rest + 1e-5) / math.cos(middle)
        above = rest + off_at_rest + off + 1e-5
        pull_y = at((rest * math.cos(middle) + off_at_rest + off + 1e-6 - above * math.cos(middle)) / math.sin(middle))
        away = [at(-0.9) for _ in range(18)]
        documents = np.array([at(above), z, *away[:9], *(rest * query + 0.1 * next(aside) for _ in range(2))])
        train = np.array([pull_y, pull_z, *away[9:]]), [{row: 1.0} for row in range(11)]
        validation = query[None], [{0: 1.0, 1: 1.0}]
        curve = NudgeM("recall@2", guard=0).fit(documents, train, validation).curve_
        moved = oracle.move_m(documents, *train, math.tan(0.3))
        assert curve(math.tan(0.3)) == pytest.approx(oracle.value(moved, *validation, "recall@2"), abs=1e-9)
