"""Locks that let one command at a time write to a collection. The system releases them when a process dies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from nudgevec.errors import StoreError
from nudgevec.files import cache_folder


@contextmanager
def locked(path: Path, url: str) -> Iterator[None]:
    """Hold a lock file; raise StoreError if another process holds it."""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise StoreError(f"{url}: somebody else is putting a patch on or taking one back") from None
    try:
        yield
    finally:
        lock.release()


def lock_for(url: str) -> Path:
    """Return the lock file for a store on a server: one per user of this machine."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(url.encode()).hexdigest()[:24]
