"""LlamaIndex's ``EmbeddingQAFinetuneDataset``: one JSON file with queries, corpus and relevant_docs."""

from __future__ import annotations

from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, make_collection
from nudgevec.text.readers.files import numbered_lines, open_text, parse_json


def read(path: Path) -> Collection:
    """Read the file of a dataset; every relevant document has grade 1."""
    try:
        with open_text(path) as file:
            data = parse_json("".join(line for _, line in numbered_lines(file, path)), str(path))
        documents, queries = _items(data["corpus"]), _items(data["queries"])
        qrels = {str(query): {str(key): 1.0 for key in keys} for query, keys in data["relevant_docs"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not an EmbeddingQAFinetuneDataset (queries, corpus, relevant_docs): {error}"
        ) from None
    return make_collection(path.stem, documents, queries, {"all": qrels}, path)


def _items(texts: dict[str, str]) -> Items:
    return Items([str(key) for key in texts], [str(text) for text in texts.values()])
