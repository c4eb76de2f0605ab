"""Straight rays beside the only label of their line: which of them change places with it while it can be in the top k.

Two rays meet once at most, and the order in which others meet the label is known from their scores at both ends of
the interval. Divided by a cosine that is 1 at both ends, a document that is ``low`` above the label at the one and
``high`` at the other goes straight from one to the other: it meets the label after ``low / (low - high)`` of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arrays import functions_for
from nudgevec.lines import Curves, Mask
from nudgevec.motion import Reals
from nudgevec.rows import Ints

# More than counts as a tie.
_ROOM = 1e-9
# Of the way.
_ROUNDED = 1e-6
# Less than this is no change.
_SMALLEST = 1e-30
# Of the way: as many as there are documents to count, within these.
_PARTS = 256
_FEWEST_PARTS = 64


class Rays(NamedTuple):
    """Documents in lines, ``low`` and ``high`` above the label of theirs at both ends, give or take ``off``."""

    line: Ints
    low: Reals
    high: Reals
    off: Reals

    @classmethod
    def beside(cls, label: Curves, line: Ints, low: Reals, high: Reals, off: Reals) -> Rays:
        """Documents with these scores at both ends, beside one label for each line."""
        heights = low - label.at_low[line], high - label.at_high[line]
        return cls(line, *heights, off + label.slack[line])

    def some(self, which: Ints) -> Rays:
        return Rays(self.line[which], self.low[which], self.high[which], self.off[which])

    def with_room(self) -> Rays:
        """Where they are off by so much at most, there is no tie either, and parts of the way may be rounded to float32
        a few times."""
        return self._replace(off=self.off + abs(self.low - self.high) * _ROUNDED + _ROOM)


def overtaking(rays: Rays, ahead: Ints, k: int) -> tuple[Ints, Ints]:
    """Which documents matter, and how many are ahead of each line's label all the way: those that are known to be, and
    some of these."""
    matter, above, never = _told_apart(rays, ahead, k)
    return np.flatnonzero(matter & ~never[rays.line]), ahead + np.bincount(rays.line[above], minlength=len(ahead))


def _told_apart(rays: Rays, ahead: Ints, k: int) -> tuple[Mask, Mask, Mask]:
    """Which documents matter, if only to tell that the label is out of the top k, which others are ahead of it all the
    way, and in which lines it is never in. Of NumPy or PyTorch."""
    line, low, high, off = rays.with_room()
    xp = functions_for(low)
    lines = len(ahead)
    above = xp.minimum(low, high) > off
    free = k - ahead - xp.bincount(line[above], minlength=lines)
    meet = ~above & (xp.maximum(low, high) >= -off) & (free > 0)[line]

    # Those who fall behind leave, the others come. One who leaves is surely ahead before ``sure`` of the way and surely
    # behind after ``reach`` of it, one who comes surely ahead after ``-sure`` and surely behind before ``-reach``. One
    # who does neither may be on either side all the way: numbers are large then.
    change = xp.clip(xp.abs(low - high), _SMALLEST, None)
    sure, reach = (low - off) / change, (low + off) / change

    # Where as many of a kind are ahead as there are free places in the top k, the label is out of it. How far is
    # counted in parts of the way, from its far end: to have it out a little less far only keeps more documents. (One
    # who leaves is ahead between 0 and 1, one who comes between -1 and 0.)
    comes = low < high
    group = 2 * line + comes
    parts = max(_FEWEST_PARTS, min(_PARTS, len(line) // (2 * lines)))
    short = xp.asarray(xp.ceil(parts * (1 - xp.clip(sure + comes, 0, 1))), dtype=xp.int64)
    there = (group * (parts + 1) + short)[meet]
    ahead_for = xp.bincount(there, minlength=2 * lines * (parts + 1)).reshape(lines, 2, parts + 1)
    short = (xp.cumsum(ahead_for, 2) < free[:, None, None]).sum(2)
    out = xp.where(short <= parts, 1 - short / parts, -np.inf)
    out[:, 1] -= 1
    matter = meet & (reach >= xp.asarray(out, dtype=reach.dtype).reshape(-1)[group])
    # It is out until some have left, and again when others have come.
    return matter, above, out.sum(1) > 0


class Lone(NamedTuple):
    """Lines with one label that may be in the top k: which they are, its curve (that of any label in the others), and
    the still documents that may matter to it, by line."""

    alone: Mask
    label: Curves
    line: Ints
    rests: Curves

    def worth_scoring(self, line: Ints, low: Reals, high: Reals, off: Reals, k: int) -> Mask:
        """Which straight rays with about these scores at both ends, one by one, may change places with the label while
        it is in the top k, or stay ahead of it. In lines with several labels, any of them. Of NumPy or PyTorch."""
        xp = functions_for(low)
        moving = Rays.beside(self.label, line, low, high, off)
        resting = Rays.beside(self.label, self.line, self.rests.at_low, self.rests.at_high, self.rests.slack)
        rays = Rays(*(xp.concatenate(each) for each in zip(moving, resting, strict=True)))
        # What may be off by anything is on neither side.
        off = xp.where(self.alone, 0, np.inf)
        off = rays.off + xp.asarray(off, dtype=rays.off.dtype)[rays.line]
        matter, above, _ = _told_apart(rays._replace(off=off), xp.zeros_like(self.alone, dtype=xp.int64), k)
        worth: Mask = (matter | above)[: len(line)]
        return worth

    def sent(self, to: Callable[[Any], Any]) -> Lone:
        """The same elsewhere, given how to send an array there."""
        return Lone(to(self.alone), Curves(*map(to, self.label)), to(self.line), Curves(*map(to, self.rests)))

    @classmethod
    def joined(cls, parts: Iterable[Lone]) -> Lone:
        """Those of several groups of lines, one after the other."""
        some = list(parts)
        begin = np.cumsum([0, *(len(part.alone) for part in some)])
        line = np.concatenate([part.line + start for part, start in zip(some, begin, strict=False)])
        label, rests = (Curves.joined(each) for each in zip(*((part.label, part.rests) for part in some), strict=True))
        return cls(np.concatenate([part.alone for part in some]), label, line, rests)
