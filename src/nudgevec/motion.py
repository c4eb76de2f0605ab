"""How documents move: one family of paths, one family of score curves, for both methods.

Every moving document j has a start ``D_j``, a direction ``Z_j`` and a stop ``theta_j``. All documents
share one angle ``phi``; the score of j for a query q is

    f_j(phi) = S_j cos(min(phi, theta_j)) + Z_j sin(min(phi, theta_j)),    S_j = q.D_j,  Z_j = q.Z_j

NUDGE-N turns the unit vector D_j along its great circle toward the pull G_j and stops there:
Z_j is the unit tangent, theta_j the angle between D_j and G_j, and gamma = 2 - 2 cos phi is the
paper's bound on the squared step. Documents that do not move have theta = 0.

NUDGE-M goes along a straight ray, D_j + gamma G_j/|G_j|. Dividing all scores of a query by the same
positive number keeps its ranking, so the ray is the same family with gamma = scale * tan phi,
S_j = q.D_j / scale, Z_j = q.G_j/|G_j| and theta = pi/2 for everything; documents that do not move have
Z = 0. ``scale`` is the typical length of a document, so that nothing depends on the units of the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import asin, atan, pi, sqrt, tan
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.numpy_or_torch import functions_for
from nudgevec.arithmetic.parallel import ROWS, SOME, everywhere, slices
from nudgevec.arithmetic.rows import Array, Floats, Ints, lengths, row_dots, rows_of
from nudgevec.corpus.reader import Reader, check_nonzero
from nudgevec.errors import VectorError
from nudgevec.gather import Pull

Reals = npt.NDArray[Any]

# Below these, a direction is made of rounding errors: the labels cancel, or the document already
# stands at (or exactly opposite) the point it is pulled to, as well as float32 can tell.
_CANCELLED = 1e-12
_PARALLEL = 1e-6


@dataclass(frozen=True)
class Motion:
    """The documents that move, and their paths."""

    rows: Ints
    start: Array
    """The vectors as the corpus keeps them, (m, d)."""
    length: Floats
    direction: Floats
    """Unit vectors: the tangents at the start, or the pulls."""
    stop: Floats
    labels: Ints
    turns: bool
    """True for NUDGE-N (turning unit vectors), False for NUDGE-M (straight rays)."""
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> float:
        """The largest angle there is: gamma = 4 for N, gamma = infinity for M."""
        return pi if self.turns else pi / 2

    @property
    def span(self) -> float:
        """Beyond this angle nothing changes any more."""
        return float(self.stop.max(initial=0.0)) if self.turns else self.end

    @property
    def still_stop(self) -> float:
        """The stop of documents that do not move."""
        return 0.0 if self.turns else pi / 2

    @property
    def units(self) -> Floats:
        """What each start is divided by for scoring: its own length, or the scale of all."""
        return self.length if self.turns else np.full(len(self), self.scale)

    @property
    def stopping(self) -> tuple[Floats, Floats]:
        """How much of its start (as it is scored) and of its direction a document is made of where it stops."""
        if self.turns:
            return np.cos(self.stop), np.sin(self.stop)
        return np.zeros(len(self)), np.ones(len(self))

    def gamma(self, phi: float) -> float:
        """The paper's gamma for this angle."""
        return float(self.gammas(np.array([phi]))[0])

    def gammas(self, phi: Floats) -> Floats:
        """The same for many."""
        if self.turns:
            return 4.0 * np.square(np.sin(phi / 2))
        return np.where(phi < self.end, self.scale * np.tan(np.minimum(phi, self.end)), np.inf)

    def phi(self, gamma: float) -> float:
        """The angle for the paper's gamma."""
        if self.turns:
            return 2.0 * asin(min(1.0, sqrt(gamma) / 2))
        return atan(gamma / self.scale)

    def moved(self, phi: float, part: slice) -> Floats:
        """Some of the moving documents at this angle, at their own length, in float64."""
        start, direction = self.start[part].astype(np.float64), self.direction[part]
        if not self.turns:
            start += self.scale * tan(phi) * direction
            return start
        angle, length = np.minimum(phi, self.stop[part])[:, None], self.length[part, None]
        start /= length
        start *= np.cos(angle)
        start += np.sin(angle) * direction
        start *= length
        return start


def turning(pull: Pull, reader: Reader) -> Motion:
    """NUDGE-N: rotations toward the pull, for documents where that is defined.

    A document stays where it is when its labels cancel, when it already stands at its pull, and when
    its labels are all positive but the pull points away from it (the paper's rule). With a negative
    label it turns even through more than a right angle: that is what pushing away means.
    The directions take the place of ``pull.total``.
    """
    start, direction = reader.take(pull.rows), pull.total
    length, toward, away = (np.empty(len(start)) for _ in range(3))
    alive = np.empty(len(start), np.bool_)

    def aim(part: slice) -> None:
        # In place: fresh memory would take as long as the arithmetic.
        unit, target = start[part].astype(np.float64), direction[part]
        length[part], size = lengths(unit), lengths(target)
        alive[part] = size > _CANCELLED * pull.mass[part]
        unit /= np.where(length[part] > 0, length[part], 1.0)[:, None]
        target /= np.where(alive[part], size, 1.0)[:, None]
        toward[part] = row_dots(unit, target)
        unit *= toward[part, None]
        target -= unit
        away[part] = lengths(target)
        target /= np.where(away[part] > 0, away[part], 1.0)[:, None]

    everywhere(aim, len(start), threads=SOME)
    check_nonzero(length, pull.rows, reader)
    moves = alive & (away > _PARALLEL) & ((toward >= -_CANCELLED) | pull.pushed)
    return Motion(
        rows=pull.rows[moves],
        start=packed(start, moves),
        length=length[moves],
        direction=packed(direction, moves),
        stop=np.arctan2(away[moves], toward[moves]),
        labels=pull.labels[moves],
        turns=True,
    )


def sliding(pull: Pull, reader: Reader) -> Motion:
    """NUDGE-M: straight rays along the pull, for documents whose labels do not cancel.

    The directions take the place of ``pull.total``.
    """
    size, direction = np.empty(len(pull.rows)), pull.total

    def aim(part: slice) -> None:
        size[part] = lengths(direction[part])
        direction[part] /= np.where(size[part] > 0, size[part], 1.0)[:, None]

    everywhere(aim, len(size))
    moves = size > _CANCELLED * pull.mass
    start = reader.take(pull.rows[moves])
    length = lengths(start)
    scale = _median(length) or 1.0
    far = np.flatnonzero(length > 1e15 * scale)
    if len(far):
        where = reader.name(int(pull.rows[moves][far[0]]))
        raise VectorError(f"documents: {where} is 1e15 times as long as the others; rescale the vectors")
    return Motion(
        rows=pull.rows[moves],
        start=start,
        length=length,
        direction=packed(direction, moves),
        stop=np.full(int(moves.sum()), pi / 2),
        labels=pull.labels[moves],
        turns=False,
        scale=scale,
    )


def _median(values: Floats) -> float:
    """As ``np.median``, which would have NumPy import its masked arrays; zero of none."""
    ordered, half = np.sort(values), len(values) // 2
    return float(ordered[(len(values) - 1) // 2] + ordered[half]) / 2 if len(values) else 0.0


def packed(rows: Array, which: npt.NDArray[np.bool_]) -> Array:
    """Some rows, moved to the front of the array they are in, which is given up: fresh memory would take longer."""
    kept = np.flatnonzero(which)
    for part in slices(len(kept), ROWS):
        if kept[part.stop - 1] >= part.stop:
            rows[part] = rows_of(rows, kept[part])
    return rows[: len(kept)]


def bulged(lower: Reals, upper: Reals, arc: Reals) -> tuple[Reals, Reals]:
    """What a sinusoid cannot leave, given its smaller and larger value at the ends of an arc below pi.

    Between the ends it can exceed the larger by a factor 1/cos(arc/2) where that is positive, and undercut
    the smaller by the same factor where that is negative: the nearer end is at most arc/2 from the top.
    """
    factor = 1 / np.cos(arc / 2)
    return np.where(lower < 0, lower * factor, lower), np.where(upper > 0, upper * factor, upper)


def peak(first: Floats, last: Floats, stop: Floats) -> Floats:
    """The highest a turning document comes on its way, given its scores at both ends.

    It is on top in between where each end is higher than the other one's shadow on it; that is where the sinusoid
    through both has its radius. (On the shortest ways the radius would be lost in rounding, and hardly differs.) Of
    NumPy or PyTorch.
    """
    xp = functions_for(first)
    shadow = xp.cos(stop)
    inside = (last > first * shadow) & (first > last * shadow)
    short = stop < 1e-3
    slope = (last - first * shadow) / xp.where(short, 1.0, xp.sin(stop))
    radius = xp.sqrt(xp.square(first) + xp.square(slope)) * (1 + 1e-6)
    higher = xp.maximum(first, last)
    peak: Floats = xp.where(short, higher + 1e-6 * abs(higher), xp.where(inside, radius, higher))
    return peak


def height(score: Reals, slope: Reals, stop: Reals, phi: Reals | np.floating[Any]) -> Reals:
    """The score curve f(phi) above, in the precision of its arguments, of NumPy or PyTorch."""
    xp = functions_for(stop)
    angle = xp.minimum(phi, stop)
    value: Reals = score * xp.cos(angle) + slope * xp.sin(angle)
    return value
