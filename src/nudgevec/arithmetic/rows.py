"""Vectors as rows of an array: taken, multiplied and measured in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Numbers of a row added up at a time.
_WIDEST = 4096


def unit_rows(vectors: Array) -> Floats:
    """The rows in float64, scaled to length one."""
    unit = np.empty(vectors.shape)

    def scale(part: slice) -> None:
        unit[part] = vectors[part]
        unit[part] /= _lengths(unit[part])[:, None]

    everywhere(scale, len(vectors))
    return unit


def rows_of(vectors: Array, rows: Ints, out: Array | None = None) -> Array:
    """``vectors[rows]``, while other threads go on: indexing would make them wait."""
    if out is None:
        out = np.empty((len(rows), vectors.shape[1]), vectors.dtype)
    if vectors.flags.c_contiguous:
        # "clip", because "raise" would go through one more copy; the rows are known to be there.
        np.take(vectors, rows, axis=0, out=out, mode="clip")
    else:
        out[:] = vectors[rows]
    return out


def some_rows(vectors: Array, rows: Ints) -> Array:
    """``vectors[rows]`` for rows in order, of which there is at least one; without a copy where they come one after the
    other."""
    first, last = int(rows[0]), int(rows[-1])
    return vectors[first : last + 1] if last - first < len(rows) else rows_of(vectors, rows)


def row_dots(left: Floats, right: Floats, out: Floats | None = None) -> Floats:
    """Inner products along the last axis, each depending on its own two rows only.

    Of rows longer than its buffer (8192 numbers) NumPy would add up pieces that depend on where the row is.
    """
    dots: Floats = np.einsum("...j,...j->...", left[..., :_WIDEST], right[..., :_WIDEST], out=out)
    for start in range(_WIDEST, left.shape[-1], _WIDEST):
        some = slice(start, start + _WIDEST)
        dots += np.einsum("...j,...j->...", left[..., some], right[..., some])
    return dots


def lengths(vectors: Array) -> Floats:
    """Euclidean length of every row in float64, right even where the squares would under- or overflow."""
    length: Floats = np.empty(len(vectors))

    def measure(part: slice) -> None:
        length[part] = _lengths(vectors[part])

    everywhere(measure, len(vectors))
    return length


def _lengths(vectors: Array) -> Floats:
    exact = vectors.astype(np.float64, copy=False)
    return lengths_from(row_dots(exact, exact), lambda odd: exact[odd])


def lengths_from(square: Floats, rows: Callable[[Ints], Array]) -> Floats:
    """Lengths from their squares; where those are no good, from the rows themselves."""
    length: Floats = np.sqrt(square)
    odd = np.flatnonzero((length < 1e-140) | (length > 1e140))
    if len(odd):
        exact = rows(odd).astype(np.float64)
        peak = np.abs(exact).max(axis=1, keepdims=True)
        scaled = exact / np.where(peak > 0, peak, 1.0)
        length[odd] = peak[:, 0] * np.sqrt(row_dots(scaled, scaled))
    return length
