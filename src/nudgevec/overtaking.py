"""Straight rays beside the only label of their line: which of them change places with it while it can be in the top k.

Two rays meet once at most, and the order in which others meet the label is known from their scores at both ends of
the interval. Divided by a cosine that is 1 at both ends, a document that is ``low`` above the label at the one and
``high`` at the other goes straight from one to the other: it meets the label after ``low / (low - high)`` of the way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.rows import Floats, Ints
from nudgevec.sorting import begins

# More than counts as a tie.
_ROOM = 1e-9
# Of the way, and binary digits for three times as many.
_PARTS = 1 << 14
_DIGITS = 16


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
    meet = np.flatnonzero(~above & (np.maximum(low, high) >= -off) & (free > 0)[line])
    line, low, high, off = line[meet], low[meet], high[meet], off[meet]

    # Those who fall behind leave, the others come. One who leaves is surely ahead before ``sure`` of the way and surely
    # behind after ``reach`` of it, one who comes surely ahead after ``-sure`` and surely behind before ``-reach``. One
    # who does neither may be on either side all the way.
    change = np.abs(low - high)
    neither = np.flatnonzero(change == 0)
    change[neither] = 1
    sure, reach = (low - off) / change, (low + off) / change
    sure[neither], reach[neither] = -2, 2

    # Where as many of a kind are ahead as there are free places in the top k, the label is out of it. Round numbers are
    # sorted faster, and to have it out a little less far only keeps more documents. (No ``reach`` is below -1, and no
    # ``sure`` above 1.)
    group = 2 * line + (low < high)
    out = np.full(2 * lines, -np.inf)
    full = np.flatnonzero((np.bincount(group, minlength=2 * lines) >= np.repeat(free, 2))[group])
    place = np.floor(_PARTS * np.clip(sure[full], -2, 1)).astype(np.int64)
    # By kind, those who are ahead for longest first; both numbers as one, which need not be told apart while sorting.
    ordered = np.sort((group[full] << _DIGITS) + (_PARTS - place))
    kind, place = ordered >> _DIGITS, _PARTS - (ordered & ((1 << _DIGITS) - 1))
    first = np.flatnonzero(begins(kind))
    out[kind[first]] = place[first + free[kind[first] // 2] - 1] / _PARTS
    never = out[::2] + out[1::2] > 0
    out[np.repeat(never, 2)] = np.inf
    return meet[reach >= out[group]], ahead
