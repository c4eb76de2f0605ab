"""Numbered lines of text files, for error messages that name the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError


def numbered_lines(lines: Iterable[str], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line); raise InputError for text that is not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError:
        raise InputError(f"{path}: the text after line {number} is not UTF-8; convert the file first") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every object of a JSON Lines file; empty lines are skipped."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}")
    with path.open(encoding="utf-8-sig") as file:
        for number, text in numbered_lines(file, path):
            if not text.strip():
                continue
            try:
                fields = json.loads(text)
            except (ValueError, RecursionError) as error:
                problem = getattr(error, "msg", error)
                raise InputError(f"{path}, line {number}: invalid JSON: {problem}") from None
            if not isinstance(fields, dict):
                raise InputError(f"{path}, line {number}: expected a JSON object, not {text.strip()[:40]!r}")
            yield number, fields
