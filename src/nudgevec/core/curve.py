"""The exact metric-versus-gamma curve, and the rule that picks a step from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Floats, Ints
from nudgevec.core.paths import Paths
from nudgevec.core.sweep import Steps

# With the mean of a normal distribution this many standard deviations above a threshold, four of five draws exceed it.
_POWER = 0.84
# Crossings that coincide on paper come out this close at most; they are one edge of the curve.
SAME_ANGLE = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """The mean metric as a step function of gamma. Call it with one gamma or an array of them.

    Attributes
    ----------
    edges : array of shape (p + 1,)
        Ends of the plateaus, ascending. The first is 0; the last is the largest gamma there is, 4 for NUDGE-N and
        infinity for NUDGE-M.
    values : array of shape (p,)
        ``values[i]`` holds for gamma strictly between ``edges[i]`` and ``edges[i + 1]``.
    at_zero : float
        The value at gamma = 0, before anything moves.

    Examples
    --------
    >>> curve = Curve(np.array([0.0, 0.5, 4.0]), np.array([0.25, 0.75]), at_zero=0.25)
    >>> curve(0.7)
    0.75
    """

    edges: Floats
    values: Floats
    at_zero: float

    def __call__(self, gamma: npt.ArrayLike) -> Any:
        """Return the value at one gamma or at many."""
        gammas = np.asarray(gamma, dtype=np.float64)
        plateau = np.searchsorted(self.edges, gammas, side="right") - 1
        value = np.where(gammas <= 0, self.at_zero, self.values[np.clip(plateau, 0, len(self.values) - 1)])
        return value if value.ndim else float(value)

    def __repr__(self) -> str:
        return f"Curve({len(self.values)} plateaus, {self.at_zero:.4f} at gamma 0, {self.best:.4f} at best)"

    @property
    def best(self) -> float:
        """The highest value anywhere on the curve."""
        return max(self.at_zero, float(self.values.max()))


@dataclass(frozen=True)
class Choice:
    """The chosen step, and the evidence for it.

    Attributes
    ----------
    gamma : float
        0 if nothing is to move.
    plateau : (float, float)
        The gammas between which the metric has the chosen value.
    before, after : float
        Mean validation metric at gamma = 0 and at the chosen gamma.
    evidence : float
        Gain of the best plateau over gamma = 0, in standard deviations of chance.
    best_gamma : float
        Gamma of the best plateau, even if the guard refused it.
    """

    gamma: float
    plateau: tuple[float, float]
    before: float
    after: float
    evidence: float
    best_gamma: float

    def queries_needed(self, n_queries: int, guard: float) -> int | None:
        """Estimate with how many validation queries a gain of this size passes the guard in four of five cases.

        The evidence grows with the square root of the number of queries, and varies by about 1. As the best of many
        steps it is rather too large, so this is rather too few.

        Parameters
        ----------
        n_queries : int
            Number of validation queries of this choice.
        guard : float
            The guard to pass.

        Returns
        -------
        int or None
            None if no step gains anything: such queries show nothing to estimate from.

        Examples
        --------
        >>> Choice(0.0, (0.0, 0.0), 0.5, 0.5, evidence=0.92, best_gamma=0.1).queries_needed(30, guard=1.0)
        120
        """
        return ceil(n_queries * ((guard + _POWER) / self.evidence) ** 2) if self.evidence > 0 else None


@dataclass(frozen=True, eq=False, repr=False)
class QueryCurves:
    """The metric of every query as a step function of gamma. Call it with a gamma.

    Queries are numbered 0, 1, ... in their order, without queries that have no relevant label.

    Attributes
    ----------
    gamma, query, change : arrays of shape (e,)
        At ``gamma[i]`` the metric of query ``query[i]`` changes by ``change[i]``; sorted by gamma.
    at_zero : array of shape (q,)
        The metric of each query at gamma = 0.

    Examples
    --------
    >>> curves = QueryCurves(np.array([0.5]), np.array([1]), np.array([0.25]), at_zero=np.array([0.0, 0.5]))
    >>> curves(0.7)
    array([0.  , 0.75])
    """

    gamma: Floats
    query: Ints
    change: Floats
    at_zero: Floats

    def __call__(self, gamma: float) -> Floats:
        """Return the metric of every query at a gamma."""
        before = 0 if gamma <= 0 else np.searchsorted(self.gamma, gamma, side="right")
        return self.at_zero + np.bincount(self.query[:before], self.change[:before], len(self.at_zero))

    def __repr__(self) -> str:
        return f"QueryCurves({len(self.at_zero)} queries, {len(self.gamma)} changes)"


def query_curves(steps: Steps, paths: Paths) -> QueryCurves:
    """Return step functions of gamma instead of the angle."""
    change, at_zero = (np.asarray(column * steps.quantum, np.float64) for column in (steps.delta, steps.at_zero))
    return QueryCurves(paths.gammas(steps.phi), steps.query, change, at_zero)


def curve_of(steps: Steps, paths: Paths) -> Curve:
    """Return the mean over all queries as a function of gamma."""
    angles, quanta = _plateaus(steps)
    changes = np.append(True, np.diff(quanta) != 0)
    quanta = quanta[changes]
    angles = np.append(angles[changes], paths.max_angle)
    edges = paths.gammas(angles)
    wide = np.append(np.diff(edges) > 0, True)
    quantum = steps.quantum / max(1, len(steps.at_zero))
    return Curve(edges[wide], quanta[wide[:-1]] * quantum, float(steps.at_zero.sum() * quantum))


def _plateaus(steps: Steps) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the left ends of all gaps between crossings, and the sum over all queries there, in quanta."""
    # There can be millions of steps: few copies of them are in memory at a time.
    first = np.append(True, np.diff(steps.phi, prepend=0.0) > SAME_ANGLE)
    last = np.append(first[1:], True)
    total = np.append(steps.at_zero.sum(), steps.delta)
    np.cumsum(total, out=total)
    return np.append(0.0, steps.phi)[first], total[last]


def choose(curve: Curve, steps: Steps, paths: Paths, guard: float, largest_gamma: float) -> Choice:
    """Choose the step, at most ``largest_gamma``.

    The highest plateau wins. On it (or them, if several are equally high) the angle farthest from any crossing is
    taken: the middle of the widest gap. There the value depends least on the last digits of the vectors, and on which
    of two nearly equal queries happened to be held out. Crossings whose effects cancel in the sum leave no edge on the
    curve but bound a gap too. Gaps below ``paths.resolution`` are skipped.

    The guard asks whether the gain over gamma = 0 could be chance. Let d_i be what query i gains. If the step changed
    nothing but luck, each d_i could as well have had the other sign, and sum(d) would vary with standard deviation
    sqrt(sum(d^2)). The step is taken only if sum(d) is more than ``guard`` times that. With the default of 1, one query
    that gets better is no reason to move documents; two and no loser are. 0 switches the guard off.
    """
    phi = best_angle(steps, paths, paths.phi(largest_gamma))
    gamma = float(paths.gammas(np.array([phi]))[0])
    plateau = int(np.searchsorted(curve.edges, gamma, side="right")) - 1
    plateau = min(plateau, len(curve.values) - 1)
    best = float(curve.values[plateau])
    if best <= curve.at_zero or gamma == 0:
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, 0.0, 0.0)
    strength = evidence(steps.per_query(phi) - steps.at_zero * steps.quantum)
    if guard > 0 and not strength > guard * (1 + 1e-9):
        return Choice(0.0, (0.0, 0.0), curve.at_zero, curve.at_zero, strength, gamma)
    between = float(curve.edges[plateau]), float(curve.edges[plateau + 1])
    return Choice(gamma, between, curve.at_zero, best, strength, gamma)


def evidence(gain: Floats) -> float:
    """Return the sum of what all queries gain, in standard deviations of chance; see ``choose``."""
    spread = sqrt(float(gain @ gain))
    return float(gain.sum()) / spread if spread > 0 else 0.0


def best_angle(steps: Steps, paths: Paths, last: float) -> float:
    """Return the angle, at most ``last``, in the middle of the widest of the gaps with the highest value."""
    left, value = _plateaus(steps)
    # Beyond the last stop nothing changes, so the last gap ends there.
    has_stop = paths.last_stop > left[-1] + paths.resolution
    gap = np.diff(left, append=paths.last_stop if has_stop else paths.max_angle)
    # A gap is shortened only if its middle is more than ``last``, so that the choice is the same for every type of
    # vectors that it fits into.
    too_long = left + gap / 2 > last
    gap[too_long] = last - left[too_long]
    enough = min(paths.resolution * (1 - 1e-9), gap.max())
    wide = gap >= enough
    highest = wide & (value == value[wide].max())
    widest = int(np.argmax(np.where(highest, gap, -1.0)))
    return float(left[widest] + gap[widest] / 2)
