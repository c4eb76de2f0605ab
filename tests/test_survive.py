"""Invalid input raises a typed error that names the row; unusual input gives the right result, never NaN."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from nudgevec import ArrayCorpus, NudgeM, NudgeMN, NudgeN, NudgeNU
from nudgevec.errors import LabelError, NotFittedError, NudgeWarning, OptionError, VectorError

METHODS = [NudgeN, NudgeM, NudgeMN, NudgeNU]


@pytest.fixture
def problem():
    """Return documents, and training and validation queries close to the labelled ones."""
    random = np.random.default_rng(7)
    documents = random.standard_normal((30, 6)).astype(np.float32)
    train = documents[:20] + random.standard_normal((20, 6)).astype(np.float32)
    held = train[:12] + 0.1 * random.standard_normal((12, 6)).astype(np.float32)
    return documents, (train, [[row] for row in range(20)]), (held, [[row] for row in range(12)])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [3, 27], ids=["labelled", "unlabelled"])
def test_nan_and_infinity_in_documents_are_named(problem, method, bad, row):
    documents, train, validation = problem
    documents[row, 2] = bad
    if method is NudgeNU and row == 27:
        # The row is neither scanned nor moved, so it is not read.
        assert row not in method().fit(documents, train, validation).patch_.rows
    else:
        with pytest.raises(VectorError, match=f"row {row} "):
            method().fit(documents, train, validation)


def test_documents_far_longer_than_the_movers_are_named(problem):
    documents, train, validation = (problem[0].astype(np.float64), *problem[1:])
    documents[:20] *= 1e-20
    documents[25] *= 1e12
    with pytest.raises(VectorError, match=r"row 25 is 1e15 times as long .* rescale"):
        NudgeM().fit(documents, train, validation)


@pytest.mark.parametrize("side", [0, 1])
def test_bad_queries_are_named(problem, side):
    documents, *parts = problem
    parts[side][0][4] = np.nan
    with pytest.raises(VectorError, match="row 4 holds NaN"):
        NudgeN().fit(documents, *parts)
    parts[side][0][4] = 0
    with pytest.raises(VectorError, match="row 4 is all zeros"):
        NudgeN().fit(documents, *parts)
    # Vectors are checked before labels.
    parts[side] = parts[side][0], [[-1]] * len(parts[side][0])
    with pytest.raises(VectorError, match="row 4 is all zeros"):
        NudgeN().fit(documents, *parts)


@pytest.mark.parametrize("row", [3, 27], ids=["labelled", "unlabelled"])
def test_zero_documents_are_refused_by_n_and_accepted_by_m(problem, row):
    documents, train, validation = problem
    documents[row] = 0
    with pytest.raises(VectorError, match=f"row {row} is all zeros"):
        NudgeN().fit(documents, train, validation)
    assert np.isfinite(NudgeM().fit(documents, train, validation).transform(documents)).all()


def test_ids_are_named_too(problem):
    documents, train, validation = problem
    ids = [f"doc-{row}" for row in range(30)]
    named = (
        [[ids[row] for row in entry] for entry in train[1]],
        [[ids[row] for row in entry] for entry in validation[1]],
    )
    documents[27, 0] = np.nan
    with pytest.raises(VectorError, match="row 27 \\(id 'doc-27'\\)"):
        NudgeN().fit(ArrayCorpus(documents, ids), (train[0], named[0]), (validation[0], named[1]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", [1.0, 3.0, -1.0, -2.0])
@pytest.mark.parametrize("weight", [1.0, -1.0])
def test_a_query_parallel_or_opposite_to_its_document(method, factor, weight):
    random = np.random.default_rng(3)
    documents = random.standard_normal((8, 4)).astype(np.float32)
    train = (documents[:3] * np.float32(factor), [{row: weight} for row in range(3)])
    validation = (random.standard_normal((5, 4)), [[row] for row in range(5)])
    tuner = method(guard=0).fit(documents, train, validation)
    tuned = tuner.transform(documents)
    assert np.isfinite(tuned).all()
    if method in (NudgeN, NudgeNU):  # the angle to the pull is 0 or 180 degrees, so there is no direction to move in
        assert np.array_equal(tuned, documents)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-7, 1e-3, 1.0, 1e3])
def test_lengths_that_underflow_when_squared(problem, dtype, size):
    documents, train, validation = problem
    unit = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    scaled = (unit * size).astype(dtype)
    scaled[~scaled.any(axis=1), 0] = size
    tuner = NudgeN("capped_recall@1").fit(scaled, train, validation)
    assert tuner.choice_.after > tuner.choice_.before
    assert np.isfinite(tuner.transform(scaled)).all()
    assert tuner.transform(scaled).dtype == dtype


def test_float64_extremes():
    random = np.random.default_rng(0)
    unit = random.standard_normal((6, 3))
    for size in (1e-200, 1e200):
        tuner = NudgeN(gamma=0.2).fit(unit * size, (unit[::-1].copy(), [[row] for row in range(6)]))
        assert np.isfinite(tuner.transform(unit * size)).all()
        judged = (unit[::-1].copy(), [[row] for row in range(6)])
        assert np.isfinite(NudgeN().fit(unit * size, judged, (unit + 0.1, judged[1])).curve_.values).all()


def test_dimension_mismatch_states_both_numbers(problem):
    documents, train, validation = problem
    with pytest.raises(VectorError, match="training queries have 5 dimensions, the documents have 6"):
        NudgeN().fit(documents, (train[0][:, :5], train[1]), validation)
    with pytest.raises(VectorError, match="validation queries have 5"):
        NudgeN().fit(documents, train, (validation[0][:, :5], validation[1]))


@pytest.mark.parametrize("bad", [np.ones(4), np.ones((2, 2, 2)), np.ones((3, 2), int), np.array([["a", "b"]])])
def test_documents_of_a_wrong_type(bad, problem):
    with pytest.raises(VectorError, match="documents must be"):
        NudgeN().fit(bad, *problem[1:])


@pytest.mark.parametrize("label", [30, -1, "x", 1.5, None, (3, 1.0)])
def test_labels_that_are_not_a_row(problem, label):
    documents, train, validation = problem
    train[1][2] = [label]
    with pytest.raises(LabelError, match="training queries: label"):
        NudgeN().fit(documents, train, validation)


@pytest.mark.parametrize(
    "labels", [[[np.uint64(3)], [np.int64(-1)]], [[2**70], [1]], [[[1, 2]], [[3]]], [[True], [False]]]
)
def test_labels_that_numpy_would_convert(problem, labels):
    documents, train, validation = problem
    with pytest.raises(LabelError, match="training queries: label"):
        NudgeN().fit(documents, (train[0][:2], labels), validation)


def test_conflicting_labels_are_named(problem):
    documents, train, validation = problem
    rows, columns, weights = [0, 0, 1, 1], [3, 3, 7, 7], [1.0, 1.0, 2.0, 3.0]
    table = scipy.sparse.csr_matrix((20, 30))
    table.indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=20))]).astype(np.int32)
    table.indices, table.data = np.array(columns, np.int32), np.array(weights)
    with pytest.raises(LabelError, match="query 1 labels row 7 twice, with different weights"):
        NudgeN().fit(documents, (train[0], table), validation)


def test_queries_and_weights_of_any_size(problem):
    documents, train, validation = problem
    reference = NudgeN().fit(documents, train, validation)
    for size in (1e-25, 1e25):
        tuner = NudgeN().fit(documents, (train[0] * np.float32(size), train[1]), validation)
        assert np.array_equal(tuner.patch_.rows, reference.patch_.rows)
        assert tuner.gamma_ == pytest.approx(reference.gamma_, rel=1e-5)
    huge = [dict.fromkeys(entry, 1e308) for entry in train[1]]
    huge[0] = {0: 1e308, 1: 1e308}
    with pytest.raises(LabelError, match="too large to add up"), np.errstate(all="ignore"):
        NudgeN().fit(documents, (train[0] * 1e3, huge), validation)


def test_labels_for_unknown_and_ambiguous_ids(problem):
    documents, train, validation = problem
    ids = [f"doc-{row}" for row in range(30)]
    with pytest.raises(LabelError, match="not in the corpus"):
        NudgeN().fit(ArrayCorpus(documents, ids), train, validation)
    ids[5] = ids[4]
    named = [["doc-4"]] + [[] for _ in range(19)]
    with pytest.raises(LabelError, match="'doc-4' is not unique in the corpus: rows 4 and 5 have it"):
        NudgeN().fit(ArrayCorpus(documents, ids), (train[0], named), (validation[0], [["doc-4"]] * 12))


@pytest.mark.parametrize("labels", [{0: [1]}, 3, "abc", None])
def test_labels_of_a_wrong_type(problem, labels):
    documents, train, validation = problem
    with pytest.raises(LabelError, match="labels must be a list with one entry per query"):
        NudgeN().fit(documents, (train[0], labels), validation)


@pytest.mark.parametrize("bad", ["docs.npy", ["a", "b"], [[1.0], [1.0, 2.0]], None, {"a": 1}])
def test_vectors_of_a_wrong_type(problem, bad):
    with pytest.raises(VectorError, match="documents must be"):
        NudgeN().fit(bad, *problem[1:])


def test_a_range_that_is_not_the_rows_is_ids(problem):
    documents, train, validation = problem
    shifted = (
        [[row + 1 for row in entry] for entry in train[1]],
        [[row + 1 for row in entry] for entry in validation[1]],
    )
    corpus = ArrayCorpus(documents, ids=range(1, 31))
    tuner = NudgeN().fit(corpus, (train[0], shifted[0]), (validation[0], shifted[1]))
    reference = NudgeN().fit(documents, train, validation)
    assert tuner.patch_.ids == [row + 1 for row in reference.patch_.ids]
    assert np.array_equal(tuner.patch_.after, reference.patch_.after)


def test_a_failed_fit_leaves_no_attributes(problem):
    documents, train, validation = problem
    tuner = NudgeN().fit(documents, train, validation)
    with pytest.raises(LabelError):
        tuner.fit(documents, train)
    for name in ("gamma_", "curve_", "choice_", "patch_"):
        with pytest.raises(NotFittedError):
            getattr(tuner, name)


def test_label_counts_and_weights(problem):
    documents, train, validation = problem
    with pytest.raises(LabelError, match="weight None, which is not a number"):
        NudgeN().fit(documents, (train[0], [{0: None}, *train[1][1:]]), validation)
    with pytest.raises(LabelError, match="19 label entries do not match 20 queries"):
        NudgeN().fit(documents, (train[0], train[1][:-1]), validation)
    with pytest.raises(LabelError, match="query 0 has a label with weight nan"):
        NudgeN().fit(documents, (train[0], [{0: np.nan}, *train[1][1:]]), validation)
    with pytest.raises(LabelError, match="not a number"):
        NudgeN().fit(documents, (train[0], [{0: "high"}, *train[1][1:]]), validation)
    with pytest.raises(LabelError, match=r"shape \(20, 29\), expected \(20, 30\)"):
        NudgeN().fit(documents, (train[0], scipy.sparse.csr_matrix((20, 29))), validation)
    with pytest.raises(LabelError, match="pass a pair"):
        NudgeN().fit(documents, train[0], validation)


def test_repeated_labels_count_once(problem):
    documents, train, validation = problem
    plain = NudgeN().fit(documents, train, validation)
    train[1][2] = [2, 2, 2]
    with pytest.warns(NudgeWarning, match="2 repeated labels count once, the first at query 2"):
        repeated = NudgeN().fit(documents, train, validation)
    assert np.array_equal(repeated.patch_.after, plain.patch_.after)


def test_no_labels(problem):
    documents, train, validation = problem
    with pytest.raises(LabelError, match="none of them has a label"):
        NudgeN().fit(documents, (train[0], [[]] * 20), validation)
    with pytest.raises(LabelError, match="pass gamma="):
        NudgeN().fit(documents, train, (validation[0], [[]] * 12))
    with pytest.raises(LabelError, match="pass gamma="):
        NudgeN().fit(documents, train, (validation[0], [{0: -1.0}] * 12))
    with pytest.raises(LabelError, match="pass gamma="):
        NudgeN().fit(documents, train)


def test_queries_without_labels_are_counted(problem):
    documents, train, validation = problem
    train[1][3] = []
    validation[1][5] = {7: 0}
    counts = NudgeN().fit(documents, train, validation).patch_.counts
    assert counts["train_queries_without_labels"] == 1
    assert counts["validation_queries_without_labels"] == 1


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("leaked", [1, 12])
def test_shared_queries_are_warned_about(problem, leaked, unit):
    documents, train, validation = problem
    validation[0][:leaked] = train[0][3 : 3 + leaked]
    if unit:
        for queries in (train[0], validation[0]):
            queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    with pytest.warns(NudgeWarning, match=f"{leaked} of 12 validation queries are training queries too"):
        tuner = NudgeN(guard=0).fit(documents, train, validation)
    assert tuner.patch_.counts["validation_queries_in_train"] == leaked


@pytest.mark.parametrize("method", METHODS)
def test_the_smallest_problems(method):
    one = method(guard=0).fit(np.ones((1, 1)), (np.ones((1, 1)), [[0]]), (2 * np.ones((1, 1)), [[0]]))
    assert np.isfinite(one.transform(np.ones((1, 1)))).all()
    flat = np.array([[1.0], [-1.0], [2.0]])
    tuner = method("ndcg@50", guard=0).fit(flat, (np.array([[1.0]]), [[0, 1, 2]]), (np.array([[2.0]]), [[1]]))
    assert np.isfinite(tuner.transform(flat)).all()


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_a_million_labels_on_one_document(method):
    random = np.random.default_rng(0)
    documents = random.standard_normal((5, 3))
    queries = random.standard_normal((1000, 3)) + 1
    # A thousand queries, each of them a thousand times.
    many = np.tile(queries, (1000, 1)).astype(np.float32)
    tuner = method(gamma=0.5).fit(documents, (many, [[2]] * len(many)))
    once = method(gamma=0.5).fit(documents, (queries.astype(np.float32), [[2]] * 1000))
    assert tuner.patch_.labels.tolist() == [1_000_000]
    np.testing.assert_allclose(tuner.patch_.after, once.patch_.after, rtol=1e-9)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_a_corpus_of_duplicates(method):
    documents = np.ones((50, 4), np.float32)
    judged = (np.eye(4, dtype=np.float32) + 0.1, [[0], [1], [2], [3]])
    held = (np.eye(4, dtype=np.float32) + 0.2, [[0], [1], [2], [3]])
    tuner = method("capped_recall@1").fit(documents, judged, held)
    assert tuner.choice_.before == 0  # the labelled documents are tied with 49 others
    assert tuner.choice_.after == 1
    assert np.array_equal(tuner.transform(documents)[4:], documents[4:])


@pytest.mark.parametrize(
    "option",
    [
        {"gamma": -1},
        {"gamma": 4.1},
        {"gamma": np.nan},
        {"gamma": "auto"},
        {"guard": -1},
        {"guard": None},
        {"metric": "x@1"},
        {"engine": "cuda"},
    ],
)
def test_options_out_of_range(problem, option):
    with pytest.raises(OptionError):
        NudgeN(**option).fit(*problem)


def test_a_step_that_overflows_the_type(problem):
    documents, train, validation = problem
    with pytest.raises(VectorError, match="would not fit into float16"):
        NudgeM(gamma=1e6).fit(documents.astype(np.float16), train, validation)


@pytest.mark.parametrize("seed", range(20))
def test_a_step_is_chosen_among_those_that_fit_the_type(seed):
    """Old vectors are large, so that the best step may be out of the range of float16; another one is taken then."""
    random = np.random.default_rng(seed)
    documents = (1e4 * random.standard_normal((40, 4))).astype(np.float16)
    queries, labels = random.standard_normal((60, 4)), random.integers(0, 40, (60, 1)).tolist()
    tuner = NudgeM("recall@3", guard=0).fit(documents, (queries[:40], labels[:40]), (queries[40:], labels[40:]))
    assert np.isfinite(tuner.patch_.after).all()
    in_float64 = documents.astype(np.float64)
    wide = NudgeM("recall@3", guard=0).fit(in_float64, (queries[:40], labels[:40]), (queries[40:], labels[40:]))
    curve = wide.curve_
    unit_step = NudgeM(gamma=1.0).fit(in_float64, (queries[:40], labels[:40])).patch_
    for gamma in np.geomspace(1e2, 1e6, 100):
        moved = unit_step.before + 1.05 * gamma * (unit_step.after - unit_step.before)
        is_wide = np.ptp(curve(gamma * np.linspace(0.95, 1.05, 101))) == 0
        if is_wide and np.abs(moved).max() < np.finfo(np.float16).max:
            assert tuner.choice_.after >= curve(gamma)


@pytest.mark.parametrize("method", [NudgeM, NudgeMN])
@pytest.mark.parametrize("seed", [28, 56, 87, 88])
def test_a_step_is_chosen_among_those_that_fit_the_type_after_refit(seed, method):
    """The validation labels pull documents elsewhere, where the same step may be out of the range of float16."""
    random = np.random.default_rng(seed)
    for _ in range(20):
        documents = random.choice([1e4, 2e4]) * random.standard_normal((40, 4)).clip(-3, 3)
        queries, labels = random.standard_normal((60, 4)), random.integers(0, 40, (60, 1)).tolist()
        tuner = method("recall@3", guard=0, refit=True)
        tuner.fit(documents.astype(np.float16), (queries[:40], labels[:40]), (queries[40:], labels[40:]))
        assert np.isfinite(tuner.patch_.after).all()


@pytest.mark.parametrize("angle", np.geomspace(2e-6, 2e-3, 7))
def test_copies_opposite_to_their_pull_are_not_told_apart_by_rounding(angle):
    """Rotated by half a turn, copies of one document of different lengths differ by the rounding of their tangents."""
    random = np.random.default_rng(0)
    for _ in range(50):
        document = random.standard_normal(8)
        document /= np.linalg.norm(document)
        aside = random.standard_normal(8)
        aside -= aside @ document * document
        query = np.cos(angle) * document + np.sin(angle) * aside / np.linalg.norm(aside)
        copies = np.stack([document, 3 * document, document / 7])
        # All copies are pushed away from a query that they almost point to.
        train = query[None], [dict.fromkeys(range(3), -1.0)]
        moved = NudgeN(gamma=2.0).fit(copies, train).transform(copies)
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        assert np.abs(moved - moved[0]).max() < 1e-12


def test_not_fitted():
    with pytest.raises(NotFittedError, match="call fit first"):
        NudgeN().transform(np.eye(2))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_written_into_the_callers_arrays(problem, method):
    arrays = [problem[0], problem[1][0], problem[2][0]]
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    tuned = method().fit(*problem).transform(problem[0])
    for array, copy in zip(arrays, copies, strict=True):
        assert np.array_equal(array, copy)
    assert not np.shares_memory(tuned, problem[0])
    assert tuned.flags.writeable


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
def test_no_validation_queries_at_all(method):
    documents = np.eye(5)
    train = (documents[:2], [[1], [2]])
    with pytest.raises(LabelError, match="no gamma can be chosen; hold some labelled queries out, or pass gamma="):
        method().fit(documents, train, (np.empty((0, documents.shape[1])), []))


def test_rows_out_of_range_are_named():
    with pytest.raises(IndexError, match="there is no row 9: the rows of these documents are 0 to 4"):
        ArrayCorpus(np.eye(5)).take([1, 9])


def test_grade_matrices_of_every_library(problem):
    """A frame or tensor of grades is a matrix, not its column names or its numbers as rows."""
    documents, train, validation = problem
    grades = np.zeros((len(train[0]), len(documents)))
    for query, (row,) in enumerate(train[1]):
        grades[query, row] = 2.0
    expected = NudgeN(guard=0).fit(documents, (train[0], grades), validation)
    for form in (pd.DataFrame(grades), torch.tensor(grades), torch.tensor(grades, dtype=torch.int64)):
        assert NudgeN(guard=0).fit(documents, (train[0], form), validation).gamma_ == expected.gamma_
    for wrong in (grades[:, :-1], grades.T, pd.DataFrame(grades[:, 1:]), torch.tensor(grades[:, 1:]).to_sparse()):
        with pytest.raises(LabelError, match=r"shape|entries do not match"):
            NudgeN().fit(documents, (train[0], wrong), validation)


def test_vectors_that_are_too_long_for_float64(problem):
    documents, train, validation = (problem[0].astype(np.float64), *problem[1:])
    documents[25] = 1.7e308
    with pytest.raises(VectorError, match="row 25 is too long for float64"):
        NudgeN().fit(documents, train, validation)
    with pytest.raises(VectorError, match=r"row 0 holds numbers above 1e\+150"):
        NudgeN().fit(problem[0], (np.full((1, 6), 1.7e308), [[0]]), validation)


def test_a_corpus_of_whole_numbers_is_refused(problem):
    documents, train, validation = problem

    class Whole:
        ids, dim = range(len(documents)), documents.shape[1]

        def take(self, ids):
            return np.ones((len(ids), self.dim), np.int8)

        def blocks(self):
            yield self.ids, np.ones((len(documents), self.dim), np.int8)

    with pytest.raises(VectorError, match="must be float16, float32 or float64, not int8"):
        NudgeN().fit(Whole(), train, validation)


def test_a_very_long_step_of_m_is_exact(problem):
    documents, train, _ = problem
    tuner = NudgeM(gamma=1e20).fit(documents.astype(np.float64), train)
    moved = np.linalg.norm(tuner.patch_.after - tuner.patch_.before, axis=1)
    np.testing.assert_allclose(moved, 1e20, rtol=1e-12)


def test_float16_gaps_that_cannot_be_resolved_are_skipped():
    """A step within the rounding of float16 would change nothing, or something else."""
    random = np.random.default_rng(0)
    for seed in range(10):
        random = np.random.default_rng(seed)
        documents = (1 + 1e-3 * random.standard_normal((60, 16))).astype(np.float16)
        queries = 1 + 1e-3 * random.standard_normal((80, 16))
        labels = random.integers(0, 60, (80, 1)).tolist()
        tuner = NudgeN("mrr@5", guard=0).fit(documents, (queries[:50], labels[:50]), (queries[50:], labels[50:]))
        assert tuner.gamma_ == 0 or tuner.gamma_ > 1e-7
        assert (tuner.gamma_ > 0) == (len(tuner.patch_) > 0)
