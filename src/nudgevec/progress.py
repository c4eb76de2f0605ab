"""A line that says how far a long task is: on a terminal, after a second, and gone when it is done.

The library is silent; the command line asks for these lines (``shown``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_AFTER = 1.0
_BETWEEN = 0.1
_WIDTH = 30


_asked_for = False


@contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """Show how far tasks are, meanwhile."""
    global _asked_for
    before, _asked_for = _asked_for, wanted
    try:
        yield
    finally:
        _asked_for = before


class Progress:
    """Progress of one task. Silent where nobody asked for it, or where stderr is not a terminal."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.quiet = not _asked_for or not sys.stderr.isatty()
        self.total = self.done = 0
        self.began = self.shown = time.monotonic()
        self.visible = False

    def begin(self, total: int) -> None:
        """There are so many steps."""
        self.total = total

    def step(self, count: int = 1) -> None:
        """So many more are done."""
        self.done += count
        now = time.monotonic()
        if self.quiet or self.total == 0 or now - self.began < _AFTER or now - self.shown < _BETWEEN:
            return
        self.shown, self.visible = now, True
        full = round(_WIDTH * self.done / self.total)
        left = (now - self.began) * (self.total - self.done) / max(1, self.done)
        bar = "█" * full + "░" * (_WIDTH - full)
        sys.stderr.write(f"\r{self.what} {bar} {self.done:,} of {self.total:,}, {left:.0f} s left \x1b[K")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        self.began = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
