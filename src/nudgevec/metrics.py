"""Retrieval metrics, written as step functions of the ranks of the labelled documents.

A label with a grade above zero is *relevant*; R is the number of relevant labels of a query. Ranks start at 1. A query
scores

    recall@k          sum over relevant of  [rank <= k] / R                      (trec_eval recall)
    capped_recall@k   sum over relevant of  [rank <= k] / min(R, k)
    ndcg@k            sum over relevant of  grade / log2(rank + 1) / ideal       (trec_eval ndcg_cut)
    success@k         1 if any relevant has rank <= k                            (trec_eval success)
    mrr@k             1 / best rank of a relevant, 0 beyond k                    (trec_eval recip_rank)

Each is the product of a discount (by rank) and a share (by label). The first three are summed over the labels of a
query; the last two take its best label only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nudgevec.arrays import Floats, Ints
from nudgevec.errors import OptionError
from nudgevec.registry import Registry

USUAL = ("ndcg@10", "recall@10", "mrr@10", "success@1")
"""The metrics that are reported by default."""
# Of a cut-off, which then fits into 64 bits.
_MAX_DIGITS = 18


@dataclass(frozen=True)
class Definition:
    """How a metric is computed; register one under a name in ``METRICS`` (entry points ``nudgevec.metrics``).

    Discounts must not increase with the rank, and the value of a query must lie between 0 and 1.
    """

    discount: Callable[[Floats], Floats]
    """The value of every rank up to k."""
    shares: Callable[[Ints, Floats, int], Floats] | None
    """Weight of every relevant label from (query, grade, k), queries sorted; None if only the best label counts."""


@dataclass(frozen=True)
class Metric:
    """A metric at a cut-off.

    >>> Metric.parse("ndcg@10")
    Metric(name='ndcg', k=10)
    """

    name: str
    k: int

    @classmethod
    def parse(cls, text: str | Metric) -> Metric:
        """Read ``"name@k"``."""
        if isinstance(text, Metric):
            return text
        name, at, cut = str(text).strip().lower().partition("@")
        # Python refuses to read numbers of thousands of digits.
        if name not in METRICS or not at or not cut.isdecimal() or len(cut) > _MAX_DIGITS or int(cut) < 1:
            known = ", ".join(f"{name}@k" for name in METRICS)
            raise OptionError(f"unknown metric {text!r:.80}: use one of {known}, with k a whole number >= 1")
        return cls(name, int(cut))

    def __str__(self) -> str:
        return f"{self.name}@{self.k}"

    def limited(self, n_documents: int) -> Metric:
        """Return the same metric with a cut-off of at most the number of documents: no rank is larger."""
        return Metric(self.name, min(self.k, max(1, n_documents)))

    @property
    def best_only(self) -> bool:
        """True when only the best-ranked relevant document of a query counts."""
        return METRICS[self.name].shares is None

    def discount(self) -> Floats:
        """Return the value of each rank: index r for 1 <= r <= k, and a zero at k + 1."""
        table = np.zeros(self.k + 2)
        table[1:-1] = METRICS[self.name].discount(np.arange(1.0, self.k + 1))
        return table

    def shares(self, query: Ints, grade: Floats) -> Floats:
        """Return what each relevant label can contribute; ``query`` is sorted and ``grade`` positive."""
        shares = METRICS[self.name].shares
        return np.ones(len(query)) if shares is None or len(query) == 0 else shares(query, grade, self.k)

    def per_query(self, query: Ints, rank: Ints, share: Floats, n_queries: int) -> Floats:
        """Return the metric of every query from the ranks of its relevant labels (rank > k: not retrieved)."""
        value = self.discount()[np.minimum(rank, self.k + 1)] * share
        scores = np.zeros(n_queries)
        (np.maximum if self.best_only else np.add).at(scores, query, value)
        return scores


def _recall(query: Ints, grade: Floats, k: int) -> Floats:
    return 1.0 / np.bincount(query)[query]


def _capped_recall(query: Ints, grade: Floats, k: int) -> Floats:
    return 1.0 / np.minimum(np.bincount(query), k)[query]


def _ndcg(query: Ints, grade: Floats, k: int) -> Floats:
    """Divide grades by the sum that an ideal ranking reaches."""
    by_grade = np.lexsort((-grade, query))
    position = np.arange(len(query)) - np.searchsorted(query, query)
    gain = np.where(position < k, grade[by_grade] / np.log2(position + 2.0), 0.0)
    shares: Floats = grade / np.bincount(query, gain)[query]
    return shares


METRICS: Registry[Definition] = Registry(
    "metric",
    {
        "recall": Definition(np.ones_like, _recall),
        "capped_recall": Definition(np.ones_like, _capped_recall),
        "success": Definition(np.ones_like, None),
        "mrr": Definition(lambda rank: 1.0 / rank, None),
        "ndcg": Definition(lambda rank: 1.0 / np.log2(rank + 1.0), _ndcg),
    },
)
