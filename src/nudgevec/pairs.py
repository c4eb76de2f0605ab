"""Exact scores: inner products of single pairs of vectors, in float64."""

from __future__ import annotations

import numpy as np

from nudgevec.parallel import SOME, everywhere, hands
from nudgevec.rows import Array, Floats, Ints, lengths_from, row_dots
from nudgevec.scratch import wide_rows

# Pairs of vectors multiplied at a time: as many as fit in here, and more where there are many threads, which wait for
# each other in between. Where pairs are few, in less: fresh memory takes longer to come than a larger room saves.
_PAIR_BYTES = 1 << 21
_PAIR_BYTES_PER_THREAD = 1 << 20
_FEW_PAIR_BYTES = 7 << 17
# Pairs that a thread takes on at a time; for fewer than four times as many there is one thread only.
_MANY_PAIRS = 1 << 11


def pair_dots(left: Array, i: Ints, right: Array, j: Ints, *, cosine: bool = False) -> Floats:
    """``left[i] . right[j]`` pair by pair, for cosine over the length of the latter.

    Each result depends on its own two rows only.
    """
    if not cosine:
        return dots_with_each(left, i, [right], j)[0]
    dots, squares = dots_with_each(left, i, [right], j, squares=True)
    return dots / lengths_from(squares, lambda odd: right[j[odd]])


def dots_with_each(left: Array, i: Ints, rights: list[Array], j: Ints, *, squares: bool = False) -> list[Floats]:
    """The same with rows of several arrays, and ``squares``: of those of the last array with themselves."""
    results = [np.empty(len(i)) for _ in range(len(rights) + squares)]
    room = max(_PAIR_BYTES, hands(SOME) * _PAIR_BYTES_PER_THREAD) if len(i) >= 4 * _MANY_PAIRS else _FEW_PAIR_BYTES
    step = max(1, room // (8 * left.shape[1]))
    # Few rows are made float64 once, instead of for each of their pairs.
    rights = [right.astype(np.float64, copy=False) if len(right) <= min(step, len(i)) else right for right in rights]

    def multiply(part: slice) -> None:
        for begin in range(part.start, part.stop, step):
            some = slice(begin, min(begin + step, part.stop))
            ones = wide_rows("rows", left, i[some])
            for right, result in zip(rights, results, strict=False):
                others = wide_rows("other rows", right, j[some])
                row_dots(ones, others, result[some])
            if squares:
                row_dots(others, others, results[-1][some])

    everywhere(multiply, len(i), _MANY_PAIRS, SOME)
    return results
