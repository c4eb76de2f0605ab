"""Data sets and embedding models by name, and the random split of the paper.

A data set is read from ``NUDGEVEC_DATA/NAME`` (BEIR layout) and downloaded by ``hub`` if that folder does not exist.
This module is not called ``datasets`` because it would shadow the Hugging Face library of that name.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import hub
import numpy as np

from nudgevec import demo
from nudgevec.errors import NudgeWarning
from nudgevec.text.collection import Collection
from nudgevec.text.embedders import embed_collection
from nudgevec.text.readers import beir

MODEL = "all-MiniLM-L6-v2"
MODELS = {
    "MiniLM": f"precomputed:{MODEL}",
    "e5-small": "precomputed:e5-small",
    "wordllama": "static",
    "BGE-S": "st:BAAI/bge-small-en-v1.5",
    "GTE-L": "st:Alibaba-NLP/gte-large-en-v1.5",
    "TE3-L": "openai:text-embedding-3-large",
    "CLIP-B": "st:clip-ViT-B-32",
    "CLIP-L": "st:clip-ViT-L-14",
}
MAX_HELD_OUT = 10_000
"""Maximum number of validation queries, and of test queries."""
Labels = list[dict[int, float]]
"""Document row -> grade, for each query."""


@dataclass(frozen=True)
class DataSet:
    """Document vectors, query vectors and graded labels; labels of documents outside the corpus are dropped."""

    name: str
    documents: np.ndarray
    queries: np.ndarray
    labels: Labels
    document_texts: list[str] = field(default_factory=list, repr=False)
    query_texts: list[str] = field(default_factory=list, repr=False)

    def subset(self, query_rows: np.ndarray) -> tuple[np.ndarray, Labels]:
        """Return the vectors and labels of the given queries."""
        return self.queries[query_rows], [self.labels[row] for row in query_rows]

    def split(self, seed: int) -> list[tuple[np.ndarray, Labels]]:
        """Split all queries 0.7 / 0.1 / 0.2 into training, validation and test queries with their labels."""
        return [self.subset(query_rows) for query_rows in self.split_rows(seed)]

    def split_rows(self, seed: int, query_rows: np.ndarray | None = None) -> list[np.ndarray]:
        """Split the given queries (default: all) 0.7 / 0.1 / 0.2 and return the rows of each part.

        Queries with equal vectors go to the same part, so that no test query is also a training query. Validation
        and test queries are capped at ``MAX_HELD_OUT``.
        """
        query_rows = np.arange(len(self.queries)) if query_rows is None else query_rows
        _, group = np.unique(self.queries[query_rows], axis=0, return_inverse=True)
        quantile = np.random.default_rng(seed).permutation(group.max() + 1)[group] / (group.max() + 1)
        train, validation, test = quantile < 0.7, (quantile >= 0.7) & (quantile < 0.8), quantile >= 0.8
        return [query_rows[train], query_rows[validation][:MAX_HELD_OUT], query_rows[test][:MAX_HELD_OUT]]

    def without_zeros(self) -> DataSet:
        """Return the documents and queries that have a direction; labels of the others are dropped."""
        rows, query_rows = (np.flatnonzero(vectors.any(axis=1)) for vectors in (self.documents, self.queries))
        if len(rows) == len(self.documents) and len(query_rows) == len(self.queries):
            return self
        new_row = {old: new for new, old in enumerate(rows.tolist())}
        labels = [
            {new_row[row]: grade for row, grade in self.labels[query].items() if row in new_row}
            for query in query_rows.tolist()
        ]
        texts = [self.document_texts[row] for row in rows.tolist()] if self.document_texts else []
        query_texts = [self.query_texts[row] for row in query_rows.tolist()] if self.query_texts else []
        return DataSet(self.name, self.documents[rows], self.queries[query_rows], labels, texts, query_texts)

    def normalized(self) -> DataSet:
        """Return a copy with float32 vectors of unit length."""
        return replace(self, documents=_normalized(self.documents), queries=_normalized(self.queries))


def data_folder() -> Path:
    """Return the folder named by ``NUDGEVEC_DATA``."""
    folder = os.environ.get("NUDGEVEC_DATA")
    if not folder or not Path(folder).is_dir():
        sys.exit("Set NUDGEVEC_DATA to a folder of data sets in BEIR layout (see experiments/README.md).")
    return Path(folder)


def local_names() -> list[str]:
    """List the data sets in ``NUDGEVEC_DATA`` that have precomputed vectors."""
    return sorted(path.parent.parent.parent.name for path in data_folder().glob(f"*/embeddings/{MODEL}/corpus.npy"))


def load(name: str, model: str = "MiniLM") -> DataSet:
    """Load a data set with the vectors of a model, both by name; download it if necessary."""
    if name == "emoji":
        return _emoji(model)
    embedder, folder = embedder_of(model), data_folder() / name
    if not (folder / "corpus.jsonl").is_file():
        hub.fetch(name, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NudgeWarning)
        collection = beir.read(folder)
    documents, queries, _ = embed_collection(collection, embedder)
    texts = [list(items.texts or []) for items in (collection.documents, collection.queries)]
    data = DataSet(name, np.asarray(documents), np.asarray(queries), _labels(collection), *texts)
    return data.without_zeros()


def _emoji(model: str) -> DataSet:
    """Return the data set of the demo."""
    if model != "wordllama":
        sys.exit("The emoji of the demo have vectors of the model wordllama only.")
    search = demo.load()
    labels = [dict.fromkeys(rows, 1.0) for rows in search.relevant]
    return DataSet("emoji", search.documents, search.queries, labels, search.names, search.keywords).without_zeros()


def embedder_of(model: str) -> str:
    """Return the embedder of a model, as in ``nudgevec tune --embedder``."""
    if model not in MODELS:
        sys.exit(f"Unknown model {model!r}: use one of {', '.join(MODELS)}.")
    return MODELS[model]


def _labels(collection: Collection) -> Labels:
    row_of = {key: row for row, key in enumerate(collection.documents.ids)}
    qrels = collection.merged_qrels
    return [
        {row_of[document]: grade for document, grade in qrels.get(query, {}).items()}
        for query in collection.queries.ids
    ]


def _normalized(vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)
