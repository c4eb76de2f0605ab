"""Lines of text files, with their numbers, for messages that say where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError


def numbered(lines: Iterable[str], path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a clear error where they are not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError:
        raise InputError(f"{path}: what follows line {number} is not UTF-8; convert the file first") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file, with their line numbers."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}")
    with path.open(encoding="utf-8-sig") as lines:
        for number, text in numbered(lines, path):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: not JSON: {error.msg}") from None
            if not isinstance(line, dict):
                raise InputError(f"{path}, line {number}: expected an object, not {text.strip()[:40]!r}")
            yield number, line
