"""Data sets and models by name: the paper's nine sets, its five models, and whatever lies in BEIR layout.

A set is taken from the folder named by NUDGEVEC_DATA where it is there, and fetched by ``hub`` where it is not. (The
file is not called ``datasets``: scripts beside it could then not import the Hugging Face library of that name.)
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import hub
import numpy as np

from nudgevec.errors import NudgeWarning
from nudgevec.text.collection import Collection
from nudgevec.text.embedders import embed_collection
from nudgevec.text.readers import beir

MODEL = "all-MiniLM-L6-v2"
MODELS = {
    "MiniLM": f"precomputed:{MODEL}",
    "wordllama": "static",
    "BGE-S": "st:BAAI/bge-small-en-v1.5",
    "GTE-L": "st:Alibaba-NLP/gte-large-en-v1.5",
    "TE3-L": "openai:text-embedding-3-large",
    "CLIP-B": "st:clip-ViT-B-32",
    "CLIP-L": "st:clip-ViT-L-14",
}
CAP = 10_000
Labels = list[dict[int, float]]


@dataclass(frozen=True)
class DataSet:
    """Vectors and graded labels; labels of documents outside the corpus are left out."""

    name: str
    documents: np.ndarray
    queries: np.ndarray
    labels: Labels
    document_texts: list[str] = field(default_factory=list, repr=False)
    query_texts: list[str] = field(default_factory=list, repr=False)

    def part(self, chosen: np.ndarray) -> tuple[np.ndarray, Labels]:
        return self.queries[chosen], [self.labels[number] for number in chosen]

    def split(self, seed: int, cap: int = CAP) -> list[tuple[np.ndarray, Labels]]:
        """The paper's split over all queries: 0.7 / 0.1 / 0.2, the last two capped."""
        return [self.part(chosen) for chosen in self.deal(seed, cap=cap)]

    def deal(self, seed: int, among: np.ndarray | None = None, cap: int = CAP) -> list[np.ndarray]:
        """The numbers of the training, validation and test queries among these (all by default).

        Queries with the same vector stay together, so that no test query was trained on.
        """
        numbers = np.arange(len(self.queries)) if among is None else among
        _, group = np.unique(self.queries[numbers], axis=0, return_inverse=True)
        place = np.random.default_rng(seed).permutation(group.max() + 1)[group] / (group.max() + 1)
        train, held_out, test = place < 0.7, (place >= 0.7) & (place < 0.8), place >= 0.8
        return [numbers[train], numbers[held_out][:cap], numbers[test][:cap]]

    def unit(self) -> DataSet:
        """The same with float32 vectors of length 1."""
        return replace(self, documents=_unit(self.documents), queries=_unit(self.queries))


def folder() -> Path:
    where = os.environ.get("NUDGEVEC_DATA")
    if not where or not Path(where).is_dir():
        sys.exit("Set NUDGEVEC_DATA to a folder of data sets in BEIR layout (see experiments/README.md).")
    return Path(where)


def names() -> list[str]:
    return sorted(path.parent.parent.parent.name for path in folder().glob(f"*/embeddings/{MODEL}/corpus.npy"))


def load(name: str, model: str = "MiniLM") -> DataSet:
    """A data set by name, with the vectors of a model by name."""
    embedder, home = spec(model), folder() / name
    if not (home / "corpus.jsonl").is_file():
        hub.fetch(name, home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NudgeWarning)
        collection = beir.read(home)
    documents, queries, _ = embed_collection(collection, embedder)
    texts = [list(items.texts or []) for items in (collection.documents, collection.queries)]
    return DataSet(name, documents, np.asarray(queries), _labels(collection), *texts)


def spec(model: str) -> str:
    """The embedder of a model by name."""
    if model not in MODELS:
        sys.exit(f"There is no model {model!r}: use one of {', '.join(MODELS)}.")
    return MODELS[model]


def _labels(collection: Collection) -> Labels:
    row_of = {key: row for row, key in enumerate(collection.documents.ids)}
    judged = collection.merged_qrels
    return [
        {row_of[document]: grade for document, grade in judged.get(query, {}).items()}
        for query in collection.queries.ids
    ]


def _unit(vectors: np.ndarray) -> np.ndarray:
    whole = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(whole, axis=1, keepdims=True)
    return whole / np.where(length > 0, length, 1.0)
