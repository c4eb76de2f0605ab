"""Rank metrics, written so that each is a step function of the ranks of the labelled documents.

A label with a grade above zero is *relevant*; ``R`` is how many of those a query has. Ranks start
at 1. With ``v(r)`` the value of rank ``r`` (zero beyond ``k``), a query scores

    recall@k          sum over relevant of  [rank <= k] / R                      (trec_eval recall)
    capped_recall@k   sum over relevant of  [rank <= k] / min(R, k)
    ndcg@k            sum over relevant of  grade / log2(rank + 1) / ideal       (trec_eval ndcg_cut)
    success@k         1 if any relevant has rank <= k                            (trec_eval success)
    mrr@k             1 / best rank of a relevant, 0 beyond k                    (trec_eval recip_rank)

The first three add up over the labels of a query; the last two look at its best label only. Both
kinds are described by the same two tables, ``discount`` (by rank) and ``shares`` (by label).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import begins, sorted_within
from nudgevec.errors import OptionError

USUAL = ("ndcg@10", "recall@10", "mrr@10", "success@1")
"""What is measured where nobody says what to measure."""


@dataclass(frozen=True)
class Metric:
    """One metric at one cut-off, for example ``Metric.parse("ndcg@10")``."""

    name: str
    k: int

    @classmethod
    def parse(cls, text: str | Metric) -> Metric:
        """Read ``"name@k"``.

        >>> Metric.parse("ndcg@10")
        Metric(name='ndcg', k=10)
        """
        if isinstance(text, Metric):
            return text
        name, at, cut = str(text).strip().lower().partition("@")
        if name not in _DISCOUNTS or not at or not cut.isdecimal() or int(cut) < 1:
            known = ", ".join(f"{name}@k" for name in _DISCOUNTS)
            raise OptionError(f"unknown metric {text!r}: use one of {known}, with k a whole number >= 1")
        return cls(name, int(cut))

    def __str__(self) -> str:
        return f"{self.name}@{self.k}"

    @property
    def best_only(self) -> bool:
        """True when only the best-ranked relevant document of a query counts."""
        return self.name in ("success", "mrr")

    @property
    def flat(self) -> bool:
        """True when all ranks up to k are worth the same: then a label is in the top k or not."""
        values = self.discount()[1:-1]
        return bool((values == values[0]).all())

    def discount(self) -> Floats:
        """Value of each rank: index ``r`` for ``1 <= r <= k``, and a zero at ``k + 1``."""
        ranks = np.arange(1, self.k + 1, dtype=np.float64)
        table = np.zeros(self.k + 2)
        table[1:-1] = _DISCOUNTS[self.name](ranks)
        return table

    def shares(self, query: Ints, grade: Floats) -> Floats:
        """What each relevant label can contribute; ``query`` is sorted and ``grade`` positive."""
        if self.best_only or len(query) == 0:
            return np.ones(len(query))
        first = np.flatnonzero(begins(query))
        count = np.diff(first, append=len(query))
        if self.name == "recall":
            return np.repeat(1.0 / count, count)
        if self.name == "capped_recall":
            return np.repeat(1.0 / np.minimum(count, self.k), count)
        by_grade = sorted_within(query, -grade)
        position = np.arange(len(query)) - np.repeat(first, count)
        gain = np.where(position < self.k, grade[by_grade] / np.log2(position + 2.0), 0.0)
        ideal = np.add.reduceat(gain, first)
        share: Floats = grade / np.repeat(ideal, count)
        return share

    def per_query(self, query: Ints, rank: Ints, share: Floats, queries: int) -> Floats:
        """Score every query from the ranks of its relevant labels (``rank`` > k: not retrieved)."""
        value = self.discount()[np.minimum(rank, self.k + 1)] * share
        scores = np.zeros(queries)
        if self.best_only:
            np.maximum.at(scores, query, value)
        else:
            np.add.at(scores, query, value)
        return scores


_DISCOUNTS: dict[str, Callable[[Floats], Floats]] = {
    "recall": lambda rank: np.ones_like(rank),
    "capped_recall": lambda rank: np.ones_like(rank),
    "success": lambda rank: np.ones_like(rank),
    "mrr": lambda rank: 1.0 / rank,
    "ndcg": lambda rank: 1.0 / np.log2(rank + 1.0),
}
