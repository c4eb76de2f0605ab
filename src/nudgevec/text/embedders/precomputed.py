"""Vectors that were made elsewhere: ``DATA/embeddings/NAME/{corpus,queries}.npy``, rows in the order of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import OptionError, VectorError
from nudgevec.text.collection import Collection, Items


def read(collection: Collection, name: str) -> tuple[Array, Array]:
    """Document and query vectors of this name."""
    if collection.labels is not None:
        raise OptionError(
            "precomputed query vectors belong to the queries of the data, not to those of a label log: "
            "name the model that made them instead, so that the queries of the log go the same way"
        )
    where = Path(collection.where)
    home = (where if where.is_dir() else where.parent) / "embeddings"
    folder = home / name
    if not name or not folder.is_dir():
        there = ", ".join(sorted(each.name for each in home.iterdir())) if home.is_dir() else "none"
        raise VectorError(f"there are no vectors at {folder}; precomputed here: {there}")
    return _read(folder / "corpus.npy", collection.documents), _read(folder / "queries.npy", collection.queries)


def _read(path: Path, items: Items) -> Array:
    try:
        vectors: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise VectorError(f"{path} is not a readable .npy file: {error}") from None
    if vectors.ndim != 2 or len(vectors) != len(items):
        raise VectorError(f"{path} has the shape {vectors.shape}, but there are {len(items)} texts")
    return vectors
