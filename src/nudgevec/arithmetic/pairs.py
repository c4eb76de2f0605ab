"""Exact scores: inner products of single pairs of vectors, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.parallel import SOME, everywhere, hands
from nudgevec.arithmetic.rows import Array, Floats, Ints, lengths_from, row_dots
from nudgevec.arithmetic.scratch import wide_rows
from nudgevec.arithmetic.sorting import begins

# Pairs of vectors multiplied at a time: as many as fit in here, and more where there are many threads, which wait for
# each other in between. Where pairs are few, in less: fresh memory takes longer to come than a larger room saves.
_PAIR_BYTES = 1 << 21
_PAIR_BYTES_PER_THREAD = 1 << 20
_FEW_PAIR_BYTES = 7 << 17
# Pairs of a block, where the same row comes so many times in a row on average, at least.
_BLOCK = 8
_LONG = 8
# Pairs that a thread takes on at a time. Four times as many are enough for several threads; where there are fewer, four
# times the smaller number is enough for two.
_MANY_PAIRS = 1 << 11
_FEW_PAIRS = 1 << 9


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
    blocks = _Blocks.of(i)
    width, dim = (_BLOCK if blocks.place.ndim == 2 else 1), left.shape[1]
    tables = [np.empty(blocks.place.shape) for _ in range(len(rights) + squares)]
    many = len(i) >= 4 * _MANY_PAIRS
    room = max(_PAIR_BYTES, hands(SOME) * _PAIR_BYTES_PER_THREAD) if many else _FEW_PAIR_BYTES
    step = max(1, room // (8 * dim * width))
    # Few rows are made float64 once, instead of for each of their pairs.
    few = min(step * width, len(i))
    rights = [right.astype(np.float64, copy=False) if len(right) <= few else right for right in rights]

    def multiply(part: slice) -> None:
        for begin in range(part.start, part.stop, step):
            some = slice(begin, min(begin + step, part.stop))
            place = blocks.place[some]
            ones = wide_rows("rows", left, blocks.one[some])
            ones = ones[:, None] if place.ndim == 2 else ones
            for right, table in zip(rights, tables, strict=False):
                others = wide_rows("other rows", right, j[place.ravel()]).reshape(*place.shape, dim)
                row_dots(ones, others, table[some])
            if squares:
                row_dots(others, others, tables[-1][some])

    share, threads = (_MANY_PAIRS, SOME) if many else (_FEW_PAIRS, 2)
    everywhere(multiply, len(blocks.one), max(1, share // width), threads)
    return [table.ravel()[blocks.back] for table in tables]


class _Blocks(NamedTuple):
    """Pairs in blocks of equally many, whose first rows are the same and need be copied only once: these rows, and the
    numbers of the pairs, of which the last one is repeated to fill a block; and where in the table each pair is. Where
    that would not save much, every pair is by itself."""

    one: Ints
    place: Ints
    back: Ints

    @classmethod
    def of(cls, i: Ints) -> _Blocks:
        every, first = np.arange(len(i)), np.flatnonzero(begins(i))
        if len(i) < _LONG * len(first):
            return cls(i, every, every)
        count = np.diff(first, append=len(i))
        blocks = -(-count // _BLOCK)
        start = np.cumsum(blocks) - blocks
        begin = _BLOCK * np.arange(int(blocks.sum())) + np.repeat(first - _BLOCK * start, blocks)
        place = np.minimum(begin[:, None] + np.arange(_BLOCK), np.repeat(first + count - 1, blocks)[:, None])
        return cls(i[begin], place, every + np.repeat(_BLOCK * start - first, count))
