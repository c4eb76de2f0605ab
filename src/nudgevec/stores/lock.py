"""Locks that let one command at a time put patches on a collection. The system lets go of them when a process dies."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nudgevec.errors import StoreError
from nudgevec.folders import cache_folder


@contextmanager
def locked(path: Path, url: str) -> Iterator[None]:
    """Holds a lock file; an error if somebody else does."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{url}: somebody else is putting a patch on or taking one back") from None
        yield


def lock_for(url: str) -> Path:
    """The lock file for a store on a server: one per user of this machine."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(url.encode()).hexdigest()[:24]
