"""Score curves of many documents at once, in float32, in lines that are padded to equal width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles
from nudgevec.arithmetic.tables import Layout, Target
from nudgevec.motion import Reals, bulged, height


class Levels(NamedTuple):
    """For every line, heights at both ends of an interval. Who stays below them at both does not matter there.

    Heights for turning documents are the same at both ends. Straight rays differ by a sinusoid and the interval is
    shorter than half its period, so one that is below another at both ends is below it all the way.
    """

    low: Singles
    high: Singles

    def at(self, which: Any) -> Levels:
        """Those of some lines."""
        return Levels(self.low[which], self.high[which])

    def under(self, low: Reals, high: Reals) -> Mask:
        """Where straight rays with these scores at both ends come above."""
        over: Mask = (low >= self.low) | (high >= self.high)
        return over

    def raised(self, reached: Singles) -> Levels:
        """The levels where k documents never fall below a height."""
        return self.stricter(Levels(reached, reached))

    def stricter(self, other: Levels) -> Levels:
        """The others in the lines where they are the stricter ones.

        Each is right by itself, but not the higher of the two at each end: a ray can be below some documents at one
        end, below others at the other, and above all of them in between.
        """
        better = np.minimum(*other) > np.minimum(*self)
        return Levels(*(np.where(better, theirs, ours) for ours, theirs in zip(self, other, strict=True)))


class Bars(NamedTuple):
    """To matter to a line, a document has to come above ``way``, heights at both ends of all angles; and between the
    angles ``low`` and ``high``, where labels can be in the top k, above one of the labels and above the k-th still
    document."""

    way: Levels
    low: Floats
    high: Floats
    labels: Levels
    stills: Levels

    @classmethod
    def joined(cls, parts: Iterable[Bars]) -> Bars:
        """Those of several groups of lines, one after the other."""
        way, low, high, labels, stills = zip(*parts, strict=True)
        levels = (Levels(*map(np.concatenate, zip(*each, strict=True))) for each in (way, labels, stills))
        return cls(next(levels), np.concatenate(low), np.concatenate(high), *levels)


class Curves(NamedTuple):
    """Score curves in float32, with their values at both ends of an interval and what they may be off by."""

    score: Singles
    slope: Singles
    stop: Singles
    at_low: Singles
    at_high: Singles
    slack: Singles

    @classmethod
    def joined(cls, parts: Iterable[Curves]) -> Curves:
        """All of them, one after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def between(self, low: Floats, high: Floats) -> Curves:
        """The same curves in another interval, or in one each."""
        ends = (height(self.score, self.slope, self.stop, angle.astype(np.float32)) for angle in (low, high))
        return self._replace(at_low=next(ends), at_high=next(ends))

    def bounds(self, low: Floats, high: Floats, *, turns: bool) -> tuple[Singles, Singles]:
        """What the scores cannot leave between the two angles of each line.

        Straight rays are thought of as divided by a cosine that is 1 at both angles, which keeps their order: then
        each of them goes from its one end to the other without a turn.
        """
        lower = np.minimum(self.at_low, self.at_high) - self.slack
        upper = np.maximum(self.at_low, self.at_high) + self.slack
        if not turns:
            return lower, upper
        begin, end = (np.minimum(angle.astype(np.float32)[:, None], self.stop) for angle in (low, high))
        return bulged(lower, upper, end - begin)

    def bounds_beside(self, other: Curves, low: Floats, high: Floats) -> tuple[Singles, Singles]:
        """What the differences of turning documents to other curves, one for each line, cannot leave there.

        As long as both are under way these are sinusoids too, and small ones where all scores rise together. Then one
        of the two has stopped. (The other curves are taken as they are: what they are off by is the same for all.)
        """
        begin, end = (angle.astype(np.float32)[:, None] for angle in (low, high))
        both = np.clip(np.minimum(self.stop, other.stop), begin, end)
        cosine, sine = np.cos(both), np.sin(both)
        # Who has stopped before the interval is where it was.
        under_way = both > begin
        mine, theirs = (
            np.where(under_way, each.score * cosine + each.slope * sine, each.at_low) for each in (self, other)
        )
        at_low, then = self.at_low - other.at_low, mine - theirs
        lower, upper = bulged(np.minimum(at_low, then), np.maximum(at_low, then), both - begin)
        goes_on = self.stop > other.stop
        starts, stops = np.where(goes_on, mine, theirs), np.where(goes_on, self.at_high, other.at_high)
        arc = np.clip(np.maximum(self.stop, other.stop), begin, end) - both
        least, most = bulged(np.minimum(starts, stops), np.maximum(starts, stops), arc)
        rests = np.where(goes_on, other.at_high, self.at_high)
        lower = np.minimum(lower, np.where(goes_on, least - rests, rests - most))
        upper = np.maximum(upper, np.where(goes_on, most - rests, rests - least))
        return lower - self.slack, upper + self.slack

    def reach(self, levels: Levels) -> Mask:
        """Which straight rays may come above the levels."""
        return levels.under(self.at_low + self.slack, self.at_high + self.slack)

    def halved(self, middle: Floats) -> Curves:
        """Lines that come twice, the first ones now ending at an angle in the middle, the second ones beginning there.

        In place.
        """
        half = len(middle)
        first = Curves(*(values[:half] for values in self))
        at_middle = height(first.score, first.slope, first.stop, middle.astype(np.float32)[:, None])
        self.at_high[:half] = self.at_low[half:] = at_middle
        return self

    def less(self, other: Curves) -> Curves:
        """The differences to curves with the same stop, which they are off by as much as these."""
        ends = {"at_low": self.at_low - other.at_low, "at_high": self.at_high - other.at_high}
        return self._replace(score=self.score - other.score, slope=self.slope - other.slope, **ends)

    def some(self, which: Ints | tuple[Ints, Ints]) -> Curves:
        """Some of them."""
        return Curves(*(values[which] for values in self))

    def where(self, mask: Mask, lines: Ints | slice) -> Curves:
        """Some lines, with what the mask leaves out made padding."""
        mask, pairs = mask[lines], zip(self, PADDING, strict=True)
        return Curves(*(np.where(mask, values[lines], blank) for values, blank in pairs))

    def packed(self, target: Target) -> Curves:
        """What the target keeps of some lines, moved to the left and padded."""
        return Curves(*(target.fill(values, blank) for values, blank in zip(self, PADDING, strict=True)))

    def laid_out(self, layout: Layout) -> Curves:
        """Flat curves in lines, padded."""
        return Curves(*(layout.table(values, blank) for values, blank in zip(self, PADDING, strict=True)))


# Padding stays at -inf whatever the angle.
PADDING = tuple(np.float32(value) for value in (-np.inf, 0, 0, -np.inf, -np.inf, 0))
