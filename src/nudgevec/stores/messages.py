"""Short texts for error messages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

_MAX_EXAMPLES = 5


def error_text(error: Exception) -> str:
    """Return the type and the first line of an error of another library."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def example_ids(ids: Sequence[Hashable]) -> str:
    """Return the first few ids, separated by commas."""
    return ", ".join(repr(key) for key in ids[:_MAX_EXAMPLES])
