"""The exact metric-versus-gamma curve, and the rule that picks a step from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.motion import Motion
from nudgevec.rows import Floats
from nudgevec.sorting import distinct
from nudgevec.sweep import Steps

# Radians; rounding a unit vector to float32 turns it by up to about 1e-7.
RESOLUTION = 1e-6


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
    # Crossings that cancel in the sum leave no edge on the curve but are still to be kept away from.
    # Where every document has arrived, larger angles are all the same and make no gap wider.
    crossings = distinct(np.concatenate([angles[:-1], steps.crossings]))
    crossings = crossings[crossings < motion.end]
    last = motion.span if motion.span > crossings[-1] + RESOLUTION else motion.end
    crossings = np.append(crossings, last)
    gap = np.diff(crossings)
    plateau_of = np.searchsorted(angles, crossings[:-1], side="right") - 1
    height = np.where(gap > min(RESOLUTION, gap.max()) * (1 - 1e-9), curve.values[plateau_of], -np.inf)
    best = float(height.max())
    if best <= curve.at_zero:
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, 0.0, 0.0)
    widest = int(np.argmax(np.where(height == best, gap, 0)))
    place = int(plateau_of[widest])
    phi = float(crossings[widest] + crossings[widest + 1]) / 2
    gamma = motion.gamma(phi)

    gain = steps.per_query(phi) - steps.at_zero * steps.unit
    spread = sqrt(float(gain @ gain))
    evidence = float(gain.sum()) / spread if spread > 0 else 0.0
    if guard > 0 and not evidence > guard * (1 + 1e-9):
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, evidence, gamma)
    plateau = (float(curve.edges[place]), float(curve.edges[place + 1]))
    return Choice(gamma, plateau, curve.at_zero, best, evidence, gamma)
