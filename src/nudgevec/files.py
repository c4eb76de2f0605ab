"""Atomic writes of files and folders, and the cache folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs


@contextmanager
def write_folder_atomically(target: Path) -> Iterator[Path]:
    """Yield a draft folder that replaces ``target`` if the block succeeds and is removed if it fails."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder as the target, so that the rename stays on one file system.
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    backup = draft.with_name(draft.name + "-old")
    try:
        yield draft
        draft.chmod(0o755)
        if target.exists():
            os.replace(target, backup)
        os.replace(draft, target)
    finally:
        if backup.exists() and not target.exists():
            os.replace(backup, target)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(backup, ignore_errors=True)


@contextmanager
def write_file_atomically(target: Path) -> Iterator[Path]:
    """Yield a draft file that replaces ``target`` once it is on disk; mode and owner of an existing file are kept."""
    target = target.resolve()
    draft = target.with_name(f".{target.name}.draft")
    try:
        yield draft
        with open(draft, "rb+") as file:
            os.fsync(file)
        if target.exists():
            shutil.copymode(target, draft)
            status = target.stat()
            with contextlib.suppress(PermissionError):
                os.chown(draft, status.st_uid, status.st_gid)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """Return the folder of cached data: ``$NUDGEVEC_CACHE``, or the cache folder of the user."""
    return Path(os.environ.get("NUDGEVEC_CACHE") or platformdirs.user_cache_dir("nudgevec", appauthor=False))
