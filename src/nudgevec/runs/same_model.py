"""Whether queries and documents come from the same model, judged by their labels.

Vectors of different models with the same number of dimensions can be compared, but their similarity means nothing.
Documents can be moved toward such queries anyway: every labelled query gains, while all others lose. The same holds for
a part of the documents, where a collection is embedded anew and the change of the model has come half way.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt

import numpy as np

from nudgevec.arrays import Array, Floats
from nudgevec.core.exact import norms
from nudgevec.runs.pipeline import Prepared
from nudgevec.text.splits import SPLITS

# Labelled pairs that are looked at; with fewer than the least of them a poor model could look like chance.
_N_PAIRS, _LEAST_PAIRS = 1000, 20
# 0.5 is chance. Vectors of one model reach 0.8 and more, even with a poor model or noisy labels.
_LEAST_CLOSENESS = 0.6
# Queries and documents that are looked at for documents of another model.
_N_QUERIES, _N_DOCUMENTS = 1000, 2000
# The share of documents that are closer to other queries than to their own. Of those of another model it is half; where
# all are of one model it was at most 0.14 on nine data sets, with a poor model.
_MOST_UNRELATED = 0.15


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


def model_doubt(data: Prepared) -> str | None:
    """Return why a part of the documents may come from another model, or why this cannot be checked, or None."""
    source, store = data.collection.source, data.collection.documents.store
    is_embedded_here = data.collection.documents.vectors is None and not data.embedder.startswith("precomputed:")
    is_known = is_embedded_here or (store is not None and store.embedder is not None)
    n_pairs = len(_relevant_pairs(data))
    if n_pairs < _LEAST_PAIRS:
        problem = (
            f"{source}: {n_pairs} labels are too few to see whether queries and documents come from the same model"
        )
        return None if is_known else problem
    share, n_documents = unrelated_documents(data)
    if share - 2.0 * sqrt(share * (1.0 - share) / max(1, n_documents)) <= _MOST_UNRELATED:
        return None
    return (
        f"{source}: {share:.0%} of {n_documents:,} labelled documents are closer to other queries than to their own: a "
        "part of the documents seems to be embedded with another model, or to have the labels of other documents"
    )


def unrelated_documents(data: Prepared) -> tuple[float, int]:
    """Return the share of labelled documents that are closer to other queries than to their own, and their number.

    A document is compared with all queries, and not with other documents: those of the queries' own model are closer to
    all queries.
    """
    labelled = [
        (vector, labels)
        for queries in (data.queries[name] for name in SPLITS)
        for vector, labels in zip(queries.vectors, queries.labels, strict=True)
    ]
    random = np.random.default_rng(0)
    labelled = [labelled[position] for position in random.permutation(len(labelled))[:_N_QUERIES].tolist()]
    keys = list(dict.fromkeys(key for _, labels in labelled for key, grade in labels.items() if grade > 0))
    keys = [keys[position] for position in random.permutation(len(keys))[:_N_DOCUMENTS].tolist()]
    column = {key: index for index, key in enumerate(keys)}
    grades = np.zeros((len(labelled), len(keys)))
    for line, (_, labels) in zip(grades, labelled, strict=True):
        for key, grade in labels.items():
            if key in column:
                line[column[key]] = grade
    scores = _unit(np.stack([vector for vector, _ in labelled])) @ _unit(data.documents.take(keys)).T
    shares = []
    for number in range(len(keys)):
        score, of_document = scores[:, number], grades[:, number]
        own, others = score[of_document > 0], np.sort(score[of_document == 0])
        if len(others):
            # A tie counts one half.
            below = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right")
            shares.append(below.mean() / (2 * len(others)))
    return float(np.mean(np.array(shares) < 0.5)) if shares else 0.0, len(shares)


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
