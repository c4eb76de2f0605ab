"""Straight rays beside the only label of their line: which of them change places with it while it can be in the top k.

Two rays meet once at most, and the order in which others meet the label is known from their scores at both ends of
the interval. Divided by a cosine that is 1 at both ends, a document that is ``low`` above the label at the one and
``high`` at the other goes straight from one to the other: it meets the label after ``low / (low - high)`` of the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arithmetic.numpy_or_torch import functions_for
from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rows import Ints, Mask
from nudgevec.cut.lines import Curves
from nudgevec.motion import Reals

# Documents looked at, at a time: few enough to stay in the cache.
HANDFUL = 1 << 14
# More than counts as a tie.
_ROOM = 1e-9
# Of the way.
_ROUNDED = 1e-6
# Less than this is no change.
_SMALLEST = 1e-30
# Of the way: as many for each line as there are documents to count, within these; for few lines more.
_PARTS = 256
_FEWEST_PARTS = 16
_COUNTED = 1 << 12


class Rays(NamedTuple):
    """Documents in lines, and their scores at both ends, give or take ``off``; or how far above the label of their line
    they are."""

    line: Ints
    low: Reals
    high: Reals
    off: Reals

    def beside(self, label: Curves) -> Rays:
        """The latter, given the former and a label for each line."""
        line, low, high, off = self
        return Rays(line, low - label.at_low[line], high - label.at_high[line], off + label.slack[line])

    def some(self, which: Ints | slice) -> Rays:
        return Rays(self.line[which], self.low[which], self.high[which], self.off[which])

    def with_room(self) -> Rays:
        """Where they are off by so much at most, there is no tie either, and parts of the way may be rounded to float32
        a few times."""
        return self._replace(off=self.off + abs(self.low - self.high) * _ROUNDED + _ROOM)


def overtaking(rays: Rays, ahead: Ints, k: int) -> tuple[Ints, Ints]:
    """Which documents matter, and how many are ahead of each line's label all the way: those that are known to be, and
    some of these."""
    # One at least, though there may be nobody in it.
    handfuls = (rays.some(part) for part in slices(max(1, len(rays.line)), HANDFUL))
    matter, above, never = _told_apart(handfuls, len(rays.line), ahead, k)
    return np.flatnonzero(matter & ~never[rays.line]), ahead + np.bincount(rays.line[above], minlength=len(ahead))


def _told_apart(handfuls: Iterable[Rays], count: int, ahead: Ints, k: int) -> tuple[Mask, Mask, Mask]:
    """Which documents matter, if only to tell that the label is out of the top k, which others are ahead of it all the
    way, and in which lines it is never in. They come a few at a time, ``count`` in all. Of NumPy or PyTorch."""
    lines = len(ahead)
    parts = max(_FEWEST_PARTS, min(_PARTS, max(count, _COUNTED) // (2 * lines)))
    seen = [_Seen.of(rays, parts) for rays in handfuls]
    xp = functions_for(ahead)
    line, above, meet, comes, short, reach = (xp.concatenate(each) for each in zip(*seen, strict=True))

    # Where as many of a kind are ahead as there are free places in the top k, the label is out of it: how far, in parts
    # of the way. To have it out a little less far only keeps more documents.
    free = k - ahead - xp.bincount(line[above], minlength=lines)
    group = 2 * line + comes
    ahead_for = xp.bincount((group * (parts + 1) + short)[meet], minlength=2 * lines * (parts + 1))
    short = (xp.cumsum(ahead_for.reshape(lines, 2, parts + 1), 2) < free[:, None, None]).sum(2)
    out = xp.where(short <= parts, 1 - short / parts, -np.inf)
    out[:, 1] -= 1
    matter = meet & (free > 0)[line] & (reach >= xp.asarray(out, dtype=reach.dtype).reshape(-1)[group])
    # It is out until some have left, and again when others have come.
    return matter, above, out.sum(1) > 0


class _Seen(NamedTuple):
    """What is known of documents one by one. Those who fall behind leave, the others come: who leaves is surely ahead
    before ``sure`` of the way and surely behind after ``reach`` of it, who comes surely ahead after ``-sure`` and
    surely behind before ``-reach``. Who does neither may be on either side all the way: numbers are large then."""

    line: Ints
    above: Mask
    meet: Mask
    comes: Mask
    short: Ints
    """How many parts of the way they are not surely ahead, those that are only begun included."""
    reach: Reals

    @classmethod
    def of(cls, rays: Rays, parts: int) -> _Seen:
        line, low, high, off = rays.with_room()
        xp = functions_for(low)
        above = xp.minimum(low, high) > off
        meet = ~above & (xp.maximum(low, high) >= -off)
        change = xp.clip(xp.abs(low - high), _SMALLEST, None)
        sure, reach = (low - off) / change, (low + off) / change
        comes = low < high
        # Who leaves is ahead between 0 and 1, who comes between -1 and 0.
        short = xp.asarray(xp.ceil(parts * (1 - xp.clip(sure + comes, 0, 1))), dtype=xp.int64)
        return cls(line, above, meet, comes, short, reach)


class Lone(NamedTuple):
    """The only label of each line that may be in the top k, and the still documents that may matter to it, by line.
    Where there are several, the label is any of them and may be off by anything."""

    label: Curves
    line: Ints
    rests: Curves

    @classmethod
    def of(cls, alone: Mask, label: Curves, line: Ints, rests: Curves) -> Lone:
        """Given which lines have only one."""
        return cls(label._replace(slack=np.where(alone, label.slack, np.float32(np.inf))), line, rests)

    def worth_scoring(self, handfuls: Iterable[Rays], count: int, k: int) -> Mask:
        """Which straight rays may change places with the label while it is in the top k, or stay ahead of it. They come
        a few at a time, ``count`` in all, with about their scores at both ends. Of NumPy or PyTorch."""
        xp = functions_for(self.line)
        resting = Rays(self.line, self.rests.at_low, self.rests.at_high, self.rests.slack)
        rays = (each.beside(self.label) for each in chain(handfuls, [resting]))
        nobody = xp.zeros_like(self.label.slack, dtype=xp.int64)
        matter, above, _ = _told_apart(rays, count + len(self.line), nobody, k)
        worth: Mask = (matter | above)[:count]
        return worth

    def sent(self, to: Callable[[Any], Any]) -> Lone:
        """The same elsewhere, given how to send an array there."""
        return Lone(Curves(*map(to, self.label)), to(self.line), Curves(*map(to, self.rests)))

    @classmethod
    def joined(cls, parts: Iterable[Lone]) -> Lone:
        """Those of several groups of lines, one after the other."""
        some = list(parts)
        begin = np.cumsum([0, *(len(part.label.slack) for part in some)])
        line = np.concatenate([part.line + start for part, start in zip(some, begin, strict=False)])
        return cls(Curves.joined(part.label for part in some), line, Curves.joined(part.rests for part in some))
