"""A cache of embeddings on disk, keyed by a hash of each text.

Every model has one SQLite file in ``$NUDGEVEC_CACHE`` or the cache folder of the user. Processes can share it, and what
was embedded before a crash is not embedded again. Where the file cannot be read or written, nothing is kept.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array
from nudgevec.errors import NudgeWarning, VectorError
from nudgevec.files import cache_folder, create_file

# SQLite accepts at least 999 parameters per statement everywhere.
_KEYS_PER_QUERY = 900

Item = TypeVar("Item", str, Path)


class Cache:
    """The cached vectors of a model, as a context manager.

    Parameters
    ----------
    model : str or None
        The name of the model; None keeps nothing.
    """

    def __init__(self, model: str | None) -> None:
        self.model = model
        self._path = Path()
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Cache:
        if self.model is not None:
            readable = re.sub(r"[^A-Za-z0-9.-]+", "_", self.model)[:60]
            digest = hashlib.sha256(self.model.encode()).hexdigest()[:12]
            self._path = cache_folder() / f"{readable}-{digest}.sqlite"
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                create_file(self._path)
                self._connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
                )
            except (OSError, sqlite3.Error) as error:
                self._give_up(error)
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def _give_up(self, error: Exception) -> None:
        """Go on without the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        message = f"embeddings are not kept, because the cache {self._path} cannot be used: {error}"
        warnings.warn(message, NudgeWarning, stacklevel=4)

    def get_or_embed(
        self, items: Sequence[Item], embed: Callable[[Sequence[Item]], Array], batch_size: int, task: str
    ) -> Array:
        """Return the vectors of texts or image files; texts that are not cached are embedded, each once."""
        keys = [_key(item) for item in items]
        vectors = self._read(set(keys))
        missing = list({key: item for key, item in zip(keys, items, strict=True) if key not in vectors}.items())
        # Texts of similar length share a batch: a batch takes as long as its longest text.
        missing.sort(key=lambda entry: -len(str(entry[1])))
        dims = {len(vector) for vector in vectors.values()}
        with progress.bar(task, len(missing)) as bar:
            for start in range(0, len(missing), batch_size):
                batch = missing[start : start + batch_size]
                rows = np.ascontiguousarray(embed([item for _, item in batch]), dtype=np.float32)
                self._check(rows, len(batch), dims)
                dims.add(rows.shape[1])
                self._write([key for key, _ in batch], rows)
                vectors.update(zip((key for key, _ in batch), rows, strict=True))
                bar.update(len(batch))
        return np.stack([vectors[key] for key in keys])

    def _check(self, rows: Array, n_items: int, dims: set[int]) -> None:
        """Raise VectorError for rows that do not fit the items or the rows before them."""
        name = self.model or "the embedder"
        if rows.ndim != 2 or len(rows) != n_items:
            raise VectorError(f"{name} returned an array of shape {rows.shape} for {n_items} texts")
        if rows.shape[1] == 0:
            raise VectorError(f"{name} returned vectors of 0 dimensions")
        if dims - {rows.shape[1]}:
            expected = " and ".join(str(dim) for dim in sorted(dims))
            cached = "" if self._connection is None else f"; if the model was changed, delete {self._path}"
            raise VectorError(
                f"{name} returned an array of shape {rows.shape} for {n_items} texts, "
                f"while other texts have vectors of {expected} dimensions{cached}"
            )
        if not np.isfinite(rows).all():
            raise VectorError(f"{name} returned a vector with NaN or infinity")

    def _read(self, keys: set[bytes]) -> dict[bytes, Array]:
        vectors: dict[bytes, Array] = {}
        if self._connection is None:
            return vectors
        remaining = list(keys)
        try:
            for start in range(0, len(remaining), _KEYS_PER_QUERY):
                chunk = remaining[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(chunk))
                rows = self._connection.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", chunk)
                vectors.update((key, np.frombuffer(vector, np.float32)) for key, vector in rows if _is_whole(vector))
        except sqlite3.Error as error:
            self._give_up(error)
        if len({len(vector) for vector in vectors.values()}) > 1:
            raise VectorError(f"{self._path} holds vectors of several models: delete it, and embed the texts again")
        return vectors

    def _write(self, keys: list[bytes], rows: Array) -> None:
        if self._connection is None:
            return
        pairs = ((key, row.tobytes()) for key, row in zip(keys, rows, strict=True) if row.any())
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", pairs)
        except sqlite3.Error as error:
            self._give_up(error)


def _is_whole(vector: object) -> bool:
    """Whether a cached value is a vector: zeros and damaged values are embedded again."""
    if not isinstance(vector, bytes) or not vector or len(vector) % 4:
        return False
    numbers = np.frombuffer(vector, np.float32)
    return bool(np.isfinite(numbers).all() and numbers.any())


def _key(item: str | Path) -> bytes:
    """Return a hash of a text, or of the contents of a file."""
    try:
        return hashlib.sha256(
            item.encode(errors="surrogatepass") if isinstance(item, str) else b"file\0" + item.read_bytes()
        ).digest()
    except OSError as error:
        raise VectorError(f"cannot read image: {error}") from None
