"""Progress bars, shown by the command line on a terminal; the library is silent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

_shown = False


@contextmanager
def shown(wanted: bool = True, delay: float = 1.0) -> Iterator[None]:
    """Show the progress of tasks that take longer than ``delay`` seconds."""
    global _shown, _delay
    before, _shown, _delay = (_shown, _delay), wanted, delay
    try:
        yield
    finally:
        _shown, _delay = before


_delay = 1.0


def bar(task: str, total: int) -> Any:
    """Return a progress bar, to be used as a context; ``update(n)`` counts n more of ``total``."""
    hidden = not _shown or not sys.stderr.isatty()
    return tqdm(total=total, desc=task, disable=hidden, delay=_delay, leave=False, unit="", unit_scale=True)
