"""The likelihood of labels, and the map that raises it, against slow definitions in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize

from nudgevec.core.linear_map import LinearMap, learn_maps
from nudgevec.core.softmax import LabelModel, closeness, sampled_batches, temperature, whole_batches
from nudgevec.engines.torch import TorchEngine
from nudgevec.labels import Labels

SIDES = "documents", "queries"
TAU = 0.2


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_model(n_documents=50, n_queries=40, dim=6, seed=0, **options):
    """Graded labels, several for some queries; queries differ from documents by a linear map and noise."""
    random = np.random.default_rng(seed)
    documents = unit(random.standard_normal((n_documents, dim)))
    query = np.sort(np.concatenate([np.arange(n_queries), random.integers(0, n_queries, n_queries // 2)]))
    row = random.permutation(n_documents)[np.arange(len(query)) % n_documents]
    weight = random.integers(1, 4, len(query)).astype(np.float64)
    turn = np.eye(dim) + 0.4 * random.standard_normal((dim, dim))
    first = np.searchsorted(query, np.arange(n_queries))
    queries = unit(documents[row[first]] @ turn + 0.1 * random.standard_normal((n_queries, dim)))
    labels = Labels(query, row, weight, n_queries)
    return LabelModel(documents, queries, labels, whole_batches(n_queries, n_documents), **options)


def slow_log_likelihood(model, vectors, side, tau):
    """The definition, in float64."""
    documents = (vectors if side == "documents" else model.documents).astype(np.float64)
    queries = (vectors if side == "queries" else model.queries).astype(np.float64)
    scores = queries @ documents.T / tau
    log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    labels = model.labels
    total = np.bincount(labels.query, labels.weight)
    return float((labels.weight / total[labels.query] * log_probability[labels.query, labels.row]).sum())


def slow_objective(model, matrix, side, tau, sigma):
    vectors = model.documents if side == "documents" else model.queries
    moved = vectors + vectors @ matrix
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    return slow_log_likelihood(model, moved, side, tau) - (matrix**2).sum() / (2 * sigma**2)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("scores", [1, 170, 10**6])
def test_log_likelihood_and_gradient(side, scores):
    model = make_model()
    model = LabelModel(model.documents, model.queries, model.labels, whole_batches(40, 50, scores))
    vectors = (model.documents if side == "documents" else model.queries) * np.float32(0.9)
    value, gradient = model.log_likelihood(vectors, side, TAU)
    assert value == pytest.approx(slow_log_likelihood(model, vectors, side, TAU), rel=1e-5)

    def at(numbers):
        return slow_log_likelihood(model, numbers.reshape(vectors.shape), side, TAU)

    error = check_grad(at, lambda _: gradient.ravel().astype(np.float64), vectors.ravel().astype(np.float64))
    assert error < 1e-3 * np.linalg.norm(gradient)


@pytest.mark.parametrize("side", SIDES)
def test_engines_agree(side):
    torch_engine = TorchEngine("cpu")
    one = make_model().log_likelihood(
        make_model().documents if side == "documents" else make_model().queries, side, TAU
    )
    model = make_model(moments=torch_engine.moments)
    other = model.log_likelihood(model.documents if side == "documents" else model.queries, side, TAU)
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-3, atol=1e-4)


def test_temperature_is_the_most_likely_one():
    model = make_model(n_queries=300)
    tau = temperature(model)
    grid = tau * np.geomspace(0.5, 2, 41)
    values = [slow_log_likelihood(model, model.documents, "documents", value) for value in grid]
    assert abs(int(np.argmax(values)) - 20) <= 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_the_map_maximises_the_penalised_likelihood(side, sigma):
    model = make_model()
    matrix = next(learn_maps(model, side, TAU, [sigma])).matrix
    best = minimize(lambda a: -slow_objective(model, a.reshape(6, 6), side, TAU, sigma), np.zeros(36))
    found, optimum = slow_objective(model, matrix.astype(np.float64), side, TAU, sigma), -best.fun
    start = slow_objective(model, np.zeros((6, 6)), side, TAU, sigma)
    assert optimum > start + 1
    assert found > optimum - 0.02 * (optimum - start)


def test_few_directions_are_enough_where_others_do_not_vary():
    """Directions beyond those that the map can use make no difference where nothing varies along them."""
    model = make_model()
    wide = LabelModel(
        np.pad(model.documents, ((0, 0), (0, 700))),
        np.pad(model.queries, ((0, 0), (0, 700))),
        model.labels,
        model.batches,
    )
    matrix, small = (next(learn_maps(one, "documents", TAU, [0.3])).matrix for one in (wide, model))
    np.testing.assert_allclose(matrix[:6, :6], small, atol=2e-3)
    assert np.abs(matrix[6:]).max() < 1e-4


def test_no_evidence_changes_nothing():
    model = make_model()
    matrix = next(learn_maps(model, "documents", TAU, [1e-4])).matrix
    assert np.abs(matrix).max() < 1e-4


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_maps_keep_lengths_and_types(kind):
    random = np.random.default_rng(0)
    vectors = (random.standard_normal((5000, 4)) * np.geomspace(0.1, 10, 5000)[:, None]).astype(kind)
    matrix = (0.3 * random.standard_normal((4, 4))).astype(np.float32)
    mapped = LinearMap(matrix)(vectors)
    assert mapped.dtype == kind
    exact = vectors + vectors.astype(np.float64) @ matrix
    exact *= (np.linalg.norm(vectors.astype(np.float64), axis=1) / np.linalg.norm(exact, axis=1))[:, None]
    np.testing.assert_allclose(mapped, exact, rtol=2e-3, atol=2e-3)
    assert np.array_equal(LinearMap(np.zeros((4, 4), np.float32))(vectors), vectors)


def test_a_vector_that_is_mapped_to_zero_stays_finite():
    mapped = LinearMap(-np.eye(2, dtype=np.float32))(np.eye(2))
    assert np.array_equal(mapped, np.zeros((2, 2)))


@pytest.mark.parametrize("side", SIDES)
def test_estimated_sums_are_close(side):
    """The candidates of each query and a random sample stand for all documents."""
    model = make_model(n_documents=4000, n_queries=300, dim=8)
    scores = model.queries @ model.documents.T
    best = np.argsort(-scores, axis=1)[:, :8]
    wanted = [np.append(own, model.labels.row[model.labels.query == query]) for query, own in enumerate(best)]
    sample = np.random.default_rng(0).choice(4000, 1000, replace=False)
    estimated = LabelModel(model.documents, model.queries, model.labels, sampled_batches(wanted, sample, 4000))
    vectors = model.documents if side == "documents" else model.queries
    value, _ = model.log_likelihood(vectors, side, TAU)
    assert estimated.log_likelihood(vectors, side, TAU)[0] == pytest.approx(value, rel=0.01)
    assert temperature(estimated) == pytest.approx(temperature(model), rel=0.05)


def test_closeness_tells_labels_from_random_ones():
    model = make_model(n_documents=500, n_queries=200)
    assert closeness(model.documents, model.queries, model.labels) > 5
    random = np.random.default_rng(1)
    strengths = []
    for _ in range(40):
        shuffled = random.permutation(len(model.labels))
        labels = Labels(model.labels.query, model.labels.row[shuffled], model.labels.weight, 200)
        strengths.append(closeness(model.documents, model.queries, labels))
    assert np.abs(strengths).max() < 3.5
