"""Threads: everything is done once, errors come out, and nothing stays changed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.parallel import begin_everywhere, everywhere, meanwhile, ordered
from nudgevec.arithmetic.scratch import Scratch


@pytest.fixture(autouse=True)
def several(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 3)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 100, 101])
def test_every_row_once(size):
    seen = np.zeros(size, np.int64)

    def add(part):
        seen[part] += 1

    everywhere(add, size, 5)
    assert (seen == 1).all()


def test_errors_come_out_and_stop_the_rest():
    done = []

    def work(part):
        if part.start >= 100:
            raise ValueError(f"rows from {part.start}")
        done.append(part)

    with pytest.raises(ValueError, match="rows from 1"):
        everywhere(work, 10_000, 5)
    assert len(done) == 20
    assert not any(thread.name.startswith("nudgevec") for thread in threading.enumerate())


def test_what_others_have_begun_is_finished_for_whoever_asks(monkeypatch):
    """Who asks while another one is at the last slice waits for it, too."""
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    done, at_last, go_on = [], threading.Event(), threading.Event()

    def work(part):
        if part.start == 3:
            at_last.set()
            assert go_on.wait(10)
        done.append(part.start)

    finish = begin_everywhere(work, 4, 1)
    first = threading.Thread(target=finish)
    first.start()
    assert at_last.wait(10)
    later = threading.Thread(target=lambda: (finish(), done.append("later")))
    later.start()
    later.join(0.1)
    assert "later" not in done
    go_on.set()
    first.join()
    later.join()
    assert sorted(done[:4]) == [0, 1, 2, 3]
    assert done[4:] == ["later"]


def test_meanwhile_another_thread_works_and_hands_over_what_comes_of_it():
    begun, go_on = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go_on.wait(10)
        return threading.current_thread()

    result = meanwhile(work)
    assert begun.wait(10)
    go_on.set()
    assert result() is not threading.current_thread()
    wrong = meanwhile(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wrong()


def test_meanwhile_on_a_single_core_nobody_else_works(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    assert meanwhile(threading.current_thread)() is threading.current_thread()


def test_threads_within_threads_stay_alone():
    """Work that was shared out already is not shared out again."""
    inner = set()

    def outer(_):
        begun = threading.get_ident()
        everywhere(lambda part: inner.add((begun, threading.get_ident())), 100, 5)

    list(ordered(outer, range(4)))
    assert inner
    assert all(one == other for one, other in inner)


def test_few_threads_share_the_other_cores(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 6)
    seen, limits = {}, set()

    def outer(piece):
        many = threading.Barrier(3)
        seen[piece] = set()

        def inner(part):
            seen[piece].add(threading.get_ident())
            many.wait(10)

        everywhere(inner, 30, 5)
        one, others = threads()
        limits.update([one, *others])

    list(ordered(outer, range(2), 2))
    # A barrier for three is passed by three threads only.
    assert {piece: len(used) for piece, used in seen.items()} == {0: 3, 1: 3}
    assert limits == {1}


def threads():
    """What PyTorch's products and those of the libraries behind NumPy may use, as this thread sees it."""
    return torch.get_num_threads(), [library.num_threads for library in parallel._products.blas]


def test_products_take_one_thread_each_meanwhile_and_as_many_as_before_afterwards():
    before = threads()
    assert before[1]
    meanwhile = list(ordered(lambda _: threads(), range(4)))
    assert all(one == 1 and set(others) == {1} for one, others in meanwhile)
    assert threads() == before


ALONE = """
import threading
from nudgevec.arithmetic import parallel
before = [library.num_threads for library in parallel._products.blas]
thread = threading.Thread(target=parallel.begin_thread)
thread.start()
thread.join()
assert [library.num_threads for library in parallel._products.blas] == before
"""


def test_a_thread_limits_nothing_where_nobody_asked_for_that():
    """In a new process: where a thread has set a limit before, it may have one of its own from then on."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_products_of_integers_too():
    """They ask OpenMP (PyTorch's own, there may be others), which has an answer for each thread, and not PyTorch."""

    def asked():
        libraries = ThreadpoolController().select(user_api="openmp").lib_controllers
        return [library.num_threads for library in libraries if "torch" in Path(library.filepath).parts]

    meanwhile = list(ordered(lambda _: asked(), range(4)))
    assert meanwhile[0]
    assert all(set(each) == {1} for each in meanwhile)


def test_threads_that_overlap_leave_nothing_behind():
    """Whoever ends last: every thread finds what it found before."""
    found = []

    def work():
        for _ in range(50):
            everywhere(lambda part: None, 1000, 5)
        barrier.wait()
        found.append(threads())

    barrier = threading.Barrier(3)
    first = threads()
    others = [threading.Thread(target=work) for _ in range(2)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    assert threads() == first
    assert found == [first] * 3


def test_a_new_thread_takes_over_the_room_of_one_that_has_ended():
    scratch, rooms = Scratch([]), []

    def ask():
        rooms.append(scratch.room("scores", (4, 5), np.float32).base)

    for _ in range(3):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    ask()
    assert rooms[0] is rooms[1] is rooms[2]
    both = [threading.Thread(target=lambda: (barrier.wait(), ask(), barrier.wait())) for _ in range(2)]
    barrier = threading.Barrier(2)
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert rooms[-1] is not rooms[-2]
