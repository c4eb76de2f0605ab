"""A collection as people keep it: documents, queries and judgements by id, as texts or as vectors.

This is the form between files and arithmetic. ``readers`` make it, ``split`` deals the judged queries out to
training, validation and test, ``embedders`` turn its texts into vectors.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nudgevec.arrays import Array
from nudgevec.corpus import Corpus
from nudgevec.errors import LabelError, NudgeWarning, VectorError

Grades = dict[str, float]
Qrels = dict[str, Grades]
"""Query id -> document id -> grade."""


@dataclass(frozen=True)
class Items:
    """Documents or queries: ids, and texts, vectors or files of images in the same order.

    ``compared_by`` is the metric of the store they are in, where it has one.
    """

    ids: Sequence[str]
    texts: Sequence[str] | None = None
    vectors: Array | Corpus | None = None
    images: Sequence[Path] | None = None
    compared_by: str | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and judgements by side: "train", "validation", "test", or "all" where nobody split them."""

    name: str
    documents: Items
    queries: Items
    qrels: dict[str, Qrels]
    where: Path | str
    """A file or folder, or the url of a store."""
    dropped: int = field(default=0)
    """Judgements of documents or queries that are not there."""
    labels: dict[str, Any] | None = None
    """Where queries and judgements come from a label log: its path and how it was folded."""

    @property
    def judged(self) -> Qrels:
        """All judgements, whatever the side."""
        together: Qrels = {}
        for side in self.qrels.values():
            for query, grades in side.items():
                together.setdefault(query, {}).update(grades)
        return together


def collected(name: str, documents: Items, queries: Items, qrels: dict[str, Qrels], where: Path | str) -> Collection:
    """A collection whose parts fit together. Judgements about nothing are left out, with a warning."""
    for what, items in (("documents", documents), ("queries", queries)):
        if len(items) == 0:
            raise VectorError(f"{where}: there are no {what}")
        if len(set(items.ids)) < len(items):
            twice = Counter(items.ids).most_common(1)[0][0]
            raise LabelError(f"{where}: {what}: the id {twice!r} stands there twice")
    known_documents, known_queries = set(documents.ids), set(queries.ids)
    kept: dict[str, Qrels] = {}
    dropped, example = 0, ""
    for side, judged in qrels.items():
        kept[side] = {}
        for query, grades in judged.items():
            some = {key: grade for key, grade in grades.items() if key in known_documents and query in known_queries}
            if len(some) < len(grades):
                dropped += len(grades) - len(some)
                example = example or next(f"{query!r} -> {key!r}" for key in grades if key not in some)
            if some:
                kept[side][query] = some
    if not any(kept.values()):
        named = f"documents here are named like {next(iter(documents.ids))!r}"
        hint = (
            f" (of {dropped}, for example {example}, the query or the document is unknown; {named})" if dropped else ""
        )
        raise LabelError(f"{where}: there are no judgements to learn from{hint}")
    if dropped:
        message = f"{where}: {dropped} judgements of unknown queries or documents are left out, for example {example}"
        warnings.warn(message, NudgeWarning, stacklevel=2)
    return Collection(name, documents, queries, kept, where, dropped)
