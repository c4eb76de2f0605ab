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
from nudgevec.core.curve import curve_of
from nudgevec.core.exact import float32_error, norms, scaled_queries
from nudgevec.core.paths import rays, rotations
from nudgevec.core.pull import sum_pulls
from nudgevec.core.scan import Block, top_k
from nudgevec.core.sweep import BISECTION, metric_steps
from nudgevec.corpus import Reader
from nudgevec.labels import read_labels
from nudgevec.metrics import Metric
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
@given(problem=problems(), metric=st.sampled_from(METRICS), where=SOMEWHERE)
def test_curve_equals_brute_force(method, move, problem, metric, where):
    check(method, move, problem, f"{metric}@{problem.k}", where)


@METHODS
@settings(max_examples=max(30, settings().max_examples // 5))
@given(
    problem=problems(most=60), metric=st.sampled_from(METRICS), where=SOMEWHERE, leaf=st.sampled_from([1, 2, 5, 10**6])
)
def test_curve_equals_brute_force_however_finely_bisected(method, move, problem, metric, where, leaf):
    """Larger problems, with intervals bisected as often as they can be, or never; the curve is the same (==)."""
    tuner = check(method, move, problem, f"{metric}@{problem.k}", where)
    curve = step_by_step(method, problem, f"{metric}@{problem.k}", leaf)
    assert np.array_equal(curve.edges, tuner.curve_.edges)
    assert np.array_equal(curve.values, tuner.curve_.values)
    assert curve.at_zero == tuner.curve_.at_zero


def step_by_step(method, problem, metric, leaf):
    """The curve from the functions of the core, in the order they run."""
    reader, metric = Reader(problem.documents), Metric.parse(metric)
    training = read_labels(problem.train[1], len(problem.train[0]), reader, "training queries")
    held_out = read_labels(problem.validation[1], len(problem.validation[0]), reader, "validation queries")
    used, relevant = held_out.relevant()
    queries = scaled_queries(problem.validation[0][used])
    pulled = sum_pulls(training, problem.train[0])
    paths = (rotations if method is NudgeN else rays)(pulled, problem.documents[pulled.rows], reader.name)
    stays = np.setdiff1d(np.arange(reader.n_rows), paths.rows)
    vectors = np.ascontiguousarray(problem.documents)
    block = Block(np.arange(reader.n_rows), vectors, norms(vectors), np.isin(np.arange(reader.n_rows), stays))
    unmoved = top_k([block], queries, metric.k + 1, cosine=method is NudgeN)
    return curve_of(metric_steps(paths, queries, relevant, metric, unmoved, leaf_size=leaf), paths)


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
    return tuner


def test_a_label_that_dips_below_both_ends_of_its_path():
    """It rotates past the point opposite to the query, and only there an unmoved document is ahead of it."""
    turn = np.radians([170.0, 200.0, 174.0])
    start, pull, rest = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    problem = Problem(np.array([start, rest]), (pull[None], [{0: 1.0}]), (np.eye(2)[:1], [{0: 1.0}]), k=1)
    check(NudgeN, oracle.move_n, problem, "recall@1", [0.05, 0.1, 0.15])
    curve = NudgeN("recall@1", guard=0).fit(problem.documents, problem.train, problem.validation).curve_
    assert curve.values.tolist() == [1, 0, 1]


def test_two_ties_for_an_instant_may_take_the_last_places():
    """Two equal documents rotate until they tie with an unmoved label, and away again: at that angle it is third. The
    metric of the other query is best around that angle."""

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


def test_a_label_out_of_the_top_k_does_not_count_though_its_score_is_off():
    """At the bisection, one label (y) is about to fall below two unmoved documents, and the other (z) is just out of
    their reach. z is so long that the error of its float32 scores exceeds that of unmoved documents: in some problems
    its upper bound reaches y."""
    dim, long, middle = 64, 1e4, BISECTION * math.pi / 2
    off, unmoved_error = float32_error(dim) * 1.5, 1e-11
    for seed in range(20):
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.standard_normal((dim, dim)))[0]
        query, aside = basis[0], iter(basis[1:])

        def at(score, aside=aside, query=query):
            return score * query + math.sqrt(1 - score**2) * next(aside)

        z, pull_z = long * next(aside), at(0.433)
        z_in_the_middle = (query @ z) * math.cos(middle) + (query @ pull_z) * math.sin(middle)
        rest = (z_in_the_middle + off * long + unmoved_error + 1e-5) / math.cos(middle)
        above = rest + unmoved_error + off + 1e-5
        pull_y = at(
            (rest * math.cos(middle) + unmoved_error + off + 1e-6 - above * math.cos(middle)) / math.sin(middle)
        )
        away = [at(-0.9) for _ in range(18)]
        documents = np.array([at(above), z, *away[:9], *(rest * query + 0.1 * next(aside) for _ in range(2))])
        train = np.array([pull_y, pull_z, *away[9:]]), [{row: 1.0} for row in range(11)]
        validation = query[None], [{0: 1.0, 1: 1.0}]
        curve = step_by_step(NudgeM, Problem(documents, train, validation, 2), "recall@2", leaf=1)
        moved = oracle.move_m(documents, *train, math.tan(0.3))
        assert curve(math.tan(0.3)) == pytest.approx(oracle.value(moved, *validation, "recall@2"), abs=1e-9)
