"""Folders and files that are there whole or not at all, and the folder for what can be made again."""

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
def made_whole(target: Path) -> Iterator[Path]:
    """A folder to write into, beside its place; it takes the place of what is there when all is written."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = draft.with_name(draft.name + "-old")
    try:
        yield draft
        draft.chmod(0o755)
        if target.exists():
            os.replace(target, old)
        os.replace(draft, target)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A file to write beside its place; it takes the place of the one there, with its rights, when it is on disk."""
    target = target.resolve()
    draft = target.with_name(f".{target.name}.draft")
    try:
        yield draft
        with open(draft, "rb+") as file:
            os.fsync(file)
        if target.exists():
            shutil.copymode(target, draft)
            there = target.stat()
            with contextlib.suppress(PermissionError):
                os.chown(draft, there.st_uid, there.st_gid)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Names in a folder are on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Where nudgevec keeps what can be made again: ``$NUDGEVEC_CACHE``, or else a folder of the user's cache."""
    return Path(os.environ.get("NUDGEVEC_CACHE") or platformdirs.user_cache_dir("nudgevec", appauthor=False))
