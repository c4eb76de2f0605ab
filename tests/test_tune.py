"""What the tuners promise: the same answer for every way of holding the data, and the options."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.base import clone

from nudgevec import ArrayCorpus, NudgeM, NudgeMN, NudgeN, NudgeNU, evaluate
from nudgevec.engines.torch import TorchEngine
from nudgevec.errors import NotFittedError, NudgeWarning, OptionError
from problems import learnable


@pytest.fixture(scope="module")
def problem():
    return learnable()


def same(one, other):
    assert one.gamma_ == other.gamma_
    assert np.array_equal(one.curve_.edges, other.curve_.edges)
    assert np.array_equal(one.curve_.values, other.curve_.values)
    assert np.array_equal(one.patch_.rows, other.patch_.rows)
    assert np.array_equal(one.patch_.after, other.patch_.after)


@pytest.mark.parametrize("method", [NudgeN, NudgeM, NudgeMN, NudgeNU])
def test_unseen_queries_get_better(problem, method):
    documents, train, validation, test = problem
    tuner = method().fit(documents, train, validation)
    before = evaluate(documents, *test, ["ndcg@10"], similarity=tuner.similarity)["ndcg@10"]
    after = evaluate(tuner.transform(documents), *test, ["ndcg@10"], similarity=tuner.similarity)["ndcg@10"]
    assert after.low > before.high


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["recall@1", "capped_recall@10", "success@3", "mrr@10", "ndcg@10"])
def test_the_curve_is_what_evaluate_measures(problem, method, metric):
    documents, train, validation, _ = problem
    tuner = method(metric).fit(documents, train, validation)
    measured = evaluate(tuner.transform(documents), *validation, [metric], similarity=tuner.similarity)
    assert tuner.choice_.after == pytest.approx(measured[metric].mean, abs=1e-9)
    untuned = evaluate(documents, *validation, [metric], similarity=tuner.similarity)
    assert tuner.curve_(0) == tuner.choice_.before == pytest.approx(untuned[metric].mean, abs=1e-9)
    for gamma in (0.01, 0.1, 0.5):
        fixed = method(gamma=gamma).fit(documents, train)
        measured = evaluate(fixed.transform(documents), *validation, [metric], similarity=tuner.similarity)
        assert tuner.curve_(gamma) == pytest.approx(measured[metric].mean, abs=1e-9)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("metric", ["recall@5", "mrr@10", "ndcg@10"])
def test_the_curve_of_every_query_is_what_evaluate_measures(problem, method, metric):
    documents, train, validation, test = problem
    tuner = method(metric).fit(documents, train, validation, test)
    for curves, part in ((tuner.query_curves_, validation), (tuner.test_.query_curves, test)):
        for gamma in (0.0, 0.03, 0.4, tuner.gamma_):
            moved = method(gamma=gamma).fit(documents, train).transform(documents)
            measured = evaluate(moved, *part, [metric], similarity=tuner.similarity)[metric].per_query
            assert curves(gamma) == pytest.approx(measured, abs=1e-9)
    inside = (tuner.curve_.edges[:-1] + np.minimum(tuner.curve_.edges[1:], 1e6)) / 2
    assert [tuner.query_curves_(gamma).mean() for gamma in inside] == pytest.approx(tuner.curve_(inside), abs=1e-12)


@pytest.mark.parametrize("method", [NudgeN, NudgeM, NudgeMN, NudgeNU])
def test_scikit_learn_can_clone_tuners(problem, method):
    tuner = method("mrr@5", guard=0.5, refit=True).fit(*problem[:3])
    copy = clone(tuner)
    assert copy.get_params() == tuner.get_params() == method("mrr@5", guard=0.5, refit=True).get_params()
    with pytest.raises(NotFittedError):
        _ = copy.gamma_
    assert copy.set_params(guard=2.0).guard == 2.0
    with pytest.raises(OptionError, match="has no option 'guards'"):
        copy.set_params(guards=2.0)


def test_scikit_learn_can_clone_tuners_with_an_engine_of_their_own():
    assert isinstance(clone(NudgeN(engine=TorchEngine("cpu"))).engine, TorchEngine)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_same_answer_however_the_documents_are_held(problem, method, tmp_path):
    documents, train, validation, _ = problem
    reference = method().fit(documents, train, validation)
    np.save(tmp_path / "documents.npy", documents)
    held = {
        "Fortran": np.asfortranarray(documents),
        "strided": np.repeat(documents, 2, axis=0)[::2],
        "mapped": np.load(tmp_path / "documents.npy", mmap_mode="r"),
        "mapped copy-on-write": np.load(tmp_path / "documents.npy", mmap_mode="c"),
        "float64": documents.astype(np.float64),
        "big-endian": documents.astype(">f4"),
        "blocks of 1": ArrayCorpus(documents, block_rows=1),
        "blocks of 7": ArrayCorpus(documents, block_rows=7),
        "one block": ArrayCorpus(documents, block_rows=10**6),
    }
    for name, form in held.items():
        tuner = method().fit(form, train, validation)
        assert np.array_equal(reference.curve_.edges, tuner.curve_.edges), name
        assert reference.gamma_ == tuner.gamma_, name
        assert np.array_equal(tuner.transform(form)[400 // 4 :], documents[400 // 4 :]), name
        if name != "float64":
            same(reference, tuner)


def test_float16_documents_keep_their_type(problem):
    documents, train, validation, _ = problem
    half = documents.astype(np.float16)
    tuner = NudgeN().fit(half, train, validation)
    assert tuner.transform(half).dtype == np.float16
    same(tuner, NudgeN().fit(half, train, validation))


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_same_answer_for_every_form_of_labels(problem, method):
    documents, train, validation, _ = problem
    reference = method().fit(documents, train, validation)
    ids = [f"doc-{row}" for row in range(len(documents))]

    def sparse(labels):
        rows = [entry[0] for entry in labels]
        return scipy.sparse.csr_matrix((np.ones(len(rows)), (range(len(rows)), rows)), (len(rows), len(documents)))

    def tensor(labels):
        return torch.tensor(sparse(labels).toarray())

    forms = [
        (documents, lambda labels: [entry[0] for entry in labels]),
        (documents, lambda labels: np.array(labels)),
        (documents, lambda labels: torch.tensor(labels)),
        (documents, lambda labels: [list(entry) for entry in torch.tensor(labels)]),
        (documents, lambda labels: [list(entry) for entry in pa.array(labels)]),
        (documents, lambda labels: [{entry[0]: 1} for entry in labels]),
        (documents, lambda labels: [{entry[0]: torch.tensor(1.0)} for entry in labels]),
        (documents, lambda labels: [{entry[0]: np.array(1.0)} for entry in labels]),
        (documents, lambda labels: tensor(labels).to_sparse()),
        (documents, lambda labels: tensor(labels).bfloat16()),
        (documents, lambda labels: [{entry[0]} for entry in labels]),
        (documents, sparse),
        (documents, lambda labels: sparse(labels).toarray()),
        (documents, lambda labels: sparse(labels).toarray().astype(bool)),
        (ArrayCorpus(documents, ids), lambda labels: [[ids[entry[0]]] for entry in labels]),
        (ArrayCorpus(documents, ids), lambda labels: [ids[entry[0]] for entry in labels]),
    ]
    for corpus, form in forms:
        same(reference, method().fit(corpus, (train[0], form(train[1])), (validation[0], form(validation[1]))))


def test_ids_travel_with_the_patch(problem):
    documents, train, validation, _ = problem
    order = np.random.default_rng(1).permutation(len(documents))
    ids = [f"doc-{row}" for row in order]
    named = [[f"doc-{entry[0]}"] for entry in train[1]], [[f"doc-{entry[0]}"] for entry in validation[1]]
    corpus = ArrayCorpus(documents[order], ids)
    tuner = NudgeN().fit(corpus, (train[0], named[0]), (validation[0], named[1]))
    reference = NudgeN().fit(documents, train, validation)
    moved = dict(zip(tuner.patch_.ids, tuner.patch_.after, strict=True))
    for row, after in zip(reference.patch_.rows, reference.patch_.after, strict=True):
        assert np.array_equal(moved[f"doc-{row}"], after)
    # The same ids in another order: rows go by id, not by position.
    turned = tuner.patch_.apply(ArrayCorpus(documents, [f"doc-{row}" for row in range(len(documents))]))
    assert np.array_equal(turned, reference.transform(documents))
    assert list(turned.ids) == [f"doc-{row}" for row in range(len(documents))]


def test_any_object_with_the_corpus_interface(problem):
    documents, train, validation, _ = problem

    class Shelf:
        def __init__(self):
            self.ids = [f"doc-{row}" for row in range(len(documents))]
            self.dim = documents.shape[1]

        def take(self, ids):
            return np.stack([documents[int(key[4:])] for key in ids])

        def blocks(self):
            for start in range(0, len(documents), 37):
                yield self.ids[start : start + 37], documents[start : start + 37]

    def names(part):
        return part[0], [[f"doc-{entry[0]}"] for entry in part[1]]

    tuner = NudgeN().fit(Shelf(), names(train), names(validation))
    reference = NudgeN().fit(documents, train, validation)
    same(reference, tuner)
    assert np.array_equal(tuner.transform(Shelf()), reference.transform(documents))


def test_n_keeps_lengths_and_m_steps_by_gamma(problem):
    documents, train, validation, _ = problem
    lengths = np.random.default_rng(0).uniform(0.5, 3, (len(documents), 1)).astype(np.float32)
    tuner = NudgeN().fit(documents * lengths, train, validation)
    tuned = tuner.transform(documents * lengths)
    np.testing.assert_allclose(np.linalg.norm(tuned, axis=1), lengths[:, 0], rtol=1e-5)
    assert tuner.gamma_ == pytest.approx(NudgeN().fit(documents, train, validation).gamma_, rel=1e-4)

    tuner = NudgeM().fit(documents * lengths, train, validation)
    steps = np.linalg.norm(tuner.patch_.after - tuner.patch_.before, axis=1)
    np.testing.assert_allclose(steps, tuner.gamma_, rtol=1e-4)


def test_n_is_bounded_as_the_paper_says(problem):
    documents, train, validation, _ = problem
    tuner = NudgeN().fit(documents, train, validation)
    step = ((tuner.patch_.after - tuner.patch_.before).astype(np.float64) ** 2).sum(axis=1)
    assert (step <= tuner.gamma_ * (1 + 1e-5)).all()
    assert step.max() == pytest.approx(tuner.gamma_, rel=1e-4)


def test_negative_labels_push_away(problem):
    documents, *_ = problem
    query = documents[:1] + 0.5 * documents[1:2]
    liked = NudgeN(gamma=0.1).fit(documents, (query, [{0: 1.0}])).transform(documents)
    disliked = NudgeN(gamma=0.1).fit(documents, (query, [{0: -1.0}])).transform(documents)
    score = [float(query[0] @ version[0]) for version in (disliked, documents, liked)]
    assert score == sorted(score)
    np.testing.assert_allclose(np.linalg.norm(disliked[0]), 1, rtol=1e-5)
    # Away along the same great circle: the three lie in one plane, at equal angles.
    np.testing.assert_allclose(
        liked[0] + disliked[0], 2 * math.cos(2 * math.asin(math.sqrt(0.1) / 2)) * documents[0], atol=1e-5
    )


def test_a_pull_that_points_away_leaves_n_alone_and_moves_m(problem):
    documents, *_ = problem
    query = -documents[:1] + 0.3 * documents[1:2]
    assert len(NudgeN(gamma=0.1).fit(documents, (query, [[0]])).patch_) == 0
    assert len(NudgeM(gamma=0.1).fit(documents, (query, [[0]])).patch_) == 1


def test_refit_uses_validation_labels_too(problem):
    documents, train, validation, _ = problem
    plain = NudgeN().fit(documents, train, validation)
    again = NudgeN(refit=True).fit(documents, train, validation)
    assert again.gamma_ == plain.gamma_
    both = np.concatenate([train[0], validation[0]]), train[1] + validation[1]
    fixed = NudgeN(gamma=plain.gamma_).fit(documents, both)
    assert np.array_equal(again.patch_.after, fixed.patch_.after)
    assert not np.array_equal(again.patch_.after, plain.patch_.after)


def test_a_second_fit_starts_afresh(problem):
    documents, train, validation, _ = problem
    other = learnable(seed=5)
    tuner = NudgeN().fit(*other[:3])
    tuner.fit(documents, train, validation)
    same(tuner, NudgeN().fit(documents, train, validation))
    tuner.gamma = 0.1
    assert tuner.fit(documents, train).curve_ is None


def test_nu_goes_all_the_way(problem):
    documents, train, *_ = problem
    tuner = NudgeNU().fit(documents, train)
    pull = np.zeros_like(documents, dtype=np.float64)
    for query, (row,) in zip(train[0], train[1], strict=True):
        pull[row] += query
    rows = tuner.patch_.rows
    expected = pull[rows] / np.linalg.norm(pull[rows], axis=1, keepdims=True)
    np.testing.assert_allclose(tuner.patch_.after, expected, atol=1e-6)


def test_mn_is_m_normalised(problem):
    documents, train, validation, _ = problem
    m, mn = (method().fit(documents, train, validation) for method in (NudgeM, NudgeMN))
    assert m.gamma_ == mn.gamma_
    expected = m.patch_.after / np.linalg.norm(m.patch_.after, axis=1, keepdims=True)
    np.testing.assert_allclose(mn.patch_.after, expected, atol=1e-6)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_the_guard_refuses_what_chance_could_do(method):
    """Labels that mean nothing: the best plateau still looks a little better than gamma = 0."""
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(20):
        documents = random.standard_normal((60, 8))
        train = random.standard_normal((40, 8)), random.integers(0, 60, (40, 1)).tolist()
        held = random.standard_normal((30, 8)), random.integers(0, 60, (30, 1)).tolist()
        plain = method("success@1", guard=0).fit(documents, train, held)
        assert plain.choice_.after == plain.curve_.best
        if plain.gamma_ > 0 and plain.choice_.evidence <= 1:
            with pytest.warns(NudgeWarning, match="nothing moves: gamma .* chance could do that"):
                guarded = method("success@1").fit(documents, train, held)
            assert guarded.gamma_ == 0
            assert len(guarded.patch_) == 0
            refused += 1
        else:
            assert method("success@1").fit(documents, train, held).gamma_ == plain.gamma_
    assert refused > 0  # the guard had something to do


def test_one_lucky_query_is_no_reason_to_move():
    documents = np.eye(3)
    train = np.array([[0.6, 0.8, 0.0]]), [[0]]
    held = np.array([[0.6, 0.7, 0.1], [0.0, 0.0, 1.0]]), [[0], [2]]
    assert NudgeN("success@1", guard=0).fit(documents, train, held).gamma_ > 0
    with pytest.warns(NudgeWarning, match="evidence 1.00, guard 1"):
        assert NudgeN("success@1").fit(documents, train, held).gamma_ == 0


@pytest.mark.parametrize("size", [1e-13, 1e-8, 1e8])
@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_units_do_not_matter(problem, method, size):
    documents, train, validation, _ = problem
    plain = method().fit(documents.astype(np.float64), train, validation)
    scaled = method().fit(documents.astype(np.float64) * size, train, validation)
    assert scaled.curve_.at_zero == plain.curve_.at_zero
    assert scaled.curve_.best == plain.curve_.best
    assert len(scaled.curve_.values) == len(plain.curve_.values)
    assert scaled.gamma_ == pytest.approx(plain.gamma_ * (size if method is NudgeM else 1), rel=1e-6)


@pytest.mark.parametrize("row", [0, 399], ids=["moving", "still"])
def test_one_very_long_document(problem, row):
    documents, train, validation, _ = problem
    documents = documents.astype(np.float64)
    documents[row] *= 1e6
    tuner = NudgeM().fit(documents, train, validation)
    fixed = NudgeM(gamma=tuner.gamma_).fit(documents, train)
    measured = evaluate(fixed.transform(documents), *validation, "ndcg@10", similarity="dot")["ndcg@10"].mean
    assert tuner.choice_.after == pytest.approx(measured, abs=1e-9)


def arrow_table(columns):
    if not isinstance(columns, dict):
        columns = {str(number): column for number, column in enumerate(columns.T)}
    return pa.table(columns)


FRAMES = {
    "pandas": (pd.DataFrame, pd.Series, lambda vectors: pd.Series(list(vectors))),
    "pyarrow": (
        arrow_table,
        lambda values: pa.chunked_array([values[:7], values[7:]]),
        lambda vectors: pa.chunked_array([pa.array(vectors.tolist(), pa.list_(pa.float32(), vectors.shape[1]))]),
    ),
    "polars": (pl.DataFrame, pl.Series, lambda vectors: pl.Series(vectors.tolist(), dtype=pl.List(pl.Float32))),
    "polars arrays": (
        pl.DataFrame,
        pl.Series,
        lambda vectors: pl.Series(vectors.tolist(), dtype=pl.Array(pl.Float32, vectors.shape[1])),
    ),
}


@pytest.mark.parametrize(("frame", "column", "vector_column"), FRAMES.values(), ids=FRAMES)
def test_data_frames_and_columns(problem, frame, column, vector_column):
    documents, train, validation, _ = problem
    plain = NudgeN().fit(documents, train, validation)
    keys = [f"doc-{row}" for row in range(len(documents))]

    def in_frame(values):
        return frame({"column": column(values)})

    def labelled(part, make, make_column):
        return make(part[0]), make_column([[keys[row] for row in entry] for entry in part[1]])

    for make in (frame, vector_column, lambda vectors: frame({"vector": vector_column(vectors)})):
        for make_column in (column, in_frame):
            corpus = ArrayCorpus(make(documents), make_column(keys))
            tuner = NudgeN().fit(corpus, labelled(train, make, make_column), labelled(validation, make, make_column))
            same(plain, tuner)
            assert tuner.patch_.ids == [keys[row] for row in tuner.patch_.rows]


def test_ids_of_every_library():
    vectors, keys = np.eye(4), [7, 5, 6, 9]
    for make in (list, np.array, torch.tensor, pd.Series, pl.Series, pa.array, lambda ids: pa.chunked_array([ids])):
        corpus = ArrayCorpus(vectors, make(keys))
        assert list(corpus.ids) == keys
        assert np.array_equal(corpus.take(make([6, 7])), vectors[[2, 0]])
        patch = NudgeN(gamma=0.1).fit(corpus, (vectors[:1] + vectors[1:2], [make([5])])).patch_
        assert patch.ids == [5]


def test_ids_go_by_position_not_by_label(problem):
    """A pandas Series looks up by its index, which a shuffle leaves in another order."""
    documents, train, validation, _ = problem
    ids = pd.Series([f"doc-{row}" for row in range(len(documents))], index=range(len(documents))[::-1])

    def names(part):
        return part[0], [[f"doc-{entry[0]}"] for entry in part[1]]

    tuner = NudgeN().fit(ArrayCorpus(documents, ids), names(train), names(validation))
    same(NudgeN().fit(documents, train, validation), tuner)
    assert tuner.patch_.ids == [f"doc-{row}" for row in tuner.patch_.rows]


def test_reprs_are_one_line(problem):
    tuner = NudgeN()
    assert repr(tuner) == "NudgeN(metric='ndcg@10', gamma=None, guard=1.0, refit=False): not fitted"
    documents, train, validation, _ = problem
    tuner.fit(documents, train, validation)
    for thing in (tuner, tuner.curve_, tuner.patch_, tuner.choice_):
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 250


def test_labels_that_change_places_at_a_round_angle():
    """Two labels swap at gamma 1: nothing is gained or lost, but at that very step they are tied."""
    documents = np.array([[1.0], [-1.0], [2.0], [1.0]])
    train = np.array([[1.0]]), [{0: 1.0}]
    validation = np.array([[2.0]]), [{0: 1.0, 2: 1.0}]
    tuner = NudgeM("ndcg@2", guard=0).fit(documents, train, validation)
    assert tuner.gamma_ > 0
    assert abs(tuner.gamma_ - 1) > 1e-3
