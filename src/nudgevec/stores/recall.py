"""How much of the truth a store's own search finds: its index against all distances, on given queries."""

from __future__ import annotations

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array, Floats
from nudgevec.core.exact import norms
from nudgevec.errors import StoreError
from nudgevec.stores.base import Store

# Scores this close, relative to the largest, are a tie: it does not matter which of them is found.
_TIE = 1e-6


def recall(store: Store, queries: Array, count: int = 10) -> float:
    """The share of the ``count`` nearest documents that the store's own search finds, by its own metric."""
    queries = np.asarray(queries, np.float64)
    if queries.shape[1] != store.dim:
        raise StoreError(f"{store.url} has {store.dim} dimensions, the queries have {queries.shape[1]}")
    best = np.full((len(queries), 0), -np.inf)
    with progress.bar("trying the store's search", len(store.ids)) as bar:
        for _, vectors in store.blocks():
            best = np.concatenate([best, _scores(store, queries, vectors)], axis=1)
            if best.shape[1] > count:
                best = -np.partition(-best, count - 1, axis=1)[:, :count]
            bar.update(len(vectors))
    wanted = best.shape[1]
    if wanted == 0 or len(queries) == 0:
        return 1.0
    worst = best.min(axis=1) - _TIE * np.abs(best).max(axis=1)
    found = 0
    for query, least in zip(queries, worst, strict=True):
        # What came or went in the meantime is not counted.
        there = store.found(store.search(query.astype(np.float32), wanted))
        if there:
            found += int((_scores(store, query[None], np.stack([*there.values()]))[0] >= least).sum())
    return found / (wanted * len(queries))


def _scores(store: Store, queries: Floats, vectors: Array) -> Floats:
    """Scores that rank as the store's metric does."""
    wide = vectors.astype(np.float64)
    products: Floats = queries @ wide.T
    if store.metric == "l2":
        products -= (wide**2).sum(axis=1) / 2
    elif store.metric != "dot":
        products /= np.maximum(norms(wide), np.finfo(np.float64).tiny)
    return products
