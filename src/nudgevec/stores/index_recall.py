"""The quality of a store's own search: its recall against exact search, and retrieval metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec import progress
from nudgevec.arrays import Array, Floats
from nudgevec.core.exact import norms, scaled_queries
from nudgevec.corpus import Reader
from nudgevec.errors import LabelError, StoreError
from nudgevec.evaluation import Evaluation, evaluate_ranking, parse_metrics
from nudgevec.labels import read_labelled_queries
from nudgevec.metrics import USUAL
from nudgevec.stores.base import Store

# Scores that differ by less, relative to the largest, are ties: any of the documents is a correct result.
_TIE = 1e-6


def recall(store: Store, queries: npt.ArrayLike, k: int = 10) -> float:
    """Measure which share of the true k nearest documents a store's own search finds.

    Parameters
    ----------
    store : Store
        Its similarity is the measure; cosine if it is unknown.
    queries : array of shape (q, d)
        Query vectors.
    k : int
        Number of nearest documents of each query.

    Returns
    -------
    float
        Mean recall, from 0 to 1. Tied documents count as found if any of them is.

    Raises
    ------
    StoreError
        If the queries have another number of dimensions.

    Examples
    --------
    >>> import tempfile, faiss
    >>> from nudgevec import open_store
    >>> index = faiss.IndexFlatIP(3)
    >>> index.add(np.eye(3, dtype=np.float32))
    >>> path = tempfile.mkdtemp() + "/docs.faiss"
    >>> faiss.write_index(index, path)
    >>> recall(open_store(f"faiss:{path}"), np.eye(3), k=2)
    1.0
    """
    queries = np.asarray(queries, np.float64)
    if queries.shape[1] != store.dim:
        raise StoreError(f"{store.url} has {store.dim} dimensions, the queries have {queries.shape[1]}")
    best = np.full((len(queries), 0), -np.inf)
    with progress.bar("measuring the recall of the store's search", len(store.ids)) as bar:
        for _, vectors in store.blocks():
            best = np.concatenate([best, _scores(store, queries, vectors)], axis=1)
            if best.shape[1] > k:
                best = -np.partition(-best, k - 1, axis=1)[:, :k]
            bar.update(len(vectors))
    n_expected = best.shape[1]
    if n_expected == 0 or len(queries) == 0:
        return 1.0
    thresholds = best.min(axis=1) - _TIE * np.abs(best).max(axis=1)
    n_found = 0
    for query, threshold in zip(queries, thresholds, strict=True):
        # Results that others have removed in the meantime do not count.
        results = store.fetch_dict(store.search(query.astype(np.float32), n_expected))
        if results:
            n_found += int((_scores(store, query[None], np.stack([*results.values()]))[0] >= threshold).sum())
    return n_found / (n_expected * len(queries))


def evaluate_index(
    store: Store, queries: npt.ArrayLike, labels: Any, metrics: Sequence[str] | str = USUAL
) -> Evaluation:
    """Measure the retrieval quality of a store's own search.

    Parameters
    ----------
    store : Store
        Its index ranks the documents.
    queries : array of shape (q, d)
        Query vectors.
    labels : list
        One entry per query, as ``evaluate`` takes them.
    metrics : str or sequence of str
        For example ``"ndcg@10"``.

    Returns
    -------
    Evaluation
        Mean, confidence interval and per-query values of each metric.

    Raises
    ------
    LabelError
        If a label refers to a document that is not there, or no query has a relevant label.
    """
    wanted, reader = parse_metrics(metrics), Reader(store)
    vectors, found = read_labelled_queries((queries, labels), reader, "queries")
    used, relevant = found.relevant()
    if len(used) == 0:
        raise LabelError("queries: none of them has a relevant label; there is nothing to measure")
    k = max(metric.limited(reader.n_rows).k for metric in wanted)
    row_of = {key: row for row, key in enumerate(store.ids)}
    rows = np.full((len(used), k), -1)
    with progress.bar("searching the store", len(used)) as bar:
        for ranking, query in zip(rows, vectors[used], strict=True):
            results = store.search(query.astype(np.float32), k)[:k]
            # Documents that others have added in the meantime take a rank too.
            ranking[: len(results)] = [row_of.get(key, -1) for key in results]
            bar.update(1)
    return evaluate_ranking(rows, scaled_queries(vectors[used]), used, relevant, wanted, found.n_queries - len(used))


def _scores(store: Store, queries: Floats, vectors: Array) -> Floats:
    """Return scores, shape (queries, vectors), that rank as the store's similarity does."""
    wide = vectors.astype(np.float64)
    scores: Floats = queries @ wide.T
    if store.similarity == "l2":
        scores -= (wide**2).sum(axis=1) / 2
    elif store.similarity != "dot":
        scores /= np.maximum(norms(wide), np.finfo(np.float64).tiny)
    return scores
