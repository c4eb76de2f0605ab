"""Vectors kept on disk, text by text, under a hash of the model's name and the text.

One SQLite file per model: several processes can share it, what was embedded before a crash is there afterwards, and
a second run embeds nothing. It lives in ``$NUDGEVEC_CACHE``, or else in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array
from nudgevec.errors import VectorError
from nudgevec.files import cache_folder

# Keys looked up at a time; SQLite takes 999 parameters everywhere.
_LOOKUP = 900


Thing = TypeVar("Thing", str, Path)


def _key(thing: str | Path) -> bytes:
    """A hash of a text, or of what is in a file."""
    try:
        return hashlib.sha256(thing.encode() if isinstance(thing, str) else b"file\0" + thing.read_bytes()).digest()
    except OSError as error:
        raise VectorError(f"an image cannot be read: {error}") from None


class Cache:
    """The vectors of one model; nothing is kept without a name."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.file: sqlite3.Connection | None = None

    def __enter__(self) -> Cache:
        if self.model is not None:
            cache_folder().mkdir(parents=True, exist_ok=True)
            readable = re.sub(r"[^A-Za-z0-9.-]+", "_", self.model)[:60]
            name = f"{readable}-{hashlib.sha256(self.model.encode()).hexdigest()[:12]}.sqlite"
            self.file = sqlite3.connect(cache_folder() / name, timeout=60, isolation_level=None)
            self.file.execute("PRAGMA journal_mode = WAL")
            self.file.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def filled(
        self, things: Sequence[Thing], embed: Callable[[Sequence[Thing]], Array], batch: int, task: str
    ) -> Array:
        """Vectors of all texts (or image files): those that are there, and the others from ``embed``, each once."""
        keys = [_key(thing) for thing in things]
        vectors = self._read(set(keys))
        missing = list({key: thing for key, thing in zip(keys, things, strict=True) if key not in vectors}.items())
        # Texts of like length go together: a batch takes as long as its longest.
        missing.sort(key=lambda each: -len(str(each[1])))
        dim = {len(vector) for vector in vectors.values()}
        with progress.bar(task, len(missing)) as bar:
            for start in range(0, len(missing), batch):
                some = missing[start : start + batch]
                rows = np.ascontiguousarray(embed([thing for _, thing in some]), dtype=np.float32)
                dim.add(rows.shape[1])
                if rows.shape[0] != len(some) or len(dim) > 1:
                    raise VectorError(
                        f"{self.model or 'the embedder'} gave vectors of shape {rows.shape} for {len(some)} texts, "
                        f"after vectors of {min(dim)} dimensions"
                    )
                if not np.isfinite(rows).all():
                    raise VectorError(f"{self.model or 'the embedder'} gave a vector with NaN or infinity in it")
                self._write([key for key, _ in some], rows)
                vectors.update(zip((key for key, _ in some), rows, strict=True))
                bar.update(len(some))
        return np.stack([vectors[key] for key in keys])

    def _read(self, keys: set[bytes]) -> dict[bytes, Array]:
        found: dict[bytes, Array] = {}
        if self.file is None:
            return found
        wanted = list(keys)
        for start in range(0, len(wanted), _LOOKUP):
            some = wanted[start : start + _LOOKUP]
            marks = ",".join("?" * len(some))
            rows = self.file.execute(f"SELECT key, vector FROM vectors WHERE key IN ({marks})", some)
            found.update((key, np.frombuffer(vector, np.float32)) for key, vector in rows)
        return found

    def _write(self, keys: list[bytes], rows: Array) -> None:
        if self.file is None:
            return
        self.file.execute("BEGIN IMMEDIATE")
        pairs = ((key, row.tobytes()) for key, row in zip(keys, rows, strict=True))
        self.file.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", pairs)
        self.file.execute("COMMIT")
