"""The data model between files and vectors: documents, queries and labels by id.

``readers`` return a ``Collection``, ``splits`` assigns its labelled queries to train, validation and test, and
``embedders`` turn its texts into vectors.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nudgevec.arrays import Array
from nudgevec.corpus import Corpus
from nudgevec.errors import LabelError, NudgeWarning, VectorError
from nudgevec.stores.base import Store

Grades = dict[str, float]
"""Document id -> grade."""
Qrels = dict[str, Grades]
"""Query id -> document id -> grade."""


def without_surrogates(text: str) -> str:
    """Return a text with "?" for lone surrogates, which have no bytes in UTF-8: no tokenizer and no file takes them."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True)
class Items:
    """Documents or queries.

    Attributes
    ----------
    ids : sequence of str
        Unique ids.
    texts : sequence of str, optional
        Texts in the order of ``ids``.
    vectors : array or Corpus, optional
        Vectors in the order of ``ids``.
    images : sequence of Path, optional
        Image files in the order of ``ids``.
    store : Store, optional
        The vector store of these documents. ``vectors`` are its original ones, whatever patch is applied.
    """

    ids: Sequence[str]
    texts: Sequence[str] | None = None
    vectors: Array | Corpus | None = None
    images: Sequence[Path] | None = None
    store: Store | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Collection:
    """Documents, queries and labels.

    Attributes
    ----------
    name : str
        Name for reports.
    documents, queries : Items
    qrels : dict of str to Qrels
        Labels by split: "train", "validation" and "test", or "all" for labels without a split.
    source : Path or str
        The file or folder of the collection, or the URL of a store.
    n_dropped_labels : int
        Number of labels that were ignored because their query or document is unknown.
    label_log : dict, optional
        The label log that the queries and labels come from: its path and the options of ``LabelLog.labels``.
    """

    name: str
    documents: Items
    queries: Items
    qrels: dict[str, Qrels]
    source: Path | str
    n_dropped_labels: int = 0
    label_log: dict[str, Any] | None = None

    @property
    def merged_qrels(self) -> Qrels:
        """The labels of all splits."""
        merged: Qrels = {}
        for qrels in self.qrels.values():
            for query, grades in qrels.items():
                merged.setdefault(query, {}).update(grades)
        return merged


def make_collection(
    name: str, documents: Items, queries: Items, qrels: dict[str, Qrels], source: Path | str
) -> Collection:
    """Return a consistent collection; labels of unknown queries or documents are dropped with a warning."""
    for kind, items in (("documents", documents), ("queries", queries)):
        if len(items) == 0:
            raise VectorError(f"{source}: no {kind} found")
        if len(set(items.ids)) < len(items):
            duplicate = Counter(items.ids).most_common(1)[0][0]
            raise LabelError(f"{source}: {kind}: the id {duplicate!r} is not unique")
    known_documents, known_queries = set(documents.ids), set(queries.ids)
    kept: dict[str, Qrels] = {}
    n_dropped, example = 0, ""
    for split, split_qrels in qrels.items():
        kept[split] = {}
        for query, grades in split_qrels.items():
            known = {key: grade for key, grade in grades.items() if key in known_documents and query in known_queries}
            if len(known) < len(grades):
                n_dropped += len(grades) - len(known)
                example = example or next(f"{query!r} -> {key!r}" for key in grades if key not in known)
            if known:
                kept[split][query] = known
    if not any(kept.values()):
        reason = ""
        if n_dropped:
            reason = (
                f": all {n_dropped} have an unknown query or document, for example {example}, while document ids look "
                f"like {next(iter(documents.ids))!r}"
            )
        raise LabelError(f"{source}: no usable labels{reason}")
    if n_dropped:
        message = f"{source}: labels of unknown queries or documents are ignored: {n_dropped}, for example {example}"
        warnings.warn(message, NudgeWarning, stacklevel=2)
    return Collection(name, documents, queries, kept, source, n_dropped)
