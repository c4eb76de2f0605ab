"""Threads: one function on many pieces at once, its results in order.

NumPy lets other threads run while it works, so pieces of a scan run side by side. Meanwhile each product runs
on the one thread that asked for it: many products at once use the cores better than one product split up,
and everything around the products is shared out too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

# Threads for work that is many short steps: more of them would wait for each other between the steps.
FEW = 4
# Vectors prepared at a time, by one thread.
ROWS = 1024

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def ordered(function: Callable[[Piece], Result], pieces: Iterable[Piece], threads: int = 0) -> Iterator[Result]:
    """``map(function, pieces)`` on all cores, or on so many threads.

    Pieces are taken when a thread is about to be free for them.
    """
    workers = min(cores(), threads or cores())
    remaining = iter(pieces)
    begin = list(islice(remaining, 2))
    if workers == 1 or len(begin) < 2:
        yield from map(function, chain(begin, remaining))
        return
    waiting: deque[Future[Result]] = deque()
    with _products.single_threaded(), ThreadPoolExecutor(workers, "nudgevec") as pool:
        try:
            for piece in chain(begin, remaining):
                waiting.append(pool.submit(function, piece))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def everywhere(function: Callable[[slice], object], size: int, step: int = 0) -> None:
    """Call ``function`` for slices of some rows that together cover ``size`` rows, on several threads."""
    for _ in ordered(function, slices(size, step or ROWS), FEW):
        pass


def slices(size: int, step: int) -> Iterator[slice]:
    """Slices of at most ``step`` rows that together cover ``size`` rows."""
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def cores() -> int:
    """How many threads to use: one for each core this process may run on, or as many as its BLAS is set to."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _products.threads()))


class _Products:
    """Keeps the products of NumPy to one thread each for as long as anybody wants that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.blas = ThreadpoolController().select(user_api="blas")
        self.limit: Any = None
        self.usual = 0

    def threads(self) -> int:
        """How many they take otherwise."""
        with self.lock:
            if self.users == 0:
                self.usual = min((int(each["num_threads"]) for each in self.blas.info()), default=sys.maxsize)
            return self.usual

    def lift(self) -> None:
        """Begin anew, in a new process."""
        self.lock = threading.Lock()
        if self.users:
            self.users = 0
            self.limit.restore_original_limits()

    @contextmanager
    def single_threaded(self) -> Iterator[None]:
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.limit = self.blas.limit(limits=1)
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if self.users == 0:
                    self.limit.restore_original_limits()


_products = _Products()
if hasattr(os, "register_at_fork"):
    # Threads do not follow into a child, so nobody there would ever lift the limit.
    os.register_at_fork(after_in_child=lambda: _products.lift())
