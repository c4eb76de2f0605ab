"""Progress bars for long tasks. The command line shows them on a terminal; the library is silent by default."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

_visible = False
_delay = 1.0


@contextmanager
def show_bars(visible: bool = True, delay: float = 1.0) -> Iterator[None]:
    """Show the bars of tasks that take longer than ``delay`` seconds while the block runs."""
    global _visible, _delay
    previous = _visible, _delay
    _visible, _delay = visible, delay
    try:
        yield
    finally:
        _visible, _delay = previous


def bar(task: str, total: int) -> Any:
    """Return a progress bar as a context manager; its ``update(n)`` reports n more of ``total``."""
    hidden = not _visible or not sys.stderr.isatty()
    return tqdm(total=total, desc=task, disable=hidden, delay=_delay, leave=False, unit="", unit_scale=True)
