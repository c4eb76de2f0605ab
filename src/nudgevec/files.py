"""Atomic writes of files and folders, and the cache folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from nudgevec.errors import InputError

# The files of nudgevec's own in a folder that is being written.
_LOCK = ".nudgevec-lock"
_DRAFT = ".nudgevec-draft"
_COMPLETE = ".nudgevec-complete"
# A draft folder holds a file that shows who created it, and is not removed without it.
_MARK = "created-by-nudgevec"
_FILES = "files"


@contextmanager
def write_file_atomically(target: Path) -> Iterator[Path]:
    """Yield an empty draft that replaces ``target`` once it is on disk; mode and owner of an existing file are kept."""
    target = target.resolve()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.draft")
    # A file of this name that exists is not ours, and a new file has the mode that the umask of the user gives it.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield draft
        _flush(draft)
        if target.exists():
            shutil.copymode(target, draft)
            status = target.stat()
            with contextlib.suppress(PermissionError):
                os.chown(draft, status.st_uid, status.st_gid)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(target.parent)


def create_file(path: Path) -> None:
    """Create an empty file, with the mode that the umask gives it, unless there is one."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Create a folder if it does not exist, and keep other processes from claiming it.

    A folder that is still empty at the end is removed if it was created here.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder}: another process is writing to this folder") from None
    try:
        finish_replacement(folder)
        yield
    finally:
        # While it is locked: who opens the old file later finds that it was removed, and creates a new one.
        if path.stat().st_size == 0:
            path.unlink()
        lock.release()
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Create a folder, and remove it at the end; one that a killed process left is replaced.

    Raises
    ------
    InputError
        If there is something at this path that nudgevec did not create.
    """
    _remove_draft(path)
    path.mkdir()
    (path / _MARK).touch()
    try:
        yield path
    finally:
        _remove_draft(path)


def _remove_draft(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    mark = folder / _MARK
    entries = list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else None
    if entries is None or (entries and mark not in entries):
        raise InputError(f"{folder} was not created by nudgevec, which needs this name for a while: rename it")
    # The mark goes last: a process that is killed before leaves a folder that can be removed.
    for path in sorted(entries, key=lambda path: path == mark):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


@contextmanager
def replace_files(folder: Path) -> Iterator[Path]:
    """Yield a draft folder, and move its files to a claimed folder, all of them or none.

    Other files in the folder stay as they are. A process that is killed while it moves files leaves the rest to
    ``finish_replacement``.
    """
    with draft_folder(folder / _DRAFT) as draft:
        files = draft / _FILES
        files.mkdir()
        yield files
        for path in files.rglob("*"):
            if path.is_file():
                _flush(path)
        os.replace(draft, folder / _COMPLETE)
        sync_folder(folder)
    finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Move the files of a complete draft to their folder, if a process was killed before it had moved all of them.

    Raises
    ------
    InputError
        If a symbolic link would take files out of the folder.
    """
    complete = folder / _COMPLETE
    if complete.is_symlink() or not (complete / _MARK).exists():
        return
    files = complete / _FILES
    paths = [] if files.is_symlink() else sorted(files.rglob("*"))
    subfolders = [path for path in paths if path.is_dir() and not path.is_symlink()]
    for subfolder in subfolders:
        target = folder / subfolder.relative_to(files)
        if target.is_symlink():
            raise InputError(f"{target} is a symbolic link, and files are about to be written there: remove it")
        target.mkdir(exist_ok=True)
    # Another process may be doing the same.
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path not in subfolders:
                os.replace(path, folder / path.relative_to(files))
    with contextlib.suppress(FileNotFoundError):
        _remove_draft(complete)
    sync_folder(folder)


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing, apart from what a killed process of nudgevec left in it."""
    return all(path.name in (_LOCK, _DRAFT) for path in folder.iterdir())


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file)


def cache_folder() -> Path:
    """Return the folder of cached data: ``$NUDGEVEC_CACHE``, or the cache folder of the user."""
    return Path(os.environ.get("NUDGEVEC_CACHE") or platformdirs.user_cache_dir("nudgevec", appauthor=False))
