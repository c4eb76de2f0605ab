"""Labelled queries, and which of them are held out to choose on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nudgevec.arrays import Array, Ints
from nudgevec.core.linear_map import LinearMap
from nudgevec.corpus import Reader
from nudgevec.errors import LabelError
from nudgevec.labels import LabelledQueries, Labels, count_shared, read_labelled_queries

# With fewer validation queries than this, cross-validation over all labelled queries decides.
_ENOUGH_VALIDATION = 100


@dataclass(frozen=True)
class Split:
    """Numbers of labelled queries: those to learn from, and those to choose on."""

    train: Ints
    held_out: Ints


class LabelledSet(NamedTuple):
    """Labelled queries: vectors and labels, as they were passed."""

    vectors: Array
    labels: Labels

    def subset(self, numbers: Ints) -> LabelledSet:
        """Return some of the queries, in the order of their ascending numbers."""
        chosen = np.zeros(self.labels.n_queries, np.bool_)
        chosen[numbers] = True
        kept = self.labels.where(chosen[self.labels.query])
        query = (np.cumsum(chosen) - 1)[kept.query]
        return LabelledSet(self.vectors[chosen], Labels(query, kept.row, kept.weight, int(chosen.sum())))

    def mapped(self, by: LinearMap | None) -> LabelledSet:
        """Return the same labels with mapped queries."""
        return self if by is None else self._replace(vectors=by(self.vectors))


def read_labelled_set(
    reader: Reader, train: LabelledQueries, validation: LabelledQueries | None
) -> tuple[LabelledSet, int, dict[str, int]]:
    """Return all labelled queries, those for training first, with their number, and counts for the record."""
    queries, labels = read_labelled_queries(train, reader, "training queries")
    counts = {"documents": reader.n_rows, **_counts("train", labels)}
    n_train = len(queries)
    if validation is not None:
        more_queries, more_labels = read_labelled_queries(validation, reader, "validation queries")
        counts |= {
            **_counts("validation", more_labels),
            "validation_queries_in_train": count_shared(queries, more_queries),
        }
        queries = np.concatenate([queries, more_queries.astype(queries.dtype)])
        labels = labels.joined(more_labels)
    return LabelledSet(queries, labels), n_train, counts


def _counts(split: str, labels: Labels) -> dict[str, int]:
    with_labels = len(labels.relevant()[0])
    return {
        f"{split}_queries": labels.n_queries,
        f"{split}_queries_without_labels": labels.n_queries - with_labels,
        f"{split}_labels": len(labels),
    }


def split_queries(labelled: LabelledSet, n_train: int, folds: int) -> list[Split]:
    """Return the given split if it has enough validation queries, and the splits of a cross-validation otherwise.

    Queries with equal vectors are held out together. Queries without a relevant label are never held out.
    """
    relevant = labelled.labels.relevant()[0]
    everything = np.arange(labelled.labels.n_queries)
    given = relevant[relevant >= n_train]
    if len(given) >= _ENOUGH_VALIDATION and len(given) < len(relevant):
        return [Split(everything[:n_train], given)]
    if len(relevant) == 0:
        raise LabelError("none of the labelled queries has a relevant label; there is nothing to learn from")
    _, group = np.unique(labelled.vectors[relevant], axis=0, return_inverse=True)
    n_groups = int(group.max()) + 1
    if n_groups < 2:
        raise LabelError("all labelled queries are equal; two different ones are needed, one of them to choose on")
    folds = min(folds, n_groups)
    fold = (np.random.default_rng(0).permutation(n_groups) % folds)[group.ravel()]
    held_out = [relevant[fold == number] for number in range(folds)]
    return [Split(np.setdiff1d(everything, own), own) for own in held_out]
