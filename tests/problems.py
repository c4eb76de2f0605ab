"""Problems for the tests: small random ones with degenerate cases, and larger ones that fine-tuning improves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

METRICS = ("recall", "capped_recall", "success", "mrr", "ndcg")


@dataclass
class Problem:
    """Documents, labelled training and validation queries, and the cut-off k of the metric."""

    documents: np.ndarray
    train: tuple[np.ndarray, list[dict[int, float]]]
    validation: tuple[np.ndarray, list[dict[int, float]]]
    k: int


@st.composite
def problems(draw, most=9):
    """Generate small problems: hypothesis draws the structure and the seed of a NumPy generator.

    The problems have exact ties, duplicate documents, queries parallel or opposite to documents, and negative grades.
    """
    rows = draw(st.integers(1, most), label="documents")
    dim = draw(st.integers(1, 5), label="dimensions")
    grid = draw(st.booleans(), label="grid")  # few distinct values: exact ties and parallel vectors
    graded = draw(st.sampled_from([(1,), (1, 2, 3), (-1, 1), (-2, -0.5, 1, 2.5)]), label="weights")
    per_query = draw(st.integers(1, 4), label="labels per query")
    train = draw(st.integers(1, most), label="training queries")
    validation = draw(st.integers(1, 6), label="validation queries")
    k = draw(st.sampled_from([1, 1, 2, 3, 5, 20]), label="k")
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))

    def vectors(count):
        if grid:
            values = random.integers(-1, 3, (count, dim)).astype(np.float64)
        else:
            values = random.standard_normal((count, dim)) + 0.5
        values[~values.any(axis=1), 0] = 1.0
        return values.astype(random.choice([np.float32, np.float64]))

    def labels(count):
        entries = []
        for _ in range(count):
            chosen = random.choice(rows, min(rows, int(random.integers(0, per_query + 1))), replace=False)
            entries.append({int(row): float(random.choice(graded)) for row in chosen})
        return entries

    documents = vectors(rows)
    for row in range(1, rows):
        if random.random() < 0.2:
            documents[row] = documents[random.integers(row)]  # duplicates
    train_queries, validation_queries = vectors(train), vectors(validation)
    for query in train_queries:
        if random.random() < 0.15:
            query[:] = documents[random.integers(rows)] * random.choice([1, 2, -1])  # parallel, opposite
    train_labels, validation_labels = labels(train), labels(validation)
    if not any(train_labels):
        train_labels[0] = {int(random.integers(rows)): 1.0}
    if not any(weight > 0 for entry in validation_labels for weight in entry.values()):
        validation_labels[0] = {int(random.integers(rows)): 1.0}
    return Problem(documents, (train_queries, train_labels), (validation_queries, validation_labels), k)


def learnable(seed=0, rows=400, dim=16, train=300, held=120, noise=0.22):
    """Create a problem that fine-tuning improves: queries lie around a hidden point near their document.

    Returns
    -------
    documents : array of shape (rows, dim)
    train, validation, test : tuple of (queries, labels)
        ``train``, ``held`` and 200 queries; each has one relevant document.
    """
    random = np.random.default_rng(seed)

    def unit(vectors):
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    documents = unit(random.standard_normal((rows, dim)))
    topic = unit(documents + noise * random.standard_normal((rows, dim)))
    relevant = random.integers(0, rows // 4, train + held + 200)
    queries = unit(topic[relevant] + 0.15 * random.standard_normal((len(relevant), dim)))
    labels = [[int(row)] for row in relevant]
    parts = [slice(0, train), slice(train, train + held), slice(train + held, None)]
    return documents, *((queries[part], labels[part]) for part in parts)
