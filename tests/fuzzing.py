"""Fuzzing: damaged input made from good input, by a seed that a failing test prints."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from nudgevec.errors import NudgeError


def cases(count: int) -> Iterator[random.Random]:
    """Yield random generators, ``count`` of them or as many as ``NUDGEVEC_FUZZ_SECONDS`` allows (``make fuzz``)."""
    seconds = float(os.environ.get("NUDGEVEC_FUZZ_SECONDS", 0))
    # Every run of `make test` tries the same cases, and every run of `make fuzz` new ones.
    first = time.time_ns() if seconds else 0
    end = time.monotonic() + seconds
    seed = first
    while seed < first + count or time.monotonic() < end:
        try:
            yield random.Random(seed)
        except GeneratorExit:
            print(f"the failing case is random.Random({seed})")
            raise
        seed += 1


def attempt(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what a call returns, or the message of the error it raises, which must be ours and on one line."""
    try:
        return call(), None
    except NudgeError as error:
        message = str(error)
    assert message.strip()
    assert "\n" not in message
    return None, message


def damaged(contents: bytes, chance: random.Random) -> bytes:
    """Return a copy with one to three changes: bits flipped, bytes removed, repeated, replaced or inserted."""
    changed = bytearray(contents)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + int(2 ** chance.uniform(0, 10)))
        match chance.randrange(6):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end]
            case 3:
                changed[at:end] = chance.randbytes(end - at)
            case 4:
                changed[at:at] = chance.choice(_FRAGMENTS)
            case 5:
                del changed[at:]
    return bytes(changed)


_FRAGMENTS = [
    b"\x00",
    b"\xff\xfe",
    b"\xed\xb2\x80",
    b'"',
    b"\n",
    b"\t",
    b"{",
    b"[" * 3000,
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
]

VALUES = [None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, "", "x", "\ud800", [], [None], {}, {"x": [1]}]
"""Values of every type, to replace one that is expected."""
