"""Text files: numbered lines and JSON, with errors that name the line."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError

STDIN = Path("-")
"""The file that stands for standard input."""
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
# Bytes on each side of one that is not UTF-8, to be shown.
_CONTEXT = 20


@contextmanager
def open_text(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a text file in UTF-8 or UTF-16, which may be compressed by gzip, or standard input."""
    if path == STDIN and sys.stdin is None:
        raise InputError("standard input is closed")
    with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
        binary: Any = file
        if binary.peek(2)[:2] == _GZIP:
            binary = gzip.GzipFile(fileobj=binary)
        try:
            encoding = "utf-16" if binary.peek(2)[:2] in _UTF16 else "utf-8-sig"
            text = io.TextIOWrapper(binary, encoding)
            try:
                yield text
            finally:
                text.detach()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{display_name(path)} is not a whole gzip file: {error}") from None


def display_name(path: Path) -> str:
    """Return the name of a file for messages."""
    return "standard input" if path == STDIN else str(path)


def numbered_lines(lines: Iterable[str], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line); raise InputError for text that is not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError as error:
        near = error.object[max(0, error.start - _CONTEXT) : error.start + _CONTEXT].decode("latin-1")
        raise InputError(
            f"{display_name(path)}: the text after line {number} is not UTF-8, near {near!r}; perhaps it is Latin-1 "
            "(Windows-1252): convert the file first, for example with iconv -f WINDOWS-1252 -t UTF-8"
        ) from None


def parse_json(text: str, where: str) -> Any:
    """Parse JSON; raise InputError for what is malformed, nested too deeply, or has a number of too many digits."""
    try:
        return json.loads(text)
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        problem = error.msg
    except ValueError:
        problem = "a number has too many digits"
    raise InputError(f"{where}: invalid JSON: {problem}")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every object of a JSON Lines file; empty lines are skipped."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}")
    with path.open(encoding="utf-8-sig") as file:
        yield from json_objects(numbered_lines(file, path), path)


def json_objects(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every numbered line of JSON; empty lines are skipped."""
    for number, text in lines:
        if not text.strip():
            continue
        where = f"{display_name(path)}, line {number}"
        fields = parse_json(text, where)
        if not isinstance(fields, dict):
            raise InputError(f"{where}: expected a JSON object, not {text.strip()[:40]!r}")
        yield number, fields
