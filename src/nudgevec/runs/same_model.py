"""Whether queries and documents come from the same model, judged by their labels.

Vectors of different models with the same number of dimensions can be compared, but their similarity means nothing.
Documents can be moved toward such queries anyway: every labelled query gains, while all others lose.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from nudgevec.arrays import Array, Floats
from nudgevec.core.exact import norms
from nudgevec.runs.pipeline import Prepared
from nudgevec.text.splits import SPLITS

# Labelled pairs that are looked at; with fewer than the least of them a poor model could look like chance.
_N_PAIRS, _LEAST_PAIRS = 1000, 20
# 0.5 is chance. Vectors of one model reach 0.8 and more, even with a poor model or noisy labels.
_LEAST_CLOSENESS = 0.6


def model_mismatch(data: Prepared) -> str | None:
    """Return why the queries and documents seem to come from different models, or None."""
    source, store = data.collection.source, data.collection.documents.store
    recorded = None if store is None else store.embedder
    if recorded is not None and recorded != data.embedder:
        return f"{source}: the documents were embedded with {recorded}, and the queries with {data.embedder}"
    share, n_pairs = closeness(data)
    if n_pairs < _LEAST_PAIRS or share >= _LEAST_CLOSENESS:
        return None
    return (
        f"{source}: queries are closer to their labelled documents than to those of other queries in only {share:.0%} "
        "of all cases, where chance gives 50%: queries and documents seem to be embedded with different models, or the "
        "labels to belong to other documents"
    )


def closeness(data: Prepared) -> tuple[float, int]:
    """Return how often a query is closer to its relevant document than to a relevant document of another query.

    Comparing with documents of other queries, and not with any, keeps documents that are close to everything from
    counting. The second number is how many labelled pairs this was measured on.
    """
    pairs = _relevant_pairs(data)
    queries = _unit(np.stack([vector for vector, _, _ in pairs])) if pairs else np.empty((0, 0))
    column = {key: index for index, key in enumerate(dict.fromkeys(key for _, key, _ in pairs))}
    if len(column) < 2:
        return 0.0, 0
    scores = queries @ _unit(data.documents.take(list(column))).T
    columns = np.array([column[key] for _, key, _ in pairs])
    # A document counts once for every query that it is relevant for.
    count = np.bincount(columns, minlength=len(column)).astype(np.float64)
    shares = []
    for line, own, (_, _, labels) in zip(scores, columns, pairs, strict=True):
        weight = count.copy()
        weight[[column[key] for key in labels if key in column]] = 0.0
        if weight.any():
            closer = (line[own] > line) + 0.5 * (line[own] == line)
            shares.append(float(closer @ weight / weight.sum()))
    return float(np.mean(shares)) if shares else 0.0, len(shares)


def _relevant_pairs(data: Prepared) -> list[tuple[Array, Hashable, dict[Hashable, float]]]:
    """Return some pairs of a query vector and the id of a relevant document, with all labels of the query."""
    pairs = [
        (queries.vectors[number], key, labels)
        for queries in (data.queries[name] for name in SPLITS)
        for number, labels in enumerate(queries.labels)
        for key, grade in labels.items()
        if grade > 0
    ]
    chosen = np.random.default_rng(0).permutation(len(pairs))[:_N_PAIRS]
    return [pairs[position] for position in chosen.tolist()]


def _unit(vectors: Array) -> Floats:
    wide = vectors.astype(np.float64)
    return np.asarray(wide / np.maximum(norms(wide), np.finfo(np.float64).tiny)[:, None], np.float64)
