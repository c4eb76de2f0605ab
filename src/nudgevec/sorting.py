"""Numbers that are not negative, sorted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Array, Ints


def sorted_places(numbers: Ints) -> Ints:
    """Where the smallest is, the next one and so on; of equals, the first one first."""
    # Small numbers are sorted by their digits, which is faster.
    return np.argsort(numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers, kind="stable")


def begins(numbers: Array) -> npt.NDArray[np.bool_]:
    """Where a new one begins in a sorted list."""
    new: npt.NDArray[np.bool_] = np.diff(numbers, prepend=-1) != 0
    return new


def distinct(numbers: Array) -> Array:
    """Each of them once, sorted."""
    ordered = np.sort(numbers)
    return ordered[begins(ordered)]
