"""LlamaIndex's ``EmbeddingQAFinetuneDataset``: one JSON file with queries, corpus and relevant_docs."""

from __future__ import annotations

import json
from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, make_collection


def read(path: Path) -> Collection:
    """Read the file of a dataset; every relevant document has grade 1."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        queries, corpus, relevant = data["queries"], data["corpus"], data["relevant_docs"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not an EmbeddingQAFinetuneDataset (queries, corpus, relevant_docs): {error}"
        ) from None
    qrels = {str(query): {str(key): 1.0 for key in keys} for query, keys in relevant.items()}
    return make_collection(path.stem, _items(corpus), _items(queries), {"all": qrels}, path)


def _items(texts: dict[str, str]) -> Items:
    return Items([str(key) for key in texts], [str(text) for text in texts.values()])
