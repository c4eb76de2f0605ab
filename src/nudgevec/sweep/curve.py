"""The exact metric-versus-gamma curve, and the rule that picks a step from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Floats
from nudgevec.motion import Motion
from nudgevec.sweep.sweep import Steps

# Radians; rounding a unit vector to float32 turns it by up to about 1e-7.
RESOLUTION = 1e-6
# Plateaus looked at first.
_SOME = 256


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """A step function of gamma: ``values[i]`` holds for gamma strictly between ``edges[i]`` and ``edges[i + 1]``.

    ``edges[0]`` is 0 and the last edge is the largest gamma there is (4 for NUDGE-N, infinity for
    NUDGE-M). ``at_zero`` is the value at gamma = 0 itself, before anything moves.

    >>> curve = Curve(np.array([0.0, 0.5, 4.0]), np.array([0.25, 0.75]), at_zero=0.25)
    >>> curve(0.7)
    0.75
    """

    edges: Floats
    values: Floats
    at_zero: float

    def __call__(self, gamma: npt.ArrayLike) -> Any:
        """The value at one gamma or at many."""
        asked = np.asarray(gamma, dtype=np.float64)
        place = np.searchsorted(self.edges, asked, side="right") - 1
        value = np.where(asked <= 0, self.at_zero, self.values[np.clip(place, 0, len(self.values) - 1)])
        return value if value.ndim else float(value)

    def __repr__(self) -> str:
        return f"Curve({len(self.values)} plateaus, {self.at_zero:.4f} at gamma 0, {self.best:.4f} at best)"

    @property
    def best(self) -> float:
        """The highest value anywhere on the curve."""
        return max(self.at_zero, float(self.values.max()))


@dataclass(frozen=True)
class Choice:
    """Which step was taken, and why."""

    gamma: float
    plateau: tuple[float, float]
    """The gammas between which the metric has the chosen value."""
    before: float
    after: float
    """Mean validation metric at gamma = 0 and at the chosen gamma."""
    evidence: float
    """Gain of the best plateau over gamma = 0, in standard deviations of chance (see ``choose``)."""
    best_gamma: float
    """Gamma of the best plateau, also when the guard refused to go there."""


def trace(steps: Steps, motion: Motion) -> tuple[Curve, Floats]:
    """The curve over gamma, and its edges as angles."""
    left, units = steps.totals()
    angles = np.append(left, motion.end)
    edges = motion.gammas(angles)
    wide = np.append(np.diff(edges) > 0, True)
    queries = max(1, len(steps.at_zero))
    values = units[wide[:-1]] * (steps.unit / queries)
    return Curve(edges[wide], values, float(steps.at_zero.sum() * (steps.unit / queries))), angles[wide]


def choose(curve: Curve, angles: Floats, steps: Steps, motion: Motion, guard: float) -> Choice:
    """The step to take.

    The highest plateau wins. On it (or them, if several are equally high) we take the angle farthest from
    any crossing that counts: the middle of the widest gap. There the value depends least on the last
    digits of the vectors, and on which of two nearly equal queries happened to be held out. Gaps below
    ``RESOLUTION`` are passed over: no vector in float32 stands reliably inside one.

    The guard asks whether the gain over gamma = 0 could be chance. Let d_i be what query i gains. If the
    step changed nothing but luck, each d_i could as well have had the other sign, and sum(d) would vary
    with standard deviation sqrt(sum(d^2)). The step is taken only if sum(d) is more than ``guard`` times
    that. With the default of 1, one query that gets better is no reason to move documents; two and no
    loser are. 0 switches the guard off.
    """
    place, phi = _safest(curve.values, angles, steps.crossings, motion)
    best = float(curve.values[place])
    if best <= curve.at_zero:
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, 0.0, 0.0)
    gamma = motion.gamma(phi)

    gain = steps.per_query(phi) - steps.at_zero * steps.unit
    spread = sqrt(float(gain @ gain))
    evidence = float(gain.sum()) / spread if spread > 0 else 0.0
    if guard > 0 and not evidence > guard * (1 + 1e-9):
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, evidence, gamma)
    plateau = (float(curve.edges[place]), float(curve.edges[place + 1]))
    return Choice(gamma, plateau, curve.at_zero, best, evidence, gamma)


def _safest(values: Floats, angles: Floats, crossings: Floats, motion: Motion) -> tuple[int, float]:
    """The highest plateau with a gap that is wide enough (of several, the one with the widest), and the middle of that.

    Crossings that cancel in the sum leave no edge on the curve but are still to be kept away from. Where every document
    has arrived, larger angles are all the same and make no gap wider.
    """
    crossings = crossings[: np.searchsorted(crossings, motion.end)]
    left, right = angles[:-1], angles[1:].copy()
    final = max(left[-1], crossings.max(initial=0.0))
    right[-1] = motion.span if motion.span > final + RESOLUTION else motion.end
    enough = RESOLUTION * (1 - 1e-9)
    wide = np.flatnonzero(right - left > enough)
    # One of the highest will nearly always do. Where there is none at all, gaps may be as narrow as they are.
    highest = wide[np.argpartition(values[wide], -_SOME)[-_SOME:]] if len(wide) > _SOME else wide[:0]
    for some in highest, wide, np.arange(len(values)):
        gap, _ = _widest_gaps(left[some], right[some], crossings)
        if gap.max(initial=0.0) > enough:
            break
    best = values[some[gap > min(enough, gap.max() * (1 - 1e-9))]].max()
    some = np.flatnonzero(values == best)
    gap, middle = _widest_gaps(left[some], right[some], crossings)
    widest = int(np.argmax(gap))
    return int(some[widest]), float(middle[widest])


def _widest_gaps(left: Floats, right: Floats, crossings: Floats) -> tuple[Floats, Floats]:
    """The width and the middle of the widest gap between crossings on each of some plateaus."""
    if len(left) == 0:
        return left, right
    begin, end = np.searchsorted(crossings, left, side="right"), np.searchsorted(crossings, right, side="left")
    # The borders of each plateau one after the other: its left end, crossings, its right end.
    count = end - begin + 2
    first, last = np.cumsum(count) - count, np.cumsum(count) - 1
    place = np.arange(int(count.sum())) + np.repeat(begin - 1 - first, count)
    border = np.append(crossings, 0.0)[np.minimum(place, len(crossings))]
    border[first], border[last] = left, right
    gap = np.diff(border, append=0.0)
    gap[last] = -1.0
    widest = np.maximum.reduceat(gap, first)
    at = np.flatnonzero(gap == np.repeat(widest, count))
    at = at[np.searchsorted(at, first)]
    return widest, (border[at] + border[at + 1]) / 2
