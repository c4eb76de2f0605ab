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
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from typing import TypeVar

from threadpoolctl import ThreadpoolController

# Threads for work in many short steps: more of them would wait for each other between the steps.
FEW = 4
# Threads for work in long steps.
SOME = 8
# Vectors prepared at a time, by one thread.
ROWS = 512

# What threads are called.
_NAME = "nudgevec"

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def ordered(function: Callable[[Piece], Result], pieces: Iterable[Piece], threads: int = 0) -> Iterator[Result]:
    """``map(function, pieces)`` on all cores, or on so many threads.

    Pieces are taken when a thread is about to be free for them. A single piece needs no other thread, unless so many
    are asked for: then the first is not kept waiting for the second.
    """
    all_cores = cores()
    workers = min(all_cores, threads or all_cores)
    remaining = iter(pieces)
    enough = 1 if threads else 2
    begin = list(islice(remaining, enough))
    if workers == 1 or len(begin) < enough:
        yield from map(function, chain(begin, remaining))
        return
    waiting: deque[Future[Result]] = deque()
    with _products.single_threaded(), ThreadPoolExecutor(workers, _NAME, begin_thread, (all_cores // workers,)) as pool:
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


def everywhere(function: Callable[[slice], object], size: int, step: int = 0, threads: int = 0) -> None:
    """Call ``function`` for slices of some rows that together cover ``size`` rows, on several threads.

    They are ``FEW``, or as many as asked for. This one is among them, and none is begun for less than two slices: they
    are short.
    """
    step = step or ROWS
    if _helpers(size, step, threads) < 1:
        for part in slices(size, step):
            function(part)
        return
    with _products.single_threaded():
        begin_everywhere(function, size, step, threads)()


def begin_everywhere(function: Callable[[slice], object], size: int, step: int, threads: int = 0) -> Callable[[], None]:
    """The same, begun by the other threads while this one goes on. What is returned joins in, and waits for all of it;
    any thread may call it, and again. How many threads a product takes is up to the caller."""
    remaining = slices(size, step)
    lock, finishing = threading.Lock(), threading.Lock()
    failed: list[BaseException] = []

    def help_out() -> None:
        try:
            while not failed:
                with lock:
                    part = next(remaining, None)
                if part is None:
                    return
                function(part)
        except BaseException as error:
            failed.append(error)

    def help_too() -> None:
        begin_thread()
        help_out()

    helpers = range(_helpers(size, step, threads))
    helping = [threading.Thread(target=help_too, name=_NAME, daemon=True) for _ in helpers]
    for thread in helping:
        thread.start()

    def finish() -> None:
        # One thread at a time: the next one finds all of it done.
        with finishing:
            help_out()
            for thread in helping:
                thread.join()
        if failed:
            raise failed[0]

    return finish


def _helpers(size: int, step: int, threads: int) -> int:
    """How many other threads to begin."""
    # How many cores there are is asked only where that matters: the answer takes as long as some of the work.
    enough_for = size // (2 * step)
    return min(hands(threads or FEW), enough_for) - 1 if enough_for > 1 else 0


def meanwhile(function: Callable[[], Result]) -> Callable[[], Result]:
    """Have a function called by another thread, where there is a core for it, while this one goes on. What is returned
    waits for its result, or raises what it has raised."""
    if hands() == 1:
        result = function()
        return lambda: result
    future: Future[Result] = Future()
    share = _share()

    def call() -> None:
        begin_thread(share)
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=_NAME, daemon=True).start()
    return future.result


def single_threaded() -> AbstractContextManager[None]:
    """Every product runs on the thread that asks for it, even where that is the only one: a library's own threads would
    wait in a loop for the next product, and keep a core from ours meanwhile."""
    return _products.single_threaded()


def hands(threads: int = FEW) -> int:
    """How many threads there are for what this one shares out, itself included. Where it is one of several already, it
    takes no more than its share of the cores."""
    return min(_share(), threads)


def _share() -> int:
    """How many cores are this thread's own."""
    return getattr(_here, "cores", 0) or cores()


def slices(end: int, step: int, begin: int = 0) -> Iterator[slice]:
    """Slices of at most ``step`` rows that together cover those from ``begin`` to ``end``."""
    for start in range(begin, end, step):
        yield slice(start, min(start + step, end))


def cores() -> int:
    """How many threads to use: one for each core this process may run on, or as many as its BLAS is set to."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _products.threads()))


class _Products:
    """Keeps the products of NumPy and PyTorch to one thread each for as long as anybody wants that.

    Such a limit is one of the process in some versions and of the calling thread in others, so every thread that
    asked for it lifts it itself. Where that lifts it for others too, they are only slower.
    """

    def __init__(self) -> None:
        self.blas = ThreadpoolController().select(user_api="blas").lib_controllers
        self.lock = threading.Lock()
        self.here = threading.local()
        self.users = 0
        self.usual: list[int] = []
        self.usual_of_torch = 0

    def threads(self) -> int:
        """How many they take otherwise."""
        with self.lock:
            self._look()
            return min(self.usual, default=sys.maxsize)

    def begin_thread(self) -> None:
        """In a new thread of ours, which limits of the calling thread, if it has any, have not reached, and which
        never lifts them. PyTorch's gets there when the thread asks for it; some products never do."""
        self.here.depth = 1
        with self.lock:
            if self.users == 0:
                return
            for library in self.blas:
                library.set_num_threads(1)
            if self.usual_of_torch:
                sys.modules["torch"].get_num_threads()

    def begin_anew(self) -> None:
        """In a new process."""
        self.lock, self.here = threading.Lock(), threading.local()
        if self.users:
            self.users = 0
            self._lift()

    @contextmanager
    def single_threaded(self) -> Iterator[None]:
        depth = getattr(self.here, "depth", 0)
        with self.lock:
            self._look()
            self.users += 1
            if depth == 0:
                self._limit()
        self.here.depth = depth + 1
        try:
            yield
        finally:
            self.here.depth = depth
            with self.lock:
                self.users -= 1
                if depth == 0:
                    self._lift()

    def _look(self) -> None:
        if self.users == 0:
            torch = sys.modules.get("torch")
            self.usual = [int(library.num_threads) for library in self.blas]
            self.usual_of_torch = torch.get_num_threads() if torch else 0

    def _limit(self) -> None:
        for library in self.blas:
            library.set_num_threads(1)
        if self.usual_of_torch:
            sys.modules["torch"].set_num_threads(1)

    def _lift(self) -> None:
        for library, usual in zip(self.blas, self.usual, strict=True):
            library.set_num_threads(usual)
        if self.usual_of_torch:
            sys.modules["torch"].set_num_threads(self.usual_of_torch)


def begin_thread(share: int = 1) -> None:
    """In a new thread of ours: so many cores are its own."""
    _here.cores = share
    _products.begin_thread()


def _begin_process() -> None:
    """In a child, which threads do not follow into: nobody there would ever lift the limit, or share the cores."""
    _here.cores = 0
    _products.begin_anew()


_here = threading.local()
_products = _Products()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_process)
