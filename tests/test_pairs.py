"""Exact scores of pairs: each depends on its own two rows only, to the last bit, whatever pairs come beside it."""

from __future__ import annotations

import numpy as np
import pytest

from nudgevec.arithmetic.pairs import pair_dots


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("queries", [1, 9, 300])
@pytest.mark.parametrize("dim", [1, 3, 8, 384, 5000])
def test_a_pair_scores_the_same_by_itself(dim, queries, cosine):
    """Pairs that share a query are multiplied in blocks, others one by one."""
    random = np.random.default_rng(0)
    asked, documents = random.standard_normal((queries, dim)), random.standard_normal((50, dim)).astype(np.float32)
    i, j = np.sort(random.integers(0, queries, 300)), random.integers(0, 50, 300)
    scores = pair_dots(asked, i, documents, j, cosine=cosine)
    alone = [pair_dots(asked, i[[pair]], documents, j[[pair]], cosine=cosine)[0] for pair in range(300)]
    assert scores.tolist() == alone
    length = np.linalg.norm(documents[j].astype(np.float64), axis=1) if cosine else 1.0
    np.testing.assert_allclose(scores, (asked[i] * documents[j]).sum(axis=1) / length, rtol=1e-9, atol=1e-9)


def test_no_pairs():
    nothing = np.empty(0, np.int64)
    assert len(pair_dots(np.ones((2, 3)), nothing, np.ones((4, 3), np.float32), nothing, cosine=True)) == 0
