"""Memory that is used again: fresh memory comes more slowly than most arithmetic goes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Array, Floats, Ints, rows_of

_LARGE_PAGE = 1 << 21


class Scratch(threading.local):
    """Rooms to work in, for each thread.

    Threads come and go; a new one takes over what one that has ended leaves behind. ``owners`` is shared by all.
    """

    def __init__(self, owners: list[tuple[threading.Thread, dict[str, npt.NDArray[Any]]]]) -> None:
        self.kept: dict[str, npt.NDArray[Any]] = {}
        with _moving_in:
            left = next((each for each in owners if not each[0].is_alive()), None)
            if left is not None:
                owners.remove(left)
                self.kept = left[1]
            owners.append((threading.current_thread(), self.kept))

    def room(self, name: str, shape: tuple[int, int], kind: Any) -> npt.NDArray[Any]:
        size = shape[0] * shape[1] * np.dtype(kind).itemsize
        if name not in self.kept or len(self.kept[name]) < size:
            # A little larger, so that it need not be left for another one when somewhat more is asked for.
            self.kept[name] = in_large_pages(size + size // 8)
        room: npt.NDArray[Any] = self.kept[name][:size].view(kind).reshape(shape)
        return room


_moving_in = threading.Lock()


def in_large_pages(size: int) -> npt.NDArray[np.uint8]:
    """Fresh memory that begins with a page of the larger kind: it comes several times as fast in those.

    NumPy asks for them where an array has 4 MB or more; the system gives them where one fits in.
    """
    if size < _LARGE_PAGE // 2:
        return np.empty(size, np.uint8)
    memory = np.empty(max(size + _LARGE_PAGE, 2 * _LARGE_PAGE), np.uint8)
    begin = -memory.ctypes.data % _LARGE_PAGE
    return memory[begin : begin + size]


def keep_what_is_freed() -> None:
    """Have the C library keep the memory of arrays for the next ones, instead of giving it back to the system, and have
    what the next ones need come in large pages.

    GNU's keeps arrays up to the size of the largest one it has seen freed, or 32 MB. From then on, an array comes from
    the memory that it keeps, and NumPy asks for large pages there. Neither of these two is ever touched.
    """
    np.empty(31 << 20, np.uint8)
    np.empty(30 << 20, np.uint8)


def taken_rows(name: str, vectors: Array, rows: Ints) -> Array:
    """``vectors[rows]``, good until this thread asks for that name again. They should be a few at a time."""
    return rows_of(vectors, rows, _rooms.room(name, (len(rows), vectors.shape[1]), vectors.dtype))


def wide_rows(name: str, vectors: Array, rows: Ints) -> Floats:
    """The same in float64."""
    taken = taken_rows(name, vectors, rows)
    if vectors.dtype == np.float64:
        return taken
    wide: Floats = _rooms.room(f"{name}, wide", taken.shape, np.float64)
    np.copyto(wide, taken)
    return wide


_rooms = Scratch([])
