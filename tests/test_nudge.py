"""The tuner Nudge: what it gains, when it does nothing, and that its patch is what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from nudgevec import ArrayCorpus, Nudge, NudgeN, Patch, compare, demo, evaluate
from nudgevec.engines.torch import TorchEngine
from nudgevec.errors import LabelError, NudgeError, NudgeWarning, OptionError, VectorError

SIDES = "documents", "queries"


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def turned(seed=0, n_documents=400, dim=16, sizes=(300, 150, 200), strength=0.35, shared=False):
    """Queries are their documents after one linear map, with noise: what is learned from some helps all others.

    No test query asks for a document with a training label, unless ``shared``.
    """
    random = np.random.default_rng(seed)
    documents = unit(random.standard_normal((n_documents, dim)))
    by = np.eye(dim) + strength * random.standard_normal((dim, dim))
    half = n_documents if shared else n_documents // 2
    train, validation = (random.integers(0, half, size) for size in sizes[:2])
    rows = np.concatenate([train, validation, random.integers(n_documents - half, n_documents, sizes[2])])
    queries = unit(unit(documents[rows] @ by) + 0.12 * random.standard_normal((len(rows), dim)))
    parts = np.split(np.arange(len(rows)), np.cumsum(sizes)[:-1])
    return documents, *((queries[part], [[int(row)] for row in rows[part]]) for part in parts)


@pytest.mark.parametrize("side", SIDES)
def test_documents_without_labels_gain(side):
    documents, train, validation, test = turned()
    # Moving labelled documents alone cannot help here.
    step = NudgeN(guard=0).fit(documents, train, validation, test).test_
    assert step.after["ndcg@10"].mean < step.before["ndcg@10"].mean + 0.01
    result = compare(*(getattr(Nudge(side=side).fit(documents, train, validation, test).test_, when) for when in WHEN))
    assert result.low > 0.1


WHEN = "before", "after"


def test_the_emoji_of_the_demo_gain_more_than_with_nudge_n():
    search = demo.load()
    data = search.documents, *map(search.part, (search.train, search.validation, search.test))
    one, other = (tuner.fit(*data).test_ for tuner in (NudgeN(), Nudge()))
    assert compare(one.after, other.after, "ndcg@10").low > 0


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("form", ["array", "ids", "stream"])
def test_the_patch_is_what_was_measured(side, kind, form, tmp_path):
    documents, train, validation, test = turned(shared=True)
    documents = (documents * np.linspace(0.5, 2, len(documents))[:, None]).astype(kind)
    corpus = documents
    if form == "ids":
        ids = [f"doc {row}" for row in range(len(documents))]
        train, validation, test = (
            (queries, [[ids[row] for row in rows] for rows in labels]) for queries, labels in (train, validation, test)
        )
        corpus = ArrayCorpus(documents, ids=ids)
    elif form == "stream":
        corpus = Stream(documents)
    tuner = Nudge(side=side).fit(corpus, train, validation, test)
    assert tuner.sigma_ > 0
    assert tuner.side_ == side
    assert (len(tuner.patch_) == len(documents)) == (side == "documents")
    tuner.patch_.save(tmp_path / "patch.safetensors")
    patch = Patch.load(tmp_path / "patch.safetensors")
    assert patch.identity == tuner.patch_.identity
    corpus = ArrayCorpus(documents) if form == "stream" else corpus
    tuned, queries = patch.apply(corpus), patch.adapt(test[0])
    measured = evaluate(tuned, queries, test[1], list(tuner.test_.after))
    for metric, score in tuner.test_.after.items():
        assert np.array_equal(measured[metric].per_query, score.per_query)
    before = evaluate(corpus, test[0], test[1], list(tuner.test_.before))
    assert np.array_equal(before["ndcg@10"].per_query, tuner.test_.before["ndcg@10"].per_query)
    assert np.array_equal(np.asarray(patch.revert(tuned)), documents)
    # Mapped and moved documents keep their lengths.
    lengths = [np.linalg.norm(np.asarray(vectors, np.float64), axis=1) for vectors in (tuned, documents)]
    np.testing.assert_allclose(*lengths, rtol=2e-3 if kind == np.float16 else 1e-6)
    if side == "queries":
        assert np.array_equal(patch.adapt(test[0][3]), queries[3])
    else:
        assert patch.query_map is None
        assert np.array_equal(queries, test[0])


class Stream:
    """A corpus without random access."""

    def __init__(self, vectors):
        self.vectors, self.ids, self.dim = vectors, range(len(vectors)), vectors.shape[1]

    def take(self, ids):
        return self.vectors[np.asarray(ids)]

    def blocks(self):
        for start in range(0, len(self.vectors), 90):
            yield self.ids[start : start + 90], self.vectors[start : start + 90].copy()


def test_curves_of_test_queries_pass_through_what_was_measured():
    documents, train, validation, test = turned(shared=True)
    tuner = Nudge().fit(documents, train, validation, test)
    np.testing.assert_allclose(
        tuner.test_.query_curves(tuner.gamma_), tuner.test_.after["ndcg@10"].per_query, atol=1e-12
    )
    assert tuner.curve_(tuner.gamma_) == pytest.approx(tuner.choice_.after)
    assert tuner.query_curves_(tuner.gamma_).mean() == pytest.approx(tuner.choice_.after)


def test_the_choice_is_the_best_of_all_maps_and_steps():
    """The chosen value beats every map on a grid of steps, each measured from scratch."""
    documents, train, validation, _ = turned(shared=True)
    tuner = Nudge(guard=0).fit(documents, train, validation)
    for sigma_zero in (NudgeN(guard=0).fit(documents, train, validation),):
        assert tuner.choice_.after >= sigma_zero.choice_.after
    assert tuner.choice_.before == pytest.approx(evaluate(documents, *validation, "ndcg@10")["ndcg@10"].mean)


def test_cross_validation_takes_the_place_of_few_validation_queries():
    documents, train, validation, test = turned(sizes=(120, 30, 200))
    pooled = np.concatenate([train[0], validation[0]]), train[1] + validation[1]
    few, none = (Nudge().fit(documents, *parts) for parts in ((train, validation), (pooled,)))
    assert np.array_equal(few.patch_.after, none.patch_.after)
    assert few.query_curves_ is None
    before, after = (evaluate(vectors, *test)["ndcg@10"].mean for vectors in (documents, few.transform(documents)))
    assert after > before + 0.05


@pytest.mark.parametrize("n_queries", [30, 100, 300])
def test_labels_at_random_move_nothing(n_queries):
    documents, train, _, _ = turned(sizes=(400, 1, 1))
    moved = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        chosen = random.choice(400, n_queries, replace=False)
        labels = [train[1][row] for row in random.permutation(chosen)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NudgeWarning)
            moved += len(Nudge().fit(documents, (train[0][chosen], labels)).patch_) > 0
    assert moved <= 1


def test_a_wrong_model_moves_nothing():
    documents, train, validation, _ = turned()
    rotated = unit(documents @ np.linalg.qr(np.random.default_rng(5).standard_normal((16, 16)))[0])
    with pytest.warns(NudgeWarning, match="queries are no closer to their labelled documents"):
        tuner = Nudge().fit(rotated, train, validation)
    assert (len(tuner.patch_), tuner.sigma_, tuner.gamma_, tuner.map_) == (0, 0.0, 0.0, None)


def test_little_evidence_moves_little_or_nothing():
    documents, train, _, _ = turned(strength=0.05, sizes=(40, 1, 1))
    with pytest.warns(NudgeWarning, match="nothing moves: .*(chance could do that|no map and no step)"):
        tuner = Nudge(guard=3).fit(documents, train)
    assert len(tuner.patch_) == 0
    assert tuner.choice_.after == tuner.choice_.before


def test_engines_find_nearly_the_same_map():
    documents, train, validation, test = turned(shared=True)
    one, other = (
        Nudge(engine=engine).fit(documents, train, validation, test) for engine in ("cpu", TorchEngine("cpu"))
    )
    assert one.sigma_ == other.sigma_
    np.testing.assert_allclose(one.map_.matrix, other.map_.matrix, atol=1e-3)
    assert one.test_.after["ndcg@10"].mean == pytest.approx(other.test_.after["ndcg@10"].mean, abs=0.01)


def test_estimated_sums_gain_as_much(monkeypatch):
    documents, train, validation, test = turned(n_documents=6000, sizes=(600, 150, 300))
    whole = Nudge(side="queries").fit(documents, train, validation, test).test_
    monkeypatch.setattr("nudgevec.tuners.learner.MOST_SCORES", 1e5)
    estimated = Nudge(side="queries").fit(documents, train, validation, test).test_
    gains = [result.after["ndcg@10"].mean - result.before["ndcg@10"].mean for result in (whole, estimated)]
    assert gains[0] > 0.1
    assert gains[1] == pytest.approx(gains[0], abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "both"}, "side must be"),
        ({"guard": -1}, "guard must be"),
        ({"guard": float("nan")}, "guard must be"),
        ({"folds": 1}, "folds must be"),
        ({"metric": "auc"}, "unknown metric"),
        ({"engine": "abacus"}, "unknown engine"),
    ],
)
def test_options_are_checked_first(options, message):
    with pytest.raises(OptionError, match=message):
        Nudge(**options).fit(None, None)


def test_labels_that_cannot_be_learned_from():
    documents, train, _, _ = turned()
    with pytest.raises(LabelError, match="relevant label"):
        Nudge().fit(documents, (train[0][:5], [{1: -1.0}] * 5))
    with pytest.raises(LabelError, match="all labelled queries are equal"):
        Nudge().fit(documents, (np.repeat(train[0][:1], 5, axis=0), [[1]] * 5))
    with pytest.raises(VectorError, match="vector 3 is not finite or all zeros"):
        Nudge().fit(np.where(np.arange(len(documents))[:, None] == 3, 0, documents), train)
    with pytest.raises(VectorError, match="3 dimensions"):
        Nudge(side="queries", guard=0).fit(documents, train).adapt(np.ones(3))


def test_degenerate_problems_raise_our_errors_or_work():
    random = np.random.default_rng(0)
    for n_documents, n_queries in [(1, 2), (2, 2), (2, 3), (5, 200), (300, 2)]:
        documents, queries = random.standard_normal((n_documents, 4)), random.standard_normal((n_queries, 4))
        labels = random.integers(0, n_documents, n_queries).tolist()
        for side in SIDES:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NudgeWarning)
                try:
                    tuner = Nudge(side=side, guard=0).fit(documents, (queries, labels))
                except NudgeError:
                    continue
            assert np.isfinite(tuner.patch_.after).all()
            assert np.isfinite(tuner.adapt(queries)).all()


def test_it_is_an_estimator():
    tuner = Nudge("recall@5", side="queries", guard=0.5, folds=3)
    assert clone(tuner).get_params() == tuner.get_params()
    assert repr(tuner) == "Nudge(metric='recall@5', side='queries', guard=0.5, folds=3): not fitted"
    with pytest.raises(NudgeError, match="not fitted"):
        tuner.adapt(np.ones(3))


TWICE = """
import json, sys
import numpy as np
from nudgevec import Nudge
random = np.random.default_rng(0)
documents, queries = random.standard_normal((500, 32)), random.standard_normal((400, 32))
queries += 2 * documents[np.arange(400) % 250]
rows = (np.arange(400) % 250).tolist()
tuner = Nudge().fit(documents, (queries[:250], rows[:250]), (queries[250:], rows[250:]))
print(json.dumps([tuner.gamma_, tuner.sigma_, tuner.patch_.identity]))
"""


def test_the_same_process_twice_gives_the_same_patch():
    results = [
        json.loads(subprocess.run([sys.executable, "-c", TWICE], check=True, capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert results[0] == results[1]
