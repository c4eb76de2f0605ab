"""Judgements: which documents answer which queries, and how strongly.

``Labels`` is the one form the library works with: three flat columns (query, row, weight) sorted by
query and row. ``read_labels`` makes it from what people have: lists, dicts, one CSR matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import begins
from nudgevec.corpus import Reader
from nudgevec.errors import LabelError, NudgeWarning


@dataclass(frozen=True)
class Labels:
    """Flat judgements, sorted by (query, row), each pair once."""

    query: Ints
    row: Ints
    weight: Floats
    queries: int

    def __len__(self) -> int:
        return len(self.query)

    def answered(self) -> tuple[Ints, Labels]:
        """The queries that have a relevant label (a weight above zero), and those labels, with the queries
        numbered anew."""
        relevant = self.where(self.weight > 0)
        new = begins(relevant.query)
        queries, number = relevant.query[new], np.cumsum(new) - 1
        return queries, Labels(number, relevant.row, relevant.weight, len(queries))

    def where(self, keep: npt.NDArray[np.bool_]) -> Labels:
        if keep.all():
            return self
        return Labels(self.query[keep], self.row[keep], self.weight[keep], self.queries)

    def joined(self, later: Labels) -> Labels:
        """These labels followed by those of more queries."""
        return Labels(
            np.concatenate([self.query, later.query + self.queries]),
            np.concatenate([self.row, later.row]),
            np.concatenate([self.weight, later.weight]),
            self.queries + later.queries,
        )


def read_labels(labels: Any, queries: int, reader: Reader, what: str) -> Labels:
    """Labels of ``queries`` queries, from any accepted form.

    One entry per query: a list (or set, tuple, array) of documents, a dict document -> weight, or a
    single document; or, for all queries at once, a matrix of weights of shape (queries, documents), as a
    NumPy array or a scipy sparse matrix. A document is named by its row, or by its id where the corpus
    has ids.
    """
    if isinstance(labels, np.ndarray) and labels.shape == (queries, reader.rows) and reader.rows > 1:
        query, row = np.nonzero(labels)
        weight = labels[query, row].astype(np.float64)
    elif hasattr(labels, "tocsr"):
        query, row, weight = _from_sparse(labels, queries, reader, what)
    else:
        query, row, weight = _from_entries(labels, queries, reader, what)
    bad = np.flatnonzero(~np.isfinite(weight))
    if len(bad):
        raise LabelError(f"{what}: query {query[bad[0]]} has a label with weight {weight[bad[0]]}")
    # Most lists come sorted and without repetitions; to sort them again would take half of the time.
    in_order = (query[1:] > query[:-1]) | ((query[1:] == query[:-1]) & (row[1:] > row[:-1]))
    if in_order.all():
        return Labels(query, row, weight, queries).where(weight != 0)
    order = np.lexsort((row, query))
    query, row, weight = query[order], row[order], weight[order]
    repeated = (np.diff(query, prepend=-1) == 0) & (np.diff(row, prepend=-1) == 0)
    if repeated.any():
        at = int(np.flatnonzero(repeated)[0])
        differ = np.flatnonzero(repeated & (np.diff(weight, prepend=0) != 0))
        if len(differ):
            at = int(differ[0])
            where = reader.name(int(row[at]))
            raise LabelError(f"{what}: query {query[at]} labels the document in {where} twice, with different weights")
        message = f"{what}: {int(repeated.sum())} repeated labels count once, the first at query {query[at]}"
        warnings.warn(message, NudgeWarning, stacklevel=4)
    return Labels(query, row, weight, queries).where(~repeated & (weight != 0))


def _from_sparse(labels: Any, queries: int, reader: Reader, what: str) -> tuple[Ints, Ints, Floats]:
    if labels.shape != (queries, reader.rows):
        raise LabelError(f"{what}: the label matrix has shape {labels.shape}, expected {(queries, reader.rows)}")
    table = labels.tocsr()
    query = np.repeat(np.arange(queries, dtype=np.int64), np.diff(table.indptr))
    return query, table.indices.astype(np.int64), table.data.astype(np.float64)


def _from_entries(labels: Iterable[Any], queries: int, reader: Reader, what: str) -> tuple[Ints, Ints, Floats]:
    if isinstance(labels, (Mapping, str)) or not isinstance(labels, Iterable):
        raise LabelError(
            f"{what}: labels must be a list with one entry per query, not {type(labels).__name__}; "
            "bring a dict of queries into the order of the query vectors"
        )
    entries: Sequence[Any] = labels if isinstance(labels, Sequence) else list(labels)
    if len(entries) != queries:
        raise LabelError(f"{what}: {len(entries)} label entries do not match {queries} queries")
    kinds = set(map(type, entries))
    if not kinds <= {list, tuple, set, dict}:
        entries = [entry if isinstance(entry, Mapping) else _listed(entry) for entry in entries]
    count = np.fromiter(map(len, entries), dtype=np.int64, count=queries)
    query = np.repeat(np.arange(queries, dtype=np.int64), count)
    keys: list[Hashable] = list(chain.from_iterable(entries))
    weight = np.ones(len(keys))
    if not kinds <= {list, tuple, set}:
        values = map(dict.values, entries) if kinds == {dict} else map(_weights, entries)
        weight = _numbers([*chain.from_iterable(values)], query, what)
    try:
        return query, reader.locate(keys), weight
    except LabelError as error:
        raise LabelError(f"{what}: {error}") from None
    except TypeError:
        raise LabelError(f"{what}: documents are named by a row or an id, not by a list or array") from None


def _listed(entry: Any) -> list[Any]:
    if isinstance(entry, np.ndarray):
        return list(np.atleast_1d(entry))
    return list(entry) if isinstance(entry, Iterable) and not isinstance(entry, (str, bytes)) else [entry]


def _weights(entry: Any) -> Iterable[Any]:
    return entry.values() if isinstance(entry, Mapping) else repeat(1.0, len(entry))


def _numbers(weight: list[Any], query: Ints, what: str) -> Floats:
    try:
        if None not in weight:
            return np.array(weight, dtype=np.float64)
        raise TypeError
    except (TypeError, ValueError):
        bad = next(place for place, value in enumerate(weight) if not isinstance(value, (int, float, np.number)))
        raise LabelError(f"{what}: query {query[bad]} has the weight {weight[bad]!r}, which is not a number") from None
