"""Vectors made elsewhere: ``DATA/embeddings/NAME/{corpus,queries}.npy``, rows in the order of the data."""

from __future__ import annotations

from pathlib import Path

from nudgevec.arrays import Array
from nudgevec.errors import OptionError, VectorError
from nudgevec.text.collection import Collection, Items
from nudgevec.text.readers.vectors import read_npy


def read_vectors(collection: Collection, name: str) -> tuple[Array, Array]:
    """Return the precomputed document and query vectors of a collection."""
    if collection.label_log is not None:
        raise OptionError(
            "precomputed query vectors belong to the queries of the data, not to those of a label log: "
            "name the model that made them instead, so that it embeds the queries of the log too"
        )
    source = Path(collection.source)
    home = (source if source.is_dir() else source.parent) / "embeddings"
    folder = home / name
    if not name or not folder.is_dir():
        available = ", ".join(sorted(entry.name for entry in home.iterdir())) if home.is_dir() else "none"
        raise VectorError(f"no precomputed vectors at {folder}; available: {available}")
    return _read(folder / "corpus.npy", collection.documents), _read(folder / "queries.npy", collection.queries)


def _read(path: Path, items: Items) -> Array:
    vectors = read_npy(path)
    if vectors.ndim != 2 or len(vectors) != len(items):
        raise VectorError(f"{path} has shape {vectors.shape}, but there are {len(items)} texts")
    return vectors
