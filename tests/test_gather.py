"""The pull: right, and for every document the same whatever else is gathered."""

from __future__ import annotations

import numpy as np
import pytest

from nudgevec.gather import gather
from nudgevec.labels import Labels
from nudgevec.queries import as_queries


def some_labels(random, queries, documents):
    """Some documents with one label, some with a few, some with more than are added up at a time."""
    count = np.concatenate([[1200, 513, 512], random.integers(1, 70, documents - 3)])
    pairs = [(query, row) for row, many in enumerate(count) for query in random.choice(queries, many, replace=False)]
    query, row = np.array(sorted(pairs)).T
    return Labels(query, row, random.standard_normal(len(row)), queries)


@pytest.mark.parametrize("dim", [1, 2, 7, 130])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_pull_depends_on_the_labels_of_its_document_alone(monkeypatch, dim, kind):
    random = np.random.default_rng(0)
    queries = as_queries(random.standard_normal((1500, dim)).astype(kind), dim, "queries")
    labels = some_labels(random, 1500, 40)
    whole = gather(labels, queries)
    matrix = np.zeros((40, 1500))
    matrix[labels.row, labels.query] = labels.weight
    np.testing.assert_allclose(whole.total, matrix @ queries.vectors.astype(np.float64), atol=1e-11)
    assert whole.rows.tolist() == list(range(40))
    assert whole.labels.tolist() == np.bincount(labels.row).tolist()
    for row in range(40):
        alone = gather(labels.where(labels.row == row), queries)
        assert np.array_equal(alone.total[0], whole.total[row])
    monkeypatch.setattr("nudgevec.gather._AT_A_TIME", 1 << 12)
    assert np.array_equal(gather(labels, queries).total, whole.total)
    monkeypatch.setattr("nudgevec.arithmetic.parallel.cores", lambda: 1)
    assert np.array_equal(gather(labels, queries).total, whole.total)
