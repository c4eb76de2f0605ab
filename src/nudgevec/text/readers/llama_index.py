"""LlamaIndex's ``EmbeddingQAFinetuneDataset`` as it saves itself: one JSON file with queries, corpus, relevant_docs."""

from __future__ import annotations

import json
from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, collected


def read(path: Path) -> Collection:
    """The data set in this file; every relevant document has the grade 1."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        queries, corpus, relevant = data["queries"], data["corpus"], data["relevant_docs"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not an EmbeddingQAFinetuneDataset (queries, corpus, relevant_docs): {error}"
        ) from None
    judged = {str(query): {str(key): 1.0 for key in keys} for query, keys in relevant.items()}
    return collected(path.stem, _items(corpus), _items(queries), {"all": judged}, path)


def _items(texts: dict[str, str]) -> Items:
    return Items([str(key) for key in texts], [str(text) for text in texts.values()])
