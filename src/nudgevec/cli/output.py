"""Helpers to print results."""

from __future__ import annotations

import json
import re
from typing import Any, TextIO

from nudgevec.tables import visible

# Characters that JSON may hold and a terminal may obey; json.dumps escapes those below the space.
_UNSAFE = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def print_text(*lines: str, file: TextIO | None = None) -> None:
    """Print lines; control characters in them are shown, not obeyed."""
    for line in lines:
        print(visible(line), file=file)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    print(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def shorten(text: str, width: int = 90) -> str:
    """Return a text on one line of limited length."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
