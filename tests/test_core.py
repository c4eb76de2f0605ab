"""The parts of the core that can be checked by themselves."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from nudgevec.core.candidates import first_candidates
from nudgevec.core.curve import Curve, choose
from nudgevec.core.exact import dot, float32_error, norms, scaled_queries
from nudgevec.core.paths import RESOLUTION, rays
from nudgevec.core.pull import sum_pulls
from nudgevec.core.sweep import Steps, _problem, _warn_if_large
from nudgevec.errors import NudgeWarning
from nudgevec.labels import Labels
from nudgevec.metrics import Metric


@pytest.mark.parametrize("dim", [1, 7, 8, 77, 9000])
def test_the_exact_score_is_exact(dim):
    random = np.random.default_rng(dim)
    for _ in range(50):
        a, b = random.standard_normal((2, dim))
        b = b.astype(np.float32)
        assert dot(a, b) == pytest.approx(float((np.longdouble(a) * np.longdouble(b)).sum()), rel=0, abs=1e-14 * dim)
        assert dot(a, b) == dot(a, b.astype(np.float64))


def test_the_float32_error_bound_holds_and_is_not_vacuous():
    random = np.random.default_rng(0)
    for dim in (8, 384, 3072):
        queries = scaled_queries(random.standard_normal((40, dim)))
        documents = random.standard_normal((200, dim)) * 10.0 ** random.integers(-8, 8, (200, 1))
        fast = queries.astype(np.float32) @ documents.astype(np.float32).T / norms(documents).astype(np.float32)
        exact = queries @ documents.T / norms(documents)
        assert np.abs(fast - exact).max() < float32_error(dim)
        assert float32_error(dim) < 1e-3


def test_lengths_where_squares_leave_the_range():
    vectors = np.array([[3e-200, 4e-200], [3e200, 4e200], [3.0, 4.0], [0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
    np.testing.assert_allclose(norms(vectors)[:4], [5e-200, 5e200, 5.0, 0.0], rtol=1e-15)
    assert np.isnan(norms(vectors)[4:]).all()


def test_scaling_queries_keeps_exact_ties():
    queries = scaled_queries(np.array([[1.0, 2.0, 1.0], [3e-300, 0.0, 0.0]]))
    assert dot(queries[0], np.array([2.0, -1.0, -2.0])) == dot(queries[0], np.array([3.0, -2.0, -1.0]))
    assert ((norms(queries) >= 0.5) & (norms(queries) < 1)).all()


@pytest.mark.parametrize("dim", [1, 2, 7, 130])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_pull_depends_on_the_labels_of_its_document_alone(dim, kind):
    random = np.random.default_rng(0)
    queries = random.standard_normal((1500, dim)).astype(kind)
    count = np.concatenate([[1200, 513, 512], random.integers(1, 70, 37)])
    pairs = [(query, row) for row, many in enumerate(count) for query in random.choice(1500, many, replace=False)]
    query, row = np.array(sorted(pairs)).T
    labels = Labels(query, row, random.standard_normal(len(row)), 1500)
    whole = sum_pulls(labels, queries)
    matrix = np.zeros((40, 1500))
    matrix[labels.row, labels.query] = labels.weight
    np.testing.assert_allclose(whole.total, matrix @ queries.astype(np.float64), atol=1e-11)
    assert whole.rows.tolist() == list(range(40))
    assert whole.labels.tolist() == np.bincount(labels.row).tolist()
    for document in range(40):
        alone = sum_pulls(labels.where(labels.row == document), queries)
        assert np.array_equal(alone.total[0], whole.total[document])


def choose_slowly(values, edges, crossings, paths):
    """All gaps between crossings, one by one: the widest among the highest."""
    borders = sorted({*edges, *crossings})
    borders.append(paths.last_stop if paths.last_stop > borders[-1] + RESOLUTION else paths.max_angle)
    gaps = []
    for begin, end in pairwise(borders):
        plateau = max(number for number, left in enumerate(edges) if left <= begin)
        gaps.append((end - begin, values[plateau], (begin + end) / 2))
    enough = min(RESOLUTION * (1 - 1e-9), max(gaps)[0])
    best = max(value for width, value, _ in gaps if width >= enough)
    return max((gap for gap in gaps if gap[1] == best), key=lambda gap: gap[0])[2]


@pytest.mark.parametrize("widest", [1.0, 20 * RESOLUTION, 0.01 * RESOLUTION])
@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_middle_of_the_widest_gap(seed, widest):
    """Also with crossings whose changes cancel, which leave no edge on the curve."""
    random = np.random.default_rng(seed)
    edges = np.append(0.0, np.sort(widest * random.random(random.integers(0, 30))))
    values = random.permutation(len(edges)) + 1
    cancelling = widest * random.random(random.integers(0, 20))
    end = widest * random.choice([1.0, 1.5])
    paths = SimpleNamespace(
        resolution=RESOLUTION,
        max_angle=end,
        last_stop=random.choice([0.9, 1.0]) * end,
        phi=lambda gamma: end,
        gammas=lambda phi: 4 * np.sin(np.asarray(phi) / 2) ** 2,
    )
    phi = np.concatenate([edges, cancelling, cancelling])
    delta = np.concatenate([np.diff(values, prepend=0), np.ones(len(cancelling)), -np.ones(len(cancelling))])
    query = np.concatenate([np.zeros(len(edges)), np.ones(len(cancelling)), np.full(len(cancelling), 2)])
    order = np.lexsort((query, phi))
    steps = Steps(phi[order], query[order].astype(int), delta[order].astype(int), np.zeros(3, int), 1.0)
    curve = Curve(paths.gammas(np.append(edges, end)), values / 3, 0.0)
    chosen = choose(curve, steps, paths, guard=0, largest_gamma=4.0)
    expected = choose_slowly(values, edges, cancelling, paths)
    assert chosen.gamma == pytest.approx(4 * math.sin(expected / 2) ** 2, rel=1e-9)


@pytest.mark.parametrize("longest", [0, 3])
def test_a_labelled_document_much_longer_than_others_keeps_the_candidates_few(longest):
    random = np.random.default_rng(0)
    start, queries = random.standard_normal((500, 16)), scaled_queries(random.standard_normal((2, 16)))
    start[longest] *= 1e3
    labels = Labels(np.zeros(4, int), np.arange(4), np.ones(4), 1)
    pull = sum_pulls(Labels(np.arange(500) % 2, np.arange(500), np.ones(500), 2), queries)
    paths = rays(pull, start, str)
    problem = _problem(paths, labels, 1, Metric("recall", 1), 2.0**50)
    s32, z32 = (queries[0] @ part.T for part in (start / paths.divisor[:, None], paths.direction))
    nothing = np.full(2, -1), np.full(2, -np.inf)
    curves = first_candidates(problem, 0, s32.astype(np.float32), z32.astype(np.float32), *nothing)
    assert math.hypot(curves.base_s, curves.base_z) < 100


def test_a_sweep_of_many_minutes_is_announced():
    query, row = np.divmod(np.arange(30 * 5000), 5000)
    labels, movers = Labels(query, row, np.ones(len(row)), 30), range(20_000)
    with pytest.warns(NudgeWarning, match=r"ndcg@20000 with up to 5,000 labels .* about 720 seconds .* 48 GB"):
        _warn_if_large(movers, labels, 30, Metric("ndcg", 20_000))
    for n_movers, n_queries, k in ((20_000, 30, 10), (20_000, 1, 20_000), (10, 30, 20_000)):
        used = labels.where(labels.query < n_queries)
        _warn_if_large(movers[:n_movers], used, n_queries, Metric("ndcg", k))
