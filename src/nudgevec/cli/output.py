"""Helpers to print results."""

from __future__ import annotations

import json
from typing import Any


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=indent, ensure_ascii=False))


def shorten(text: str, width: int = 90) -> str:
    """Return a text on one line of limited length."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
