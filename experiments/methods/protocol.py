"""What every method gets and what it gives back, so that all are measured by the same ``nudgevec.evaluate``."""

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
    """A data set with unit vectors, and the numbers of the queries to learn from and to choose by."""

    data: DataSet
    train: np.ndarray
    validation: np.ndarray
    device: str = "cpu"

    @property
    def documents(self) -> torch.Tensor:
        return self.tensor(self.data.documents)

    def queries(self, numbers: np.ndarray) -> torch.Tensor:
        return self.tensor(self.data.queries[numbers])

    def labels(self, numbers: np.ndarray) -> Labels:
        return [self.data.labels[number] for number in numbers]

    def tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device)


@dataclass(frozen=True)
class Tuned:
    """What a method leaves behind: document vectors, and the vectors it searches with for given queries."""

    documents: np.ndarray
    queries: Callable[[np.ndarray], np.ndarray]
    similarity: str
    validation: float
    """The metric on the validation queries, by which settings and checkpoints are chosen."""
    facts: dict[str, Any] = field(default_factory=dict)


class Ranking:
    """A metric of judged queries from a matrix of scores (queries x documents). Queries without answers are out."""

    def __init__(self, labels: Labels, metric: str) -> None:
        self.metric = Metric.parse(metric)
        self.answered = np.array([any(grade > 0 for grade in entry.values()) for entry in labels], dtype=bool)
        relevant = [
            (query, row, grade)
            for query, entry in enumerate(entry for entry, keep in zip(labels, self.answered, strict=True) if keep)
            for row, grade in sorted(entry.items())
            if grade > 0
        ]
        columns = np.array(relevant, dtype=np.float64).reshape(-1, 3)
        self.query, self.row = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
        self.share = self.metric.shares(self.query, columns[:, 2])

    def mean(self, scores: torch.Tensor) -> float:
        """The mean over the answered queries; ``scores`` has one line for each of them."""
        depth = min(self.metric.k, scores.shape[1])
        found = scores.topk(depth, dim=1).indices.cpu().numpy()
        hit = found[self.query] == self.row[:, None]
        rank = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1, self.metric.k + 1)
        return float(self.metric.per_query(self.query, rank, self.share, len(scores)).mean())
