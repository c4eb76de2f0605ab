"""The path of every document that moves, and its score curve; one family for both methods.

All documents share one angle phi. A mover j has a start ``D_j``, a direction ``Z_j`` and a stop ``theta_j``, and its
score for a query q is

    f_j(phi) = s_j cos(min(phi, theta_j)) + z_j sin(min(phi, theta_j)),    s_j = q.D_j,  z_j = q.Z_j

NUDGE-N rotates the unit vector D_j along its great circle toward the pull G_j and stops there: Z_j is the unit
tangent, theta_j the angle between D_j and G_j, and gamma = 2 - 2 cos phi is the paper's bound on the squared step. The
score of an unmoved document is constant: theta = 0.

NUDGE-M goes along a straight ray, D_j + gamma G_j/|G_j|. Dividing all scores of a query by the same positive number
keeps its ranking, so the ray belongs to the same family: gamma = scale * tan phi, s_j = q.D_j / scale,
z_j = q.G_j/|G_j| and theta = pi/2 for all documents; an unmoved one has z = 0. ``scale`` is the median length of the
movers, so that nothing depends on the unit of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import asin, atan, pi, sqrt

import numpy as np
from numba import prange

from nudgevec.arrays import Array, Floats, Ints, slices
from nudgevec.core.compiling import compiled
from nudgevec.core.exact import compilable, dot, norm, norms
from nudgevec.core.pull import Pull
from nudgevec.errors import VectorError

# Below these a direction consists of rounding errors: the labels cancel, or the document already stands at the point it
# is pulled to, within the precision of float32.
_CANCELLED = 1e-12
_PARALLEL = 1e-6
# Sine of the angle between the pull and the point opposite to the document. The smaller it is, the more rounding turns
# the tangent; here by 1e-13, well below what counts as a tie.
_OPPOSITE = 1e-3
# Radians. Rounding a unit vector rotates it by up to 1e-7 in float32, and by up to 3e-4 in float16.
RESOLUTION = 1e-6
HALF_RESOLUTION = 1e-3
# Rows moved at a time, to bound the memory of float64 copies.
_ROWS = 4096

RowName = Callable[[int], str]
"""What to call a row in an error message."""


@dataclass(frozen=True)
class Paths:
    """The documents that move, and where they go."""

    rows: Ints
    start: Array
    """Their vectors as the corpus keeps them, (m, d)."""
    length: Floats
    direction: Floats
    """Unit vectors: the tangents at the start (N) or the pulls (M)."""
    stop: Floats
    labels: Ints
    rotates: bool
    """True for NUDGE-N, False for NUDGE-M."""
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def max_angle(self) -> float:
        """The largest angle: gamma = 4 for N, gamma = infinity for M."""
        return pi if self.rotates else pi / 2

    @property
    def last_stop(self) -> float:
        """The angle beyond which nothing changes."""
        return float(self.stop.max(initial=0.0)) if self.rotates else self.max_angle

    @property
    def largest_gamma(self) -> float:
        """The largest step after which all vectors are in the range of their type; rotations keep the lengths."""
        if self.rotates:
            return 4.0
        largest, gamma = float(np.finfo(self.start.dtype).max), np.inf
        for part in slices(len(self), _ROWS):
            direction, start = self.direction[part], self.start[part].astype(np.float64)
            margin = largest - np.sign(direction) * start
            with np.errstate(over="ignore"):
                gamma = min(gamma, float((margin / np.maximum(np.abs(direction), 1e-300)).min()))
        return gamma

    @property
    def resolution(self) -> float:
        """The narrowest gap of angles that moved vectors can be in reliably, after they are rounded to their type."""
        return HALF_RESOLUTION if self.start.dtype == np.float16 else RESOLUTION

    @property
    def unmoved_stop(self) -> float:
        """The stop of unmoved documents."""
        return 0.0 if self.rotates else pi / 2

    @property
    def divisor(self) -> Floats:
        """What each start is divided by for scoring: its own length, or the common scale."""
        return self.length if self.rotates else np.full(len(self), self.scale)

    def gammas(self, phi: Floats) -> Floats:
        """Return the paper's gamma of every angle."""
        if self.rotates:
            return 4.0 * np.square(np.sin(phi / 2))
        return np.where(phi < self.max_angle, self.scale * np.tan(np.minimum(phi, self.max_angle)), np.inf)

    def phi(self, gamma: float) -> float:
        """Return the angle of the paper's gamma."""
        return 2.0 * asin(min(1.0, sqrt(gamma) / 2)) if self.rotates else atan(gamma / self.scale)

    def moved(self, gamma: float) -> Array:
        """Return the movers after a step of gamma, in the type of the corpus; numbers out of its range are infinite."""
        phi, after = self.phi(gamma), np.empty_like(self.start)
        with np.errstate(over="ignore"):
            for part in slices(len(self), _ROWS):
                start, direction = self.start[part].astype(np.float64), self.direction[part]
                if self.rotates:
                    angle, length = np.minimum(phi, self.stop[part])[:, None], self.length[part, None]
                    after[part] = length * (np.cos(angle) * (start / length) + np.sin(angle) * direction)
                else:
                    after[part] = start + gamma * direction
        return after


def rotations(pull: Pull, start: Array, name: RowName) -> Paths:
    """Return the paths of NUDGE-N, for documents where a rotation toward the pull is defined.

    A document stays where it is when its labels cancel, when it already stands at its pull, and when its labels are all
    positive but the pull points away from it (the paper's rule). With a negative label it rotates even through more
    than a right angle: that is what pushing away means.
    """
    direction, length, pull_length, cosine, sine = _tangents(compilable(start), pull.total)
    if not (length > 0).all():
        raise VectorError(f"documents: {name(int(pull.rows[np.argmin(length > 0)]))} is all zeros; remove it")
    cancelled = pull_length <= _CANCELLED * pull.mass
    has_direction = sine > np.where(cosine >= 0, _PARALLEL, _OPPOSITE)
    moves = ~cancelled & has_direction & ((cosine >= -_CANCELLED) | pull.negative)
    stop = np.arctan2(sine, cosine)
    return Paths(pull.rows[moves], start[moves], length[moves], direction[moves], stop[moves], pull.labels[moves], True)


@compiled(parallel=True)
def _tangents(start, total):
    m, d = start.shape
    direction, length, pull_length, cosine, sine = np.empty((m, d)), np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    for j in prange(m):
        length[j], pull_length[j], cosine[j], sine[j] = _tangent(start[j], total[j], direction[j])
    return direction, length, pull_length, cosine, sine


@compiled()
def _tangent(start, total, direction):
    """Write the unit tangent at a start toward its pull: the pull without its part along the start.

    Returns the lengths of both, the cosine of the angle between them, and its sine.
    """
    length, pull_length = norm(start), norm(total)
    unit, target = np.zeros(len(start)), np.zeros(len(start))
    if length > 0 and pull_length > 0:
        for i in range(len(start)):
            unit[i], target[i] = start[i] / length, total[i] / pull_length
    cosine = dot(unit, target)
    for i in range(len(start)):
        direction[i] = target[i] - cosine * unit[i]
    sine = norm(direction)
    if sine > 0:
        for i in range(len(start)):
            direction[i] /= sine
    return length, pull_length, cosine, sine


def rays(pull: Pull, start: Array, name: RowName) -> Paths:
    """Return the paths of NUDGE-M, for documents whose labels do not cancel."""
    pull_length = norms(pull.total)
    moves = pull_length > _CANCELLED * pull.mass
    rows, length = pull.rows[moves], norms(start[moves])
    scale = float(np.median(length)) if len(rows) else 0.0
    scale = scale or 1.0
    far = np.flatnonzero(length > 1e15 * scale)
    if len(far):
        raise VectorError(
            f"documents: {name(int(rows[far[0]]))} is 1e15 times as long as the others; rescale the vectors"
        )
    direction = pull.total[moves] / pull_length[moves, None]
    return Paths(rows, start[moves], length, direction, np.full(len(rows), pi / 2), pull.labels[moves], False, scale)
