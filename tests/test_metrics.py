"""Metrics and ``evaluate`` equal trec_eval's, ties included."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import pytrec_eval

from nudgevec import ArrayCorpus, NudgeN, compare, evaluate
from nudgevec.errors import OptionError, VectorError
from nudgevec.evaluation import compare_all
from nudgevec.metrics import Metric
from problems import learnable

TREC = {"recall@{k}": "recall_{k}", "ndcg@{k}": "ndcg_cut_{k}", "success@{k}": "success_{k}"}


def judged(seed, tied):
    """Documents whose scores float32 (trec_eval's type) holds exactly, with or without many ties."""
    random = np.random.default_rng(seed)
    documents = random.integers(0, 3 if tied else 2**20, (40, 1)).astype(np.float64)
    documents = np.concatenate([documents, np.ones((40, 1))], axis=1)
    queries = np.array([[1.0, 0.0]] * 25)
    ids = [f"d{number}" for number in range(40)]
    grades = [
        {ids[row]: int(random.integers(0, 4)) for row in random.choice(40, random.integers(1, 9), replace=False)}
        for _ in queries
    ]
    for entry in grades:
        entry[ids[0]] = 2
    return documents, queries, ids, grades


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 5, 10, 100])
@pytest.mark.parametrize("seed", range(3))
def test_evaluate_equals_trec_eval(seed, k, tied):
    documents, queries, ids, grades = judged(seed, tied)
    metrics = [ours.format(k=k) for ours in TREC] + ["mrr@40"]
    result = evaluate(ArrayCorpus(documents, ids), queries, grades, metrics)

    run = {str(q): {key: float(vector[0]) for key, vector in zip(ids, documents, strict=True)} for q in range(25)}
    qrel = {str(q): entry for q, entry in enumerate(grades)}
    wanted = {f"{name.format(k='')[:-1]}.{k}" for name in TREC.values()} | {"recip_rank"}
    reference = pytrec_eval.RelevanceEvaluator(qrel, wanted).evaluate(run)
    for ours, theirs in [*TREC.items(), ("mrr@40", "recip_rank")]:
        expected = [reference[str(q)][theirs.format(k=k)] for q in range(25)]
        np.testing.assert_allclose(result[ours.format(k=k)].per_query, expected, atol=1e-12)


def test_the_length_of_a_query_breaks_no_tie():
    """Dividing the query by its length could round two equal scores apart."""
    documents = ArrayCorpus(np.array([[2.0, -1, -2], [3, -2, -1]]), ["a", "b"])
    result = evaluate(documents, np.array([[1.0, 2, 1]]), [["b"]], ["mrr@2"], similarity="dot")
    assert result["mrr@2"].mean == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_ties_of_integer_vectors_equal_trec_eval(seed):
    random = np.random.default_rng(seed)
    documents, queries = random.integers(-3, 4, (12, 3)), random.integers(-3, 4, (40, 3))
    queries[~queries.any(axis=1)] = 1
    ids = [f"d{number}" for number in range(12)]
    labels = [{ids[row]: 1} for row in random.integers(0, 12, 40)]
    result = evaluate(ArrayCorpus(documents.astype(float), ids), queries.astype(float), labels, similarity="dot")
    run = {
        str(q): dict(zip(ids, (documents @ query).astype(float).tolist(), strict=True))
        for q, query in enumerate(queries)
    }
    qrel = {str(q): entry for q, entry in enumerate(labels)}
    reference = pytrec_eval.RelevanceEvaluator(qrel, {"ndcg_cut.10", "recall.10"}).evaluate(run)
    for ours, theirs in (("ndcg@10", "ndcg_cut_10"), ("recall@10", "recall_10")):
        np.testing.assert_allclose(result[ours].per_query, [reference[str(q)][theirs] for q in range(40)], atol=1e-12)


def test_capped_recall_is_hits_over_the_smaller_of_answers_and_k():
    documents = np.diag([4.0, 3.0, 2.0, 1.0])
    result = evaluate(documents, np.ones((1, 4)), [[0, 2, 3]], ["capped_recall@2", "recall@2"], similarity="dot")
    assert result["capped_recall@2"].mean == pytest.approx(1 / 2)
    assert result["recall@2"].mean == pytest.approx(1 / 3)


def test_a_cutoff_beyond_the_corpus_is_fine():
    result = evaluate(np.eye(3), np.ones((1, 3)) + np.eye(3)[:1], [[2]], ["recall@100", "ndcg@100"])
    assert result["recall@100"].mean == 1.0


def test_queries_without_relevant_labels_are_counted_and_left_out():
    result = evaluate(np.eye(2), np.eye(2)[[0, 1, 0]], [[0], [], {1: -1.0}], ["mrr@2"])
    assert result.without_labels == 2
    assert result.query.tolist() == [0]
    assert result["mrr@2"].per_query.tolist() == [1.0]


def test_cosine_and_dot_differ_where_lengths_do():
    documents = np.array([[10.0, 10.0], [1.0, 0.0]])
    query, labels = np.array([[1.0, 0.0]]), [[1]]
    assert evaluate(documents, query, labels, ["success@1"], similarity="dot")["success@1"].mean == 0
    assert evaluate(documents, query, labels, ["success@1"], similarity="cosine")["success@1"].mean == 1


def test_interval_covers_the_mean_and_is_repeatable():
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((50, 8)), random.standard_normal((200, 8))
    labels = random.integers(0, 50, (200, 1)).tolist()
    one, two = (evaluate(documents, queries, labels, ["ndcg@10"])["ndcg@10"] for _ in range(2))
    assert one.low < one.mean < one.high
    assert (one.low, one.high) == (two.low, two.high)
    # The normal approximation of the same interval.
    assert (one.high - one.low) / 2 == pytest.approx(1.96 * one.per_query.std() / np.sqrt(200), rel=0.1)


def test_compare_counts_wins_and_tests_them():
    query, labels = np.eye(4)[[0, 1, 2, 3] * 5], [[row] for row in [0, 1, 2, 3] * 5]
    right = evaluate(np.eye(4), query, labels, ["success@1"])
    wrong = evaluate(np.eye(4)[[1, 0, 3, 2]], query, labels, ["success@1"])
    total = compare(wrong, right)
    assert (total.wins, total.losses, total.ties) == (20, 0, 0)
    assert total.change == total.low == total.high == 1.0
    assert total.p_value < 0.001
    same = compare(right, right)
    assert (same.wins, same.losses, same.p_value) == (0, 0, 1.0)
    few = evaluate(np.eye(4)[[1, 0, 3, 2]], query[:3], labels[:3], ["success@1"])
    assert compare(few, evaluate(np.eye(4), query[:3], labels[:3], ["success@1"])).p_value == 2 / 8  # exact


def test_several_metrics_at_once_are_each_by_itself():
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((2, 50, 8)), random.standard_normal((200, 8))
    labels = random.integers(0, 50, (200, 1)).tolist()
    names = ["ndcg@10", "mrr@5", "recall@3"]
    before, after = (evaluate(each, queries, labels, names) for each in documents)
    for name, both in compare_all(before, after).items():
        alone = [evaluate(each, queries, labels, name) for each in documents]
        assert asdict(compare(*alone)) == pytest.approx(asdict(both), rel=1e-12)
        assert (alone[0][name].low, alone[0][name].high) == pytest.approx((before[name].low, before[name].high))
    assert len({both.low for both in compare_all(before, after).values()}) == 3


def test_compare_refuses_what_cannot_be_paired():
    one = evaluate(np.eye(2), np.eye(2), [[0], [1]], ["mrr@1"])
    for queries, labels in ((np.eye(2), [[0], []]), (np.eye(2), [[1], [0]]), (np.eye(2)[::-1], [[0], [1]])):
        with pytest.raises(OptionError, match="different queries or labels"):
            compare(one, evaluate(np.eye(2), queries, labels, ["mrr@1"]))
    with pytest.raises(OptionError, match="two results of evaluate"):
        compare(np.eye(2), np.eye(2))
    with pytest.raises(OptionError, match="ndcg@10"):
        compare(one, one, "ndcg@10")


@pytest.mark.parametrize(
    "text", ["ndcg", "ndcg@0", "ndcg@-1", "ndcg@ten", "map@10", "", "@10", "recall@1.5", "recall@" + 5000 * "1"]
)
def test_unknown_metrics_are_named(text):
    with pytest.raises(OptionError, match="unknown metric"):
        Metric.parse(text)


def test_one_metric_may_be_a_string_in_any_case():
    result = evaluate(np.eye(2), np.eye(2), [[0], [1]], "MRR@2")
    assert result["MRR@2"].mean == result["mrr@2"].mean == 1.0
    assert repr(result) == "Evaluation of 2 queries: mrr@2 1.0000 (1.0000 to 1.0000)"


def test_evaluate_names_bad_options():
    with pytest.raises(OptionError, match="similarity"):
        evaluate(np.eye(2), np.eye(2), [[0], [1]], similarity="euclid")
    with pytest.raises(OptionError, match=r"not 'l2': vectors of equal length rank by 'cosine' .*evaluate_index"):
        evaluate(np.eye(2), np.eye(2), [[0], [1]], similarity="l2")
    with pytest.raises(OptionError, match="at least one metric"):
        evaluate(np.eye(2), np.eye(2), [[0], [1]], [])
    with pytest.raises(VectorError, match="row 1 is all zeros"):
        evaluate(np.array([[1.0, 0.0], [0.0, 0.0]]), np.eye(2), [[0], [1]], similarity="cosine")


@pytest.mark.parametrize("metric", ["recall", "capped_recall", "success", "mrr", "ndcg"])
def test_a_cut_off_beyond_the_corpus_is_the_size_of_the_corpus(metric):
    """Also in memory: a table of so many ranks would take gigabytes."""
    documents, train, validation, test = learnable(rows=120)
    results = []
    for k in (120, 10**9):
        tuner = NudgeN(f"{metric}@{k}", guard=0).fit(documents, train, validation, test)
        score = evaluate(tuner.transform(documents), *test, f"{metric}@{k}")[f"{metric}@{k}"]
        assert tuner.test_.after[f"{metric}@{k}"].mean == score.mean
        results.append((tuner.gamma_, tuner.curve_.values.tolist(), score.mean))
    assert results[0] == results[1]
