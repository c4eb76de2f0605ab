"""The likelihood of labels, and the vectors that would raise it.

The model says that a query q asks for document d with probability

    exp(q . d / tau) / sum over all documents d' of exp(q . d' / tau)

for vectors of length 1. The labels of a query share a weight of 1. The temperature tau says how sharp the probabilities
are; ``temperature`` finds the most likely one.

With many queries and documents the sum is estimated, batch by batch of queries: the best documents of these queries and
those with their labels are counted one by one, and a random sample stands for all others (``sampled_batches``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from nudgevec.arrays import Floats, Ints, Singles, slices
from nudgevec.labels import Labels

Side = Literal["documents", "queries"]
"""The vectors that are changed."""

SCORES = 1 << 22
"""Scores that exist at a time."""
# Queries that share their documents in an estimated sum.
_SAMPLED_QUERIES = 256
# Newton's method for the temperature.
_STEPS, _ENOUGH, _QUERIES = 30, 1e-3, 1000
# 1 / tau to begin with, and its largest value: scores of a model of float32 vectors say no more.
_SHARPNESS, _SHARPEST = 20.0, 1e4


class Batch(NamedTuple):
    """Some queries, and the documents that their sums run over."""

    queries: slice
    columns: Ints | slice
    log_weight: Singles
    """The logarithm of the number of documents that each document stands for."""


Moments = Callable[[Singles, Singles, float, Singles, Side], tuple[Floats, Singles]]


def moments(
    queries: Singles, documents: Singles, tau: float, log_weight: Singles, side: Side
) -> tuple[Floats, Singles]:
    """Return the logarithm of the sum of each query, and the expected vectors.

    Parameters
    ----------
    queries : array of shape (q, d)
    documents : array of shape (n, d)
    tau : float
        The temperature.
    log_weight : array of shape (n,)
        The logarithm of the number of documents that each document stands for.
    side : {"documents", "queries"}

    Returns
    -------
    log_sum : array of shape (q,)
    expected : array
        For the side "queries", the mean document of each query under its probabilities, (q, d); for "documents", the
        sum of the queries weighted with the probability of each document, (n, d).
    """
    probability, log_sum = _probabilities(queries @ documents.T, 1 / tau, log_weight)
    return log_sum, probability @ documents if side == "queries" else probability.T @ queries


def _probabilities(scores: Singles, sharpness: float, log_weight: Singles) -> tuple[Singles, Floats]:
    """Return the softmax of scores, and the logarithm of its denominator."""
    scores = scores * np.float32(sharpness) + log_weight
    largest = scores.max(axis=1, keepdims=True)
    np.exp(scores - largest, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    return scores / total, (largest + np.log(total))[:, 0].astype(np.float64)


@dataclass(frozen=True, eq=False)
class LabelModel:
    """Labelled queries, and the documents that they are compared with."""

    documents: Singles
    """(n, d), of length 1."""
    queries: Singles
    """(q, d), of length 1."""
    labels: Labels
    """Relevant labels; every query has at least one. Their rows are rows of ``documents``."""
    batches: list[Batch]
    moments: Moments = moments

    @cached_property
    def shares(self) -> Any:
        """The share of each label of its query, a sparse matrix of shape (q, n)."""
        query, weight = self.labels.query, self.labels.weight
        share = weight / np.bincount(query, weight)[query]
        shape = len(self.queries), len(self.documents)
        return csr_array((share.astype(np.float32), (query, self.labels.row)), shape=shape)

    @cached_property
    def _wanted(self) -> dict[Side, Singles]:
        """The mean labelled document of each query, and the sum of the queries that each document is labelled for."""
        return {"queries": self.shares @ self.documents, "documents": self.shares.T @ self.queries}

    def log_likelihood(self, vectors: Singles, side: Side, tau: float) -> tuple[float, Singles]:
        """Return the log likelihood of all labels with other vectors of one side, and its gradient.

        Parameters
        ----------
        vectors : array
            Vectors of length 1 in place of the documents or queries.
        side : {"documents", "queries"}
        tau : float

        Returns
        -------
        value : float
        gradient : array of the shape of ``vectors``
        """
        wanted = self._wanted[side]
        value = float(np.vdot(wanted, vectors)) / tau
        gradient = wanted / np.float32(tau)
        queries, documents = (vectors, self.documents) if side == "queries" else (self.queries, vectors)
        for batch in self.batches:
            log_sum, expected = self.moments(
                queries[batch.queries], documents[batch.columns], tau, batch.log_weight, side
            )
            value -= float(log_sum.sum())
            gradient[batch.queries if side == "queries" else batch.columns] -= expected / np.float32(tau)
        return value, gradient

    def covariances(self, tau: float) -> tuple[Floats, Floats]:
        """Return the mean covariance of the documents under their probabilities, and the second moment of the queries.

        Both are of shape (d, d). Their Kronecker product, times q / tau^2, approximates the curvature of the log
        likelihood as a function of a linear map.
        """
        dim = self.documents.shape[1]
        second = np.zeros((dim, dim))
        for batch in self.batches:
            queries, documents = self.queries[batch.queries], self.documents[batch.columns]
            probability, _ = _probabilities(queries @ documents.T, 1 / tau, batch.log_weight)
            mean = probability @ documents
            second += (documents * probability.sum(axis=0)[:, None]).T @ documents - mean.T @ mean
        return second / len(self.queries), (self.queries.T @ self.queries).astype(np.float64) / len(self.queries)


def whole_batches(n_queries: int, n_documents: int, scores: int = SCORES) -> list[Batch]:
    """Return batches whose sums run over all documents, with at most so many scores each."""
    weight = np.zeros(n_documents, np.float32)
    return [Batch(part, slice(0, n_documents), weight) for part in slices(n_queries, max(1, scores // n_documents))]


def sampled_batches(wanted: list[Ints], sample: Ints, n_documents: int) -> list[Batch]:
    """Return batches whose sums are estimated.

    Parameters
    ----------
    wanted : list of arrays
        For each query, the positions of the documents that are counted one by one.
    sample : array of int
        The positions of random documents.
    n_documents : int
        The number of documents that there are in all.
    """
    batches = []
    for part in slices(len(wanted), _SAMPLED_QUERIES):
        counted = np.unique(np.concatenate(wanted[part]))
        others = np.setdiff1d(sample, counted)
        stand_for = (n_documents - len(counted)) / max(1, len(others))
        weight = np.repeat([0.0, np.log(stand_for)], [len(counted), len(others)])
        batches.append(Batch(part, np.concatenate([counted, others]), weight.astype(np.float32)))
    return batches


def temperature(model: LabelModel) -> float:
    """Return the most likely temperature of the labels, by Newton's method on up to a thousand queries."""
    batches, sharpness = _first_queries(model.batches), _SHARPNESS
    last = batches[-1].queries.stop
    wanted = float(np.vdot(model._wanted["queries"][:last], model.queries[:last]))
    for _ in range(_STEPS):
        slope, curvature = wanted, 0.0
        for batch in batches:
            scores = model.queries[batch.queries] @ model.documents[batch.columns].T
            probability, _ = _probabilities(scores, sharpness, batch.log_weight)
            mean = (probability * scores).sum(axis=1, dtype=np.float64)
            slope -= float(mean.sum())
            curvature += float(((probability * scores * scores).sum(axis=1, dtype=np.float64) - mean**2).sum())
        # Labels that no other document comes near are the more likely, the sharper the probabilities are.
        step = slope / curvature if curvature > 0 else np.inf
        updated = float(np.clip(sharpness + step, sharpness / 2, min(2 * sharpness, _SHARPEST)))
        change, sharpness = abs(updated - sharpness), updated
        if change < _ENOUGH * sharpness:
            break
    return 1 / sharpness


def _first_queries(batches: list[Batch]) -> list[Batch]:
    """Return the batches of the first thousand queries."""
    first = [batch for batch in batches if batch.queries.start < _QUERIES]
    last = first[-1].queries
    return [*first[:-1], first[-1]._replace(queries=slice(last.start, min(last.stop, max(_QUERIES, last.start + 1))))]


def closeness(documents: Singles, queries: Singles, labels: Labels, n_pairs: int = 1000) -> float:
    """Return by how many standard deviations of chance queries are closer to their documents than to those of others.

    A relevant document of a query is compared with those of other queries, so that documents which are close to
    everything, or have many labels, make no difference.
    """
    random = np.random.default_rng(0)
    pairs = np.sort(random.permutation(len(labels))[:n_pairs])
    query, row = labels.query[pairs], labels.row[pairs]
    scores = queries[query] @ documents[row].T
    own = np.diagonal(scores)[:, None]
    closer = (own > scores) + 0.5 * (own == scores)
    other = (query[:, None] != query) & (row[:, None] != row)
    compared = other.any(axis=1)
    if not compared.any():
        return 0.0
    share = (closer * other).sum(axis=1)[compared] / other.sum(axis=1)[compared]
    # A share is uniform between 0 and 1 if labels are random.
    return float((share.mean() - 0.5) * np.sqrt(12 * len(share)))
