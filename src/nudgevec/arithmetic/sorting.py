"""Lists of numbers, sorted. ``np.unique`` and ``np.lexsort`` do the same more slowly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Array, Floats, Ints

# The largest of the numbers that are sorted by their digits.
_DIGITS = (1 << 16) - 1


def sorted_places(numbers: Ints) -> Ints:
    """Where the smallest of some numbers from 0 on is, the next one and so on; of equals, the first one first."""
    # Small numbers are sorted by their digits, which is faster.
    return np.argsort(numbers.astype(np.uint16) if numbers.max(initial=0) <= _DIGITS else numbers, kind="stable")


def sorted_values(values: Floats) -> Ints:
    """The same for any numbers whose differences are finite."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    if not low < high:
        return np.arange(len(values))
    # With their first digits in order, they are nearly sorted already.
    nearly = sorted_places(((values - low) / (high - low) * _DIGITS).astype(np.int64))
    return nearly[np.argsort(values[nearly], kind="stable")]


def sorted_within(group: Ints, values: Floats) -> Ints:
    """The same for the values of each group, group by group."""
    order = sorted_values(values)
    return order[sorted_places(group[order])]


def begins(numbers: Array) -> npt.NDArray[np.bool_]:
    """Where another number begins, in a list where equal ones come one after the other."""
    new = np.ones(len(numbers), np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return new


def distinct(numbers: Array) -> Array:
    """Each number once, sorted."""
    # "stable" is fast where long stretches are in order already.
    ordered = np.sort(numbers, kind="stable")
    return ordered[begins(ordered)]


def numbered(numbers: Array) -> tuple[Array, Ints]:
    """Each number once, sorted, and which of these every number is."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    new = begins(ordered)
    which = np.empty(len(numbers), np.int64)
    which[order] = np.cumsum(new) - 1
    return ordered[new], which
