"""Moving documents as the columns of a table of scores, in float32.

Their scores at angle zero and where they stop tell all others, so two products with the queries are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nudgevec.arithmetic.parallel import everywhere
from nudgevec.arithmetic.rounding import error_of
from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles
from nudgevec.cut.lines import Bars, Levels
from nudgevec.motion import Motion, Reals, peak


@dataclass(frozen=True)
class Columns:
    """Moving documents.

    Between the two ends of its way one that turns comes at most ``bulge`` times as high as at the higher of both (see
    ``motion.bulged``). Straight rays have a bulge of one: a ray that is below another at both ends is below it all the
    way. ``slack`` bounds the error of any score on the way.
    """

    motion: Motion
    bulge: Singles
    slack: Singles

    @classmethod
    def of(cls, motion: Motion) -> Columns:
        """Of all that move.

        A product is off by error_of(d) per unit of length. Scores in between are joined from both, and so are slopes:
        f(phi) = (first sin(stop - phi) + last sin phi) / sin stop for N, first cos phi + last sin phi for M. An
        error in the ends grows by 1/cos(stop / 2) at most; joining costs a few units in the last place (32 more
        dimensions' worth).
        """
        grown = 1 / np.cos(motion.stop / 2)
        slack = error_of(motion.direction.shape[1] + 32) * np.maximum(motion.length / motion.units, 1.0)
        bulge = grown if motion.turns else np.ones(len(motion))
        return cls(motion, bulge.astype(np.float32), (1.5 * grown * slack).astype(np.float32))

    def __len__(self) -> int:
        return len(self.motion)

    @property
    def turns(self) -> bool:
        return self.motion.turns

    @cached_property
    def ends(self) -> Singles:
        """All documents at angle zero, and where they stop: (2, m, d)."""
        motion, units = self.motion, self.motion.units
        count, dim = motion.direction.shape
        ends = np.empty((2, count, dim), np.float32)
        cosine, sine = motion.stopping

        def fill(part: slice) -> None:
            start = motion.start[part] / units[part, None]
            ends[0, part] = start
            ends[1, part] = motion.direction[part]
            if motion.turns:
                start *= cosine[part, None]
                start += sine[part, None] * motion.direction[part]
                ends[1, part] = start

        everywhere(fill, count)
        return ends

    @property
    def first(self) -> Singles:
        first: Singles = self.ends[0]
        return first

    @property
    def last(self) -> Singles:
        last: Singles = self.ends[1]
        return last

    def above(self, column: Ints, low: Reals, high: Reals, levels: Levels) -> Mask:
        """Which documents may come above levels on their way, given what their scores at both ends are at most."""
        if self.turns:
            first, last = (end.astype(np.float64, copy=False) for end in (low, high))
            return peak(first, last, self.motion.stop[column]) >= levels.low
        return levels.under(low, high)

    def matter(self, line: Ints, column: Ints, first: Reals, last: Reals, bars: Bars) -> Mask:
        """Which pairs may matter, where the lines have these bars, given what scores at both ends are at most."""
        if self.turns:
            return self.above(column, first, last, bars.way.at(line))
        low, high = (between(angle, line, first, last) for angle in (bars.low, bars.high))
        return bars.labels.at(line).under(low, high) & bars.stills.at(line).under(low, high)


def between(angle: Floats, line: Ints | slice, first: Reals, last: Reals) -> Reals:
    """Scores of rays at the angles of their lines."""
    score: Reals = np.cos(angle).astype(first.dtype)[line] * first
    score += np.sin(angle).astype(last.dtype)[line] * last
    return score
