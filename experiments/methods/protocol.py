"""Input and output of a method, and the validation metric.

All results are measured with ``nudgevec.evaluate``, for every method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from corpora import DataSet, Labels

from nudgevec.metrics import Metric

Settings = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A data set with unit vectors, and the rows of its training and validation queries."""

    data: DataSet
    train: np.ndarray
    validation: np.ndarray
    device: str = "cpu"

    @property
    def documents(self) -> torch.Tensor:
        return self.tensor(self.data.documents)

    def queries(self, query_rows: np.ndarray) -> torch.Tensor:
        return self.tensor(self.data.queries[query_rows])

    def labels(self, query_rows: np.ndarray) -> Labels:
        return [self.data.labels[row] for row in query_rows]

    def tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device)


@dataclass(frozen=True)
class Tuned:
    """Result of a method: document vectors, and a function that returns the query vectors to search with."""

    documents: np.ndarray
    queries: Callable[[np.ndarray], np.ndarray]
    """Function from query rows to query vectors."""
    similarity: str
    validation: float
    """Metric on the validation queries, by which settings and checkpoints are chosen."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Details for the cached run, such as the chosen step."""


class Ranking:
    """A metric computed from a score matrix; queries without relevant documents are skipped.

    Parameters
    ----------
    labels : list of dict
        Document row -> grade, for each query.
    metric : str

    Attributes
    ----------
    has_relevant : array of bool
        Queries with a relevant document. Score matrices have one row for each of these.
    """

    def __init__(self, labels: Labels, metric: str) -> None:
        self.metric = Metric.parse(metric)
        self.has_relevant = np.array([any(grade > 0 for grade in entry.values()) for entry in labels], dtype=bool)
        kept = [entry for entry, keep in zip(labels, self.has_relevant, strict=True) if keep]
        relevant = [
            (query, row, grade) for query, entry in enumerate(kept) for row, grade in sorted(entry.items()) if grade > 0
        ]
        columns = np.array(relevant, dtype=np.float64).reshape(-1, 3)
        self.query, self.row = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
        self.share = self.metric.shares(self.query, columns[:, 2])

    def mean(self, scores: torch.Tensor) -> float:
        """Average the metric over the queries.

        Parameters
        ----------
        scores : tensor of shape (queries with a relevant document, documents)
        """
        depth = min(self.metric.k, scores.shape[1])
        top = scores.topk(depth, dim=1).indices.cpu().numpy()
        hit = top[self.query] == self.row[:, None]
        rank = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, self.metric.k + 1)
        return float(self.metric.per_query(self.query, rank, self.share, len(scores)).mean())
