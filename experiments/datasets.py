"""Data sets in BEIR layout with precomputed vectors, from the folder named by NUDGEVEC_DATA."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MODEL = "all-MiniLM-L6-v2"


@dataclass
class DataSet:
    """Vectors and graded labels; labels of documents outside the corpus are left out and counted."""

    name: str
    documents: np.ndarray
    queries: np.ndarray
    labels: list[dict[int, float]]
    unknown: int

    def part(self, chosen: np.ndarray) -> tuple[np.ndarray, list[dict[int, float]]]:
        return self.queries[chosen], [self.labels[number] for number in chosen]

    def split(self, seed: int, cap: int = 10_000) -> list[tuple[np.ndarray, list[dict[int, float]]]]:
        """The paper's split over all queries: 0.7 / 0.1 / 0.2, the last two capped.

        Queries with the same vector stay together, so that no test query was trained on.
        """
        _, group = np.unique(self.queries, axis=0, return_inverse=True)
        place = np.random.default_rng(seed).permutation(group.max() + 1)[group] / (group.max() + 1)
        train, held_out, test = place < 0.7, (place >= 0.7) & (place < 0.8), place >= 0.8
        numbers = np.flatnonzero(train), np.flatnonzero(held_out)[:cap], np.flatnonzero(test)[:cap]
        return [self.part(chosen) for chosen in numbers]


def folder() -> Path:
    where = os.environ.get("NUDGEVEC_DATA")
    if not where or not Path(where).is_dir():
        sys.exit("Set NUDGEVEC_DATA to a folder of data sets in BEIR layout (see experiments/README.md).")
    return Path(where)


def names() -> list[str]:
    return sorted(path.parent.parent.parent.name for path in folder().glob(f"*/embeddings/{MODEL}/corpus.npy"))


def load(name: str, model: str = MODEL) -> DataSet:
    base = folder() / name
    row_of = {key: row for row, key in enumerate(_ids(base / "corpus.jsonl"))}
    query_of = {key: number for number, key in enumerate(_ids(base / "queries.jsonl"))}
    labels: list[dict[int, float]] = [{} for _ in query_of]
    unknown = 0
    for path in sorted((base / "qrels").glob("*.tsv")):
        for line in path.read_text().splitlines()[1:]:
            query, document, grade = line.split("\t")
            if query in query_of and document in row_of:
                labels[query_of[query]][row_of[document]] = float(grade)
            else:
                unknown += 1
    vectors = base / "embeddings" / model
    return DataSet(name, np.load(vectors / "corpus.npy"), np.load(vectors / "queries.npy"), labels, unknown)


def _ids(path: Path) -> list[str]:
    with path.open() as lines:
        return [json.loads(line)["_id"] for line in lines]
