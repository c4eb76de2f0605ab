"""Lock files that let one process at a time patch a collection. The system releases them when a process dies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from nudgevec.errors import StoreError
from nudgevec.files import cache_folder

BUSY = "another process is applying or reverting a patch; try again when it has finished"


@contextmanager
def locked(path: Path, url: str) -> Iterator[None]:
    """Hold a lock file; raise StoreError if another process holds it."""
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise StoreError(f"{url}: {BUSY}") from None
    try:
        yield
    finally:
        lock.release()


def lock_file_for(key: str) -> Path:
    """Return the lock file for a store without a local path: one per key and user of this machine."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / hashlib.sha256(key.encode()).hexdigest()[:24]
