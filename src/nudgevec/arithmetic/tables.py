"""Tables with lines of different lengths: what a mask leaves of them, moved to the left, and flat entries laid out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Ints, Mask, Singles

# Tables from this size on are large.
_LARGE = 1 << 17


def entries(table: Mask) -> tuple[Ints, Ints]:
    """Line and place of all that is true (``np.nonzero`` of a table takes several times as long)."""
    return split_up(np.flatnonzero(table), max(1, table.shape[1]))


def all_true(table: Mask) -> Ints:
    """As ``np.flatnonzero``, of a large table with little in it: sooner, because it looks at eight at a time, and at
    eight times eight where it is larger still."""
    flat = table.ravel()
    if flat.size % 8 or flat.size < _LARGE:
        return np.flatnonzero(flat)
    eights = flat.view(np.uint64)
    some = all_true(eights != 0)
    place = np.flatnonzero(eights[some].view(np.bool_))
    places: Ints = 8 * some[place >> 3] + (place & 7)
    return places


def split_up(places: Ints, width: int) -> tuple[Ints, Ints]:
    """Places in a table of that width as line and place in the line (``np.divmod`` takes several times as long)."""
    line = places // width
    return line, places - width * line


class Target(NamedTuple):
    """Where the kept entries of some lines are, and where they go when they are moved to the left."""

    source: Ints
    place: Ints
    shape: tuple[int, int]

    @classmethod
    def of(cls, keep: Mask, lines: Ints) -> Target:
        kept = keep[lines]
        count = kept.sum(axis=1)
        width = int(count.max(initial=0))
        source = np.flatnonzero(kept) + np.repeat((lines - np.arange(len(lines))) * keep.shape[1], count)
        place = np.flatnonzero(np.arange(width) < count[:, None])
        return cls(source, place, (len(lines), width))

    def fill(self, values: npt.NDArray[Any], blank: Any) -> npt.NDArray[Any]:
        filled = np.full(self.shape, blank, values.dtype)
        filled.ravel()[self.place] = values.ravel()[self.source]
        return filled


class Layout:
    """Flat entries, sorted by line, laid out one line each, as wide as the longest or as asked for."""

    def __init__(self, line: Ints, lines: int, width: int = 0) -> None:
        count = np.bincount(line, minlength=lines)
        self.shape = lines, width or int(count.max(initial=0))
        begin = np.arange(lines) * self.shape[1] - (np.cumsum(count) - count)
        self.place = np.arange(len(line)) + np.repeat(begin, count)

    def table(self, values: npt.NDArray[Any], blank: Any) -> npt.NDArray[Any]:
        """The values in their places, and padding in the others."""
        table = np.full(self.shape, blank, values.dtype)
        table.ravel()[self.place] = values
        return table


def kth_largest(lower: Singles, k: Ints) -> Singles:
    """A height that at least k documents of each line are above (or -inf): no more is needed.

    Of a long line, the k-th largest of the maxima of its stretches will do.
    """
    most, width = int(k.max(initial=1)), lower.shape[1]
    if width < k.min(initial=most):
        return np.full(len(lower), -np.inf, np.float32)
    stretches = max(64, 8 * most)
    if width > 4 * stretches:
        length = width // stretches
        lower = lower[:, : stretches * length].reshape(len(lower), stretches, length).max(axis=2)
        width = stretches
    if width < most:
        lower = np.concatenate([lower, np.full((len(lower), most - width), -np.inf, np.float32)], axis=1)
        width = most
    best = np.sort(np.partition(lower, width - most, axis=1)[:, width - most :], axis=1)
    kth: Singles = best[np.arange(len(lower)), most - np.maximum(k, 1)]
    return kth
