"""Judged queries, as people pass them to ``fit``: vectors and labels, side by side."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy.typing as npt

from nudgevec.arithmetic.parallel import meanwhile
from nudgevec.corpus import Reader
from nudgevec.errors import LabelError, NudgeWarning
from nudgevec.labels import Labels, read_labels
from nudgevec.queries import Queries, measured, query_matrix

# Fewer numbers are measured sooner than a thread begins.
_WORTH_A_THREAD = 1 << 20

Judged = tuple[npt.ArrayLike, Any]
"""(query vectors, labels): one row and one label entry per query."""


def judged(pair: Judged, reader: Reader, what: str) -> tuple[Queries, Labels]:
    """A pair as it was passed in, checked; ``what`` to call it in messages."""
    try:
        vectors, labels = pair
    except (TypeError, ValueError):
        raise LabelError(f"{what}: pass a pair (query vectors, labels)") from None
    matrix = query_matrix(vectors, reader.dim, what)
    measure = partial(measured, matrix, what)
    measuring = meanwhile(measure) if matrix.size >= _WORTH_A_THREAD else measure
    try:
        found = read_labels(labels, len(matrix), reader, what)
    finally:
        # What is wrong with the vectors is told first.
        queries = measuring()
    return queries, found


def count_shared(train: Queries, held_out: Queries) -> int:
    """How many validation queries are training queries too; they make the curve too hopeful."""
    shared = held_out.shared_with(train)
    if shared:
        message = (
            f"{shared} of {len(held_out)} validation queries are training queries too; "
            "gamma is chosen on queries the documents were moved for, and the gain will look too good"
        )
        warnings.warn(message, NudgeWarning, stacklevel=3)
    return shared
