"""Opening the SQLite file of a label log: files of other programs are refused, and reading changes nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from nudgevec.errors import LabelError
from nudgevec.files import create_file

_MEMORY = Path(":memory:")
_TIMEOUT = 60
_COLUMNS = {"query", "document", "signal", "value", "propensity", "time", "source"}


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a label log.

    Parameters
    ----------
    path : Path
        The file. It is created, without tables, if it does not exist and is opened for writing. ``:memory:`` is a log
        in memory.
    read_only : bool
        Open it for reading, also on a read-only disk.

    Raises
    ------
    LabelError
        If this is an SQLite file of another program.
    sqlite3.Error
        If it is no SQLite file, or cannot be opened.
    """
    if path.is_file() and _write_ahead_log(path).exists():
        # The last connection that may write moves this log into the file when it is closed.
        with closing(_connect(path, "mode=ro")) as connection:
            _check_tables(connection, path, read_only)
    if read_only:
        connection = _connect_for_reading(path)
    else:
        if path != _MEMORY:
            # SQLite would create a file that the group cannot write to, whatever the umask.
            create_file(path)
        connection = _connect(path, "mode=rw")
    try:
        _check_tables(connection, path, read_only)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_tables(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    """Raise LabelError if this is a file of another program. A file without tables may be opened for writing."""
    is_empty = not connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    columns = {row[1] for row in connection.execute("PRAGMA table_info(events)")}
    if not columns >= _COLUMNS and (read_only or not is_empty):
        raise LabelError(f"{path} is not a label log: it has no table of events. Nothing was changed")


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode == sqlite3.SQLITE_BUSY


@retry(retry=retry_if_exception(_is_busy), stop=stop_after_delay(_TIMEOUT), wait=wait_random(0, 0.05), reraise=True)
def write_ahead(connection: sqlite3.Connection) -> None:
    """Let others read a log while it is written. SQLite itself does not wait for processes that do the same."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    """Open a log without changing it. With ``mode=ro`` SQLite would leave its files beside the log."""
    connection = _connect(path, "mode=rw")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        connection.close()
        # In a read-only folder SQLite cannot create these files. Without them no other process has the log open, and it
        # can be read as a file that does not change.
        is_read_only = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not is_read_only or not path.is_file() or _write_ahead_log(path).exists():
            raise
        connection = _connect(path, "mode=ro&immutable=1")
    return connection


def _write_ahead_log(path: Path) -> Path:
    """Return the file in which SQLite keeps what is not in the file of a log yet."""
    return path.with_name(f"{path.name}-wal")


def _connect(path: Path, options: str) -> sqlite3.Connection:
    arguments: dict[str, Any] = {"timeout": _TIMEOUT, "isolation_level": None, "check_same_thread": False}
    connection: sqlite3.Connection = sqlite3.connect(f"file:{quote(os.fspath(path))}?{options}", uri=True, **arguments)
    return connection
