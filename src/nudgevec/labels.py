"""Queries and their labels as arrays, from every accepted form.

``Labels`` is the one form the library works with: three flat columns (query, row, weight), sorted by query and row.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, Floats, Ints, Mask, as_list, as_matrix, as_plain, from_torch, only_column
from nudgevec.errors import LabelError, NudgeWarning, VectorError

# The squares of larger numbers overflow.
_LARGEST = 1e150

LabelledQueries = tuple[npt.ArrayLike, Any]
"""(query vectors, labels): one row and one entry of labels per query."""


@dataclass(frozen=True)
class Labels:
    """Labels of ``n_queries`` queries, sorted by (query, row), each pair once."""

    query: Ints
    row: Ints
    weight: Floats
    n_queries: int

    def __len__(self) -> int:
        return len(self.query)

    def relevant(self) -> tuple[Ints, Labels]:
        """Return the queries with a positive label, and these labels, with the queries numbered anew."""
        positive = self.where(self.weight > 0)
        queries, number = np.unique(positive.query, return_inverse=True)
        return queries, Labels(number, positive.row, positive.weight, len(queries))

    def where(self, keep: Mask) -> Labels:
        """Return some of the labels of the same queries."""
        return Labels(self.query[keep], self.row[keep], self.weight[keep], self.n_queries)

    def joined(self, other: Labels) -> Labels:
        """Return these labels followed by those of more queries."""
        return Labels(
            np.concatenate([self.query, other.query + self.n_queries]),
            np.concatenate([self.row, other.row]),
            np.concatenate([self.weight, other.weight]),
            self.n_queries + other.n_queries,
        )


class Documents(Protocol):
    """What labels need to know about documents."""

    n_rows: int
    dim: int

    def locate(self, wanted: Sequence[Hashable]) -> Ints:
        """Return the row of each document; raise LabelError for one that is not there."""

    def name(self, row: int) -> str:
        """Return what to call a document in a message."""


def read_labelled_queries(pair: LabelledQueries, documents: Documents, what: str) -> tuple[Array, Labels]:
    """Read query vectors and their labels.

    Parameters
    ----------
    pair : (query vectors, labels)
    documents : Documents
        What the labels refer to.
    what : str
        What to call the queries in a message.
    """
    try:
        vectors, labels = pair
    except (TypeError, ValueError):
        raise LabelError(f"{what}: pass a pair (query vectors, labels)") from None
    queries = read_queries(vectors, documents.dim, what)
    return queries, read_labels(labels, len(queries), documents, what)


def read_queries(vectors: Any, dim: int, what: str) -> Array:
    """Read query vectors: finite, not zero, of the documents' dimension, in float32 or float64."""
    queries = as_matrix(vectors, what)
    if queries.shape[1] != dim:
        raise VectorError(f"{what} have {queries.shape[1]} dimensions, the documents have {dim}")
    odd = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if len(odd):
        raise VectorError(f"{what}: row {odd[0]} holds NaN or infinity; remove or repair it")
    zero = np.flatnonzero(~queries.any(axis=1))
    if len(zero):
        raise VectorError(f"{what}: row {zero[0]} is all zeros, which has no direction; remove it")
    large = np.flatnonzero(np.abs(queries).max(axis=1, initial=0.0).astype(np.float64) > _LARGEST)
    if len(large):
        raise VectorError(f"{what}: row {large[0]} holds numbers above {_LARGEST:g}; scale the vectors down")
    return queries.astype(np.float32) if queries.dtype == np.float16 else queries


def read_labels(labels: Any, n_queries: int, documents: Documents, what: str) -> Labels:
    """Read the labels of queries.

    Parameters
    ----------
    labels : list, or matrix of shape (n_queries, documents)
        One entry per query: a list (set, tuple, array, column) of documents, a dict document -> weight, or a single
        document. Or a matrix of weights: an array, tensor or data frame, or a sparse matrix of SciPy or PyTorch. A
        document is named by its row, or by its id where the corpus has ids.
    n_queries : int
    documents : Documents
    what : str
        What to call the queries in a message.

    Raises
    ------
    LabelError
        If a document is not there, a weight is not finite, or a query labels a document twice with different weights.
    """
    labels = _plain_table(labels)
    is_table = isinstance(labels, np.ndarray) and labels.ndim == 2 and labels.dtype.kind in "biuf"
    if is_table and labels.shape == (n_queries, documents.n_rows) and documents.n_rows > 1:
        query, row = np.nonzero(labels)
        weight = labels[query, row].astype(np.float64)
    elif is_table and labels.dtype.kind in "bf":
        expected = (n_queries, documents.n_rows)
        raise LabelError(f"{what}: the label matrix has shape {labels.shape}, expected {expected}")
    elif _is_sparse(labels):
        query, row, weight = _from_sparse(labels, n_queries, documents, what)
    else:
        query, row, weight = _from_entries(labels, n_queries, documents, what)
    bad = np.flatnonzero(~np.isfinite(weight))
    if len(bad):
        raise LabelError(f"{what}: query {query[bad[0]]} has a label with weight {weight[bad[0]]}")
    order = np.lexsort((row, query))
    query, row, weight = query[order], row[order], weight[order]
    repeated = (np.diff(query, prepend=-1) == 0) & (np.diff(row, prepend=-1) == 0)
    if repeated.any():
        _check_repeated(query, row, weight, repeated, documents, what)
    return Labels(query, row, weight, n_queries).where(~repeated & (weight != 0))


def _plain_table(labels: Any) -> Any:
    """Return a dense tensor or a data frame as a NumPy array, and everything else as it is."""
    if isinstance(labels, np.ndarray) or len(getattr(labels, "shape", ())) != 2 or _is_sparse(labels):
        return labels
    if hasattr(labels, "detach"):
        return from_torch(labels)
    return only_column(labels.to_numpy() if hasattr(labels, "to_numpy") else np.asarray(labels))


def _is_sparse(labels: Any) -> bool:
    """Whether labels are a sparse matrix of SciPy or PyTorch."""
    return hasattr(labels, "tocsr") or str(getattr(labels, "layout", "")).startswith("torch.sparse")


def _check_repeated(query: Ints, row: Ints, weight: Floats, repeated: Mask, documents: Documents, what: str) -> None:
    differ = np.flatnonzero(repeated & (np.diff(weight, prepend=0) != 0))
    if len(differ):
        document = documents.name(int(row[differ[0]]))
        raise LabelError(f"{what}: query {query[differ[0]]} labels {document} twice, with different weights")
    first = query[np.argmax(repeated)]
    message = f"{what}: {int(repeated.sum())} repeated labels count once, the first at query {first}"
    warnings.warn(message, NudgeWarning, stacklevel=5)


def _from_sparse(labels: Any, n_queries: int, documents: Documents, what: str) -> tuple[Ints, Ints, Floats]:
    shape, expected = tuple(labels.shape), (n_queries, documents.n_rows)
    if shape != expected:
        raise LabelError(f"{what}: the label matrix has shape {shape}, expected {expected}")
    if not hasattr(labels, "tocsr"):
        tensor = labels.detach().to_sparse_coo().coalesce()
        query, row = tensor.indices().cpu().numpy()
        return query, row, tensor.values().double().cpu().numpy()
    table = labels.tocsr()
    query = np.repeat(np.arange(n_queries, dtype=np.int64), np.diff(table.indptr))
    return query, table.indices.astype(np.int64), table.data.astype(np.float64)


def _from_entries(labels: Any, n_queries: int, documents: Documents, what: str) -> tuple[Ints, Ints, Floats]:
    if isinstance(labels, (Mapping, str)) or not isinstance(labels, Iterable):
        raise LabelError(
            f"{what}: labels must be a list with one entry per query, not {type(labels).__name__}; "
            "bring a dict of queries into the order of the query vectors"
        )
    entries = [_documents_of(entry) for entry in as_list(labels)]
    if len(entries) != n_queries:
        raise LabelError(f"{what}: {len(entries)} label entries do not match {n_queries} queries")
    query = np.repeat(np.arange(n_queries, dtype=np.int64), [len(entry) for entry in entries])
    try:
        row = documents.locate(_plain_objects(list(chain.from_iterable(entries))))
    except LabelError as error:
        raise LabelError(f"{what}: {error}") from None
    except TypeError:
        raise LabelError(f"{what}: documents are named by a row or an id, not by a list or array") from None
    weight = np.ones(len(row))
    if any(isinstance(entry, dict) for entry in entries):
        weights = [
            weight
            for entry in entries
            for weight in (entry.values() if isinstance(entry, dict) else [1.0] * len(entry))
        ]
        weight = _numbers(weights, query, what)
    return query, row, weight


def _documents_of(entry: Any) -> Any:
    # Most entries are lists. Asking whether something is iterable takes longer than the rest of reading labels.
    if isinstance(entry, (list, dict)):
        return entry
    if isinstance(entry, Mapping):
        return dict(entry)
    if isinstance(entry, (str, bytes)) or not isinstance(entry, Iterable):
        return [entry]
    return as_list(entry)


def _plain_objects(values: list[Any]) -> list[Any]:
    # Most are plain already. To look at each takes ten times as long as to collect their types.
    return values if set(map(type, values)) <= {int, float, str} else [as_plain(value) for value in values]


def _numbers(weights: list[Any], query: Ints, what: str) -> Floats:
    numbers = _plain_objects(weights)
    for position, number in enumerate(numbers):
        if not isinstance(number, (int, float, np.number)):
            raise LabelError(f"{what}: query {query[position]} has the weight {number!r}, which is not a number")
    return np.array(numbers, dtype=np.float64)


def count_shared(train: Array, validation: Array) -> int:
    """Return how many validation queries are training queries too, and warn about them."""
    kind = np.result_type(train, validation)
    # Equal queries begin with equal numbers, which is quick to check.
    alike = [np.isin(one[:, 0], other[:, 0]) for one, other in ((train, validation), (validation, train))]
    seen = set(_digests(train[alike[0]], kind))
    shared = sum(digest in seen for digest in _digests(validation[alike[1]], kind))
    if shared:
        message = (
            f"{shared} of {len(validation)} validation queries are training queries too; "
            "gamma is chosen on queries the documents were moved for, and the gain will look too good"
        )
        warnings.warn(message, NudgeWarning, stacklevel=3)
    return shared


def _digests(queries: Array, kind: np.dtype[Any]) -> Iterator[bytes]:
    for query in queries:
        # Adding zero makes -0.0 equal to 0.0.
        yield blake2b((query.astype(kind) + 0).tobytes(), digest_size=16).digest()
