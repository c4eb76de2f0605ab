"""What a label log is good for: how much of a corpus it covers, how useful it will be, and what to collect next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Ids
from typing import Any

import numpy as np

from nudgevec.feedback.log import LabelLog
from nudgevec.text.splits import SIDES, TRAIN, normalised

# The newest queries, by their last event, stand for those to come.
_RECENT = 0.2
_NEXT = 10


def stats(log: LabelLog, documents: Ids[str] | None = None, **folding: Any) -> dict[str, Any]:
    """Figures about a log; with the ids of a corpus, also how much of it is covered."""
    sides = log.labels(**folding)
    unknown = 0
    if documents is not None:
        known = set(documents)
        unknown = sum(key not in known for part in sides.values() for grades in part.values() for key in grades)
        sides = {
            name: {query: {key: grades[key] for key in grades if key in known} for query, grades in part.items()}
            for name, part in sides.items()
        }
    signals = Counter(event.signal for event in log)
    last: dict[str, float] = {}
    for event in log:
        key = normalised(event.query)
        last[key] = max(last.get(key, event.time), event.time)
    trained = Counter(key for grades in sides[TRAIN].values() for key, weight in grades.items() if weight > 0)
    # Queries that are not trained on ask for what future queries will ask for.
    wanted = {
        query: [key for key, weight in grades.items() if weight > 0]
        for name in SIDES
        if name != TRAIN
        for query, grades in sides[name].items()
    }
    wanted = {query: keys for query, keys in wanted.items() if keys}
    newest = sorted(wanted, key=lambda query: (-last[query], query))
    recent = newest[: max(1, round(_RECENT * len(newest)))] if newest else []
    useful = [query for query in recent if any(key in trained for key in wanted[query])]
    missing = Counter(key for query in wanted for key in wanted[query] if key not in trained)
    per_document = np.array(list(trained.values()) or [0])
    found: dict[str, Any] = {
        "events": sum(signals.values()),
        "signals": dict(signals.most_common()),
        "queries": {name: len(sides[name]) for name in SIDES},
        "labels": {name: sum(map(len, sides[name].values())) for name in SIDES},
        "documents_with_training_labels": len(trained),
        "training_labels_per_document": {
            "median": float(np.median(per_document)),
            "most": int(per_document.max()),
        },
        "recent_held_out_queries": len(recent),
        "expected_usefulness": len(useful) / len(recent) if recent else None,
        "collect_next": [{"document": key, "asked_for": count} for key, count in missing.most_common(_NEXT)],
    }
    if documents is not None:
        found["documents"] = len(known)
        found["coverage"] = len(trained) / max(1, len(known))
        found["labels_of_unknown_documents"] = unknown
    return found
