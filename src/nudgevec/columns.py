"""Moving documents as the columns of a table of scores, in float32.

Their scores at angle zero and where they stop tell all others, so two products with the queries are enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from nudgevec.lines import Bars, Levels, Mask
from nudgevec.motion import Motion, peak
from nudgevec.parallel import everywhere
from nudgevec.rows import Floats, Ints
from nudgevec.tiles import Singles, error_of

# Labels tend to overtake others early on their rays, in this part of all angles. (And what still documents reach
# falls to zero along the whole ray.)
_EARLY = 0.35
# Up to so many rays are looked at in one interval.
_FEW = 1 << 10


@dataclass(frozen=True)
class Columns:
    """Moving documents, and the angles between which to look at them first.

    The score at ``angles[i]`` is ``weights[i][0] * first + weights[i][1] * last``. Between two neighbouring angles
    documents that turn come at most ``bulges[i]`` times as high as at the higher of both (see ``motion.bulged``).
    Straight rays have no bulges: one that is below another at both angles is below it all the way. ``slack`` bounds
    the error of any such score. All but ``angles`` have one entry per document.
    """

    motion: Motion
    angles: list[float]
    weights: list[tuple[Singles, Singles]]
    bulges: list[Singles]
    slack: Singles

    @classmethod
    def of(cls, motion: Motion) -> Columns:
        """Straight rays are looked at in two intervals, unless they are few.

        A product is off by error_of(d) per unit of length. Scores in between are joined from both, and so are slopes:
        f(phi) = (first sin(stop - phi) + last sin phi) / sin stop for N, first cos phi + last sin phi for M. An
        error in the ends grows by 1/cos(stop / 2) at most; joining costs a few units in the last place (32 more
        dimensions' worth).
        """
        apart = not motion.turns and len(motion) > _FEW
        angles = [0.0, _EARLY * motion.end, motion.end] if apart else [0.0, motion.end]
        # Rays all have the same stop.
        stop = motion.stop if motion.turns else motion.stop[:1]
        reached = [np.minimum(phi, stop) for phi in angles]
        sine = np.sin(stop)
        weights = [(np.sin(stop - phi) / sine, np.sin(phi) / sine) for phi in reached]
        bulges = [1 / np.cos((end - begin) / 2) for begin, end in pairwise(reached)] if motion.turns else []
        slack = error_of(motion.direction.shape[1] + 32) * np.maximum(motion.length / motion.units, 1.0)
        slack *= 1.5 / np.cos(stop / 2)

        def of_each(values: Floats) -> Singles:
            return np.full(len(motion), values, np.float32)

        return cls(
            motion,
            angles,
            [(of_each(of_first), of_each(of_last)) for of_first, of_last in weights],
            [of_each(bulge) for bulge in bulges],
            of_each(slack),
        )

    def __len__(self) -> int:
        return len(self.motion)

    @property
    def turns(self) -> bool:
        return self.motion.turns

    @cached_property
    def ends(self) -> Singles:
        """Each document at angle zero and where it stops, side by side: (m, 2, d)."""
        motion, units = self.motion, self.motion.units
        count, dim = motion.direction.shape
        ends = np.empty((count, 2, dim), np.float32)

        cosine, sine = motion.stopping

        def fill(part: slice) -> None:
            start = motion.start[part] / units[part, None]
            ends[part, 0] = start
            ends[part, 1] = motion.direction[part]
            if motion.turns:
                start *= cosine[part, None]
                start += sine[part, None] * motion.direction[part]
                ends[part, 1] = start

        everywhere(fill, count)
        return ends

    @property
    def first(self) -> Singles:
        return self.ends[:, 0]

    @property
    def last(self) -> Singles:
        return self.ends[:, 1]

    def above(self, column: Ints, low: Floats, high: Floats, levels: Levels) -> Mask:
        """Which documents may come above levels in an interval (where they turn: on their whole way), given what
        their scores at both ends are at most."""
        if self.turns:
            return peak(low, high, self.motion.stop[column]) >= levels.low
        return levels.under(low, high)

    def matter(self, line: Ints, column: Ints, low: Floats, high: Floats, bars: Bars) -> Mask:
        """Which pairs may matter there, where the lines have these bars."""
        if self.turns:
            # Levels are the same at both ends, so the stricter one is the higher one.
            return self.above(column, low, high, bars.stricter.at(line))
        return np.logical_and(*(self.above(column, low, high, levels.at(line)) for levels in bars))
