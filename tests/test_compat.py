"""Comparison with the published nudge-ft: the same interface, never worse on validation, no NaN."""

from __future__ import annotations

import inspect

import nudge
import numpy as np
import pytest

from nudgevec import compat, demo, evaluate
from nudgevec.errors import LabelError
from problems import learnable


def emoji():
    search = demo.load()
    return search.documents, search.part(search.train), search.part(search.validation)


def graded_like(seed):
    """Several answers per query."""
    documents, train, validation, _ = learnable(seed, rows=120, train=200, held=60, noise=0.15 + 0.1 * (seed % 4))
    random = np.random.default_rng(seed)

    def more(part):
        return part[0], [sorted({*entry, int(random.integers(30))}) for entry in part[1]]

    return documents, more(train), more(validation)


PROBLEMS = {"emoji": emoji}
PROBLEMS |= {f"one answer {seed}": lambda seed=seed: learnable(seed, noise=0.1 + 0.1 * seed)[:3] for seed in range(4)}
PROBLEMS |= {f"several answers {seed}": lambda seed=seed: graded_like(seed) for seed in range(4)}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("ours", "theirs"), [(compat.NUDGEN, nudge.NUDGEN), (compat.NUDGEM, nudge.NUDGEM)])
def test_validation_accuracy_is_never_lower(name, ours, theirs):
    documents, train, validation = PROBLEMS[name]()
    sets = [{"q_embs": part[0], "q_ans_indx": part[1]} for part in (train, validation)]

    def accuracy(embeddings):
        return evaluate(embeddings, *validation, ["capped_recall@1"], similarity="dot")["capped_recall@1"].mean

    new, old = (kind().finetune_embeddings(documents, *sets) for kind in (ours, theirs))
    assert new.shape == old.shape
    assert new.dtype == old.dtype
    assert accuracy(new) >= accuracy(old)


@pytest.mark.parametrize("name", ["NUDGEN", "NUDGEM"])
def test_signatures_are_the_published_ones(name):
    for method in ("__init__", "finetune_embeddings"):
        ours = inspect.signature(getattr(getattr(compat, name), method))
        theirs = inspect.signature(getattr(getattr(nudge, name), method))
        assert list(ours.parameters) == list(theirs.parameters)
        for parameter in theirs.parameters.values():
            assert ours.parameters[parameter.name].default == parameter.default


@pytest.mark.parametrize(("ours", "theirs"), [(compat.NUDGEN, nudge.NUDGEN), (compat.NUDGEM, nudge.NUDGEM)])
def test_a_fixed_gamma_gives_the_published_vectors(ours, theirs):
    documents, train, validation, _ = learnable()
    sets = [{"q_embs": part[0], "q_ans_indx": part[1]} for part in (train, validation)]
    new, old = (kind().finetune_embeddings(documents, *sets, gamma=0.3) for kind in (ours, theirs))
    np.testing.assert_allclose(new, old, atol=2e-5)


@pytest.mark.parametrize("kind", [compat.NUDGEN, compat.NUDGEM])
def test_documents_apart_are_scored_and_not_returned(kind):
    documents, train, validation, _ = learnable()
    sets = [{"q_embs": part[0], "q_ans_indx": part[1]} for part in (train, validation)]
    whole = kind().finetune_embeddings(documents, *sets)
    apart = kind().finetune_embeddings(documents[:100], *sets, nontrain_embeddings=documents[100:])
    assert np.array_equal(apart, whole[:100])


def test_documents_apart_cannot_be_answers():
    documents, train, validation, _ = learnable()
    sets = [{"q_embs": part[0], "q_ans_indx": part[1]} for part in (train, validation)]
    sets[0]["q_ans_indx"] = [[150], *train[1][1:]]
    with pytest.raises(LabelError, match="row 150 is one of nontrain_embeddings"):
        compat.NUDGEN().finetune_embeddings(documents[:100], *sets, nontrain_embeddings=documents[100:])


def test_a_query_equal_to_its_document_is_no_nan():
    documents, _, held, _ = learnable()
    sets = [{"q_embs": documents, "q_ans_indx": [[row] for row in range(len(documents))]}]
    sets.append({"q_embs": held[0], "q_ans_indx": held[1]})
    assert np.isnan(nudge.NUDGEN().finetune_embeddings(documents, *sets, gamma=0.1)).any()
    np.testing.assert_allclose(compat.NUDGEN().finetune_embeddings(documents, *sets, gamma=0.1), documents, atol=1e-6)
