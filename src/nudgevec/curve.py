"""The exact metric-versus-gamma curve, and the rule that picks a step from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from nudgevec.corpus import Floats
from nudgevec.motion import Motion
from nudgevec.sweep import Steps


@dataclass(frozen=True)
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

    def __call__(self, gamma: float) -> float:
        if gamma <= 0:
            return self.at_zero
        place = int(np.searchsorted(self.edges, gamma, side="right")) - 1
        return float(self.values[min(place, len(self.values) - 1)])

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
    edges = np.array([motion.gamma(float(phi)) for phi in angles])
    wide = np.append(np.diff(edges) > 0, True)
    queries = max(1, len(steps.at_zero))
    values = units[wide[:-1]] * (steps.unit / queries)
    return Curve(edges[wide], values, float(steps.at_zero.sum() * (steps.unit / queries))), angles[wide]


def choose(curve: Curve, angles: Floats, steps: Steps, motion: Motion, guard: float) -> tuple[float, Choice]:
    """The angle to take.

    The highest plateau wins. On it (or them, if several are equally high) we take the angle farthest from
    any crossing that counts: the middle of the widest gap. There the value depends least on the last
    digits of the vectors, and on which of two nearly equal queries happened to be held out.

    The guard asks whether the gain over gamma = 0 could be chance. Let d_i be what query i gains. If the
    step changed nothing but luck, each d_i could as well have had the other sign, and sum(d) would vary
    with standard deviation sqrt(sum(d^2)). The step is taken only if sum(d) is more than ``guard`` times
    that. With the default of 1, one query that gets better is no reason to move documents; two and no
    loser are. 0 switches the guard off.
    """
    best = curve.values.max()
    if best <= curve.at_zero:
        stay = Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, 0.0, 0.0)
        return 0.0, stay
    # Crossings that cancel in the sum leave no edge on the curve but are still to be kept away from.
    # Where every document has arrived, larger angles are all the same and make no gap wider.
    last = motion.span if motion.span > angles[-2] else angles[-1]
    crossings = np.unique(np.concatenate([angles[:-1], steps.crossings, [last]]))
    gap = np.diff(crossings)
    plateau_of = np.searchsorted(angles, crossings[:-1], side="right") - 1
    gap[curve.values[plateau_of] < best] = 0
    widest = int(np.argmax(gap))
    place = int(plateau_of[widest])
    phi = float(crossings[widest] + crossings[widest + 1]) / 2
    gamma = motion.gamma(phi)

    gain = steps.per_query(phi) - steps.at_zero * steps.unit
    spread = sqrt(float(gain @ gain))
    evidence = float(gain.sum()) / spread if spread > 0 else 0.0
    if guard > 0 and not evidence > guard * (1 + 1e-9):
        return 0.0, Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, evidence, gamma)
    plateau = (float(curve.edges[place]), float(curve.edges[place + 1]))
    return phi, Choice(gamma, plateau, curve.at_zero, float(best), evidence, gamma)
