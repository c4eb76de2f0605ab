"""Statistics of a label log: how much of a corpus it covers, how useful it is expected to be, what to collect next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Ids
from typing import Any

import numpy as np

from nudgevec.feedback.log import LabelLog
from nudgevec.text.collection import Qrels
from nudgevec.text.splits import SPLITS, TRAIN, normalise

# Share of the held-out queries, the newest by their last event, that stands for future queries.
_RECENT_SHARE = 0.2
_N_SUGGESTIONS = 10


def log_statistics(log: LabelLog, documents: Ids[str] | None = None, **options: Any) -> dict[str, Any]:
    """Return statistics of a label log.

    Parameters
    ----------
    log : LabelLog
    documents : collection of str, optional
        The ids of a corpus, to measure how much of it is covered. Labels of other documents are then ignored.
    **options
        Options of ``LabelLog.labels``.
    """
    labels = log.labels(**options)
    n_unknown = 0
    known = None if documents is None else set(documents)
    if known is not None:
        n_unknown = sum(key not in known for qrels in labels.values() for grades in qrels.values() for key in grades)
        labels = {split: _restrict(qrels, known) for split, qrels in labels.items()}
    n_training_labels = Counter(
        key for grades in labels[TRAIN].values() for key, weight in grades.items() if weight > 0
    )
    # The relevant documents of queries that are not trained on: what future queries are likely to ask for.
    held_out = {
        query: relevant
        for split in SPLITS
        if split != TRAIN
        for query, grades in labels[split].items()
        if (relevant := [key for key, weight in grades.items() if weight > 0])
    }
    recent = _most_recent(log, list(held_out))
    useful = [query for query in recent if any(key in n_training_labels for key in held_out[query])]
    missing = Counter(key for relevant in held_out.values() for key in relevant if key not in n_training_labels)
    per_document = np.array(list(n_training_labels.values()) or [0])
    signals = Counter(event.signal for event in log)
    statistics: dict[str, Any] = {
        "events": sum(signals.values()),
        "signals": dict(signals.most_common()),
        "queries": {split: len(labels[split]) for split in SPLITS},
        "labels": {split: sum(map(len, labels[split].values())) for split in SPLITS},
        "documents_with_training_labels": len(n_training_labels),
        "training_labels_per_document": {"median": float(np.median(per_document)), "most": int(per_document.max())},
        "recent_held_out_queries": len(recent),
        "expected_usefulness": len(useful) / len(recent) if recent else None,
        "collect_next": [{"document": key, "asked_for": count} for key, count in missing.most_common(_N_SUGGESTIONS)],
    }
    if known is not None:
        statistics["documents"] = len(known)
        statistics["coverage"] = len(n_training_labels) / max(1, len(known))
        statistics["labels_of_unknown_documents"] = n_unknown
    return statistics


def _restrict(qrels: Qrels, documents: set[str]) -> Qrels:
    """Keep the labels of these documents; queries stay, even without labels."""
    return {query: {key: grades[key] for key in grades if key in documents} for query, grades in qrels.items()}


def _most_recent(log: LabelLog, queries: list[str]) -> list[str]:
    """Return the queries with the latest events."""
    if not queries:
        return []
    last_event: dict[str, float] = {}
    for event in log:
        key = normalise(event.query)
        last_event[key] = max(last_event.get(key, event.time), event.time)
    newest = sorted(queries, key=lambda query: (-last_event[query], query))
    return newest[: max(1, round(_RECENT_SHARE * len(newest)))]
