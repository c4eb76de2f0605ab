"""Straight rays beside the only label of their line: which of them change places with it while it can be in the top k.

Two rays meet once at most, and the order in which others meet the label is known from their scores at both ends of
the interval. Divided by a cosine that is 1 at both ends, a document that is ``low`` above the label at the one and
``high`` at the other goes straight from one to the other: it meets the label after ``low / (low - high)`` of the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.rows import Floats, Ints
from nudgevec.sorting import begins, sorted_places

# More than counts as a tie.
_ROOM = 1e-9
# Of the way.
_PARTS = 1 << 14


class Rays(NamedTuple):
    """Documents in lines, sorted, ``low`` and ``high`` above the label of theirs at both ends, give or take ``off``."""

    line: Ints
    low: Floats
    high: Floats
    off: Floats

    def some(self, which: Ints) -> Rays:
        return Rays(self.line[which], self.low[which], self.high[which], self.off[which])

    def with_room(self) -> Rays:
        """Where they are off by so much at most, there is no tie either."""
        return self._replace(off=self.off + _ROOM)


def overtaking(rays: Rays, ahead: Ints, k: int) -> tuple[Ints, Ints]:
    """Which documents matter, and how many are ahead of each line's label all the way: those that are known to be, and
    some of these."""
    line, low, high, off = rays.with_room()
    above = np.minimum(low, high) > off
    lines = len(ahead)
    ahead = ahead + np.bincount(line[above], minlength=lines)
    free = k - ahead
    meet = np.flatnonzero(~above & (np.maximum(low, high) >= -off) & (free[line] > 0))
    line, low, high, off = line[meet], low[meet], high[meet], off[meet]

    # Those who fall behind leave, the others come. One who leaves is surely ahead before ``sure`` of the way and surely
    # behind after ``reach`` of it, one who comes surely ahead after ``-sure`` and surely behind before ``-reach``.
    change = np.abs(low - high)
    moves = change > 0
    sure, reach = (np.full(len(line), odd) for odd in (-np.inf, np.inf))
    np.divide(low - off, change, out=sure, where=moves)
    np.divide(low + off, change, out=reach, where=moves)

    # Where as many of a kind are ahead as there are free places in the top k, the label is out of it. Round numbers are
    # sorted faster, and to have it out a little less far only keeps more documents. (No ``reach`` is below -1, and no
    # ``sure`` above 1.)
    group = 2 * line + (low < high)
    out = np.full(2 * lines, -np.inf)
    full = np.flatnonzero(np.bincount(group)[group] >= free[line])
    kind, place = group[full], np.floor(_PARTS * np.clip(sure[full], -2, 1)).astype(np.int64)
    order = sorted_places(_PARTS - place)
    order = order[sorted_places(kind[order])]
    kind, place = kind[order], place[order]
    first = np.flatnonzero(begins(kind))
    out[kind[first]] = place[first + free[kind[first] // 2] - 1] / _PARTS
    never = out[::2] + out[1::2] > 0
    return meet[(reach >= out[group]) & ~never[line]], ahead
