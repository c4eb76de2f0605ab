"""Ranks of labelled documents as functions of the angle: where each begins, and what changes it within its cell.

A score within ``TIE`` of another is a tie, and a tie counts as ahead (the paper asks for a strict inequality).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import begins, sorted_places, sorted_values
from nudgevec.cut.cells import Cells
from nudgevec.motion import bulged, height

# Scores are inner products of vectors of about unit length in float64: above their rounding errors, and
# far below any difference that a float32 vector can express.
TIE = 1e-12
# Crossings that fall together on paper come out this close at most; they are one edge of the curve.
SAME_ANGLE = 1e-12
# Pairs of a label and another document compared at a time.
_PAIRS = 1 << 17
# Documents under way all over their cells are soon compared. Only with more labels than this, on average, is it worth
# a look at which of those they can meet.
_OFTEN = 2


@dataclass(frozen=True)
class Ranks:
    """Ranks of labelled entries (one line per entry), and the events that change them within the top k.

    Event e: entry ``entry[e]`` (an index into the lines) goes from rank ``before`` to ``after`` at ``phi``.
    At ``touches`` another document ties with a label in the top k for one angle only, without getting ahead.
    """

    at_zero: Ints
    first: Ints
    last: Ints
    entry: Ints
    phi: Floats
    before: Ints
    after: Ints
    touches: Floats


def rank_events(cells: Cells, k: int, *, flat: bool) -> tuple[Ints, Ranks]:
    """Rank of every labelled entry of every cell, as a function of the angle within the cell; with ``flat``, only what
    gets it into the top k and out of it."""
    size = np.diff(cells.start)
    cell_of = np.repeat(np.arange(len(size)), size)
    entries = np.flatnonzero(cells.label >= 0)
    rivals = size[cell_of[entries]]
    bound = np.concatenate([[0], np.cumsum(rivals)])
    under_way = bool((cells.stop >= cells.high[cell_of]).all())
    few = under_way and bound[-1] <= _OFTEN * len(cell_of)
    lower, upper = _no_bounds(cells) if few else _bounds(cells, cell_of)
    parts: list[Ranks] = []
    begin = 0
    while begin < len(entries):
        end = max(begin + 1, int(np.searchsorted(bound, bound[begin] + _PAIRS, side="right")) - 1)
        parts.append(_events_of(cells, cell_of, lower, upper, entries[begin:end], rivals[begin:end], begin, k, flat))
        begin = end
    if not parts:
        none = np.empty(0, np.int64)
        return entries, Ranks(none, none, none, none, np.empty(0), none, none, np.empty(0))
    fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Ranks.__dataclass_fields__}
    return entries, Ranks(**fields)


def _bounds(cells: Cells, cell_of: Ints) -> tuple[Floats, Floats]:
    """What each entry's score cannot leave within its cell, with room for rounding and ties."""
    low, high = cells.low[cell_of], cells.high[cell_of]
    ends = [height(cells.score, cells.slope, cells.stop, phi) for phi in (low, high)]
    arc = np.minimum(high, cells.stop) - np.minimum(low, cells.stop)
    lower, upper = bulged(np.minimum(*ends), np.maximum(*ends), arc)
    room = 10 * TIE + 1e-12 * np.hypot(cells.score, cells.slope)
    return lower - room, upper + room


def _no_bounds(cells: Cells) -> tuple[Floats, Floats]:
    """The same, where it would take longer to find out than it could save."""
    return np.full(len(cells.score), -np.inf), np.full(len(cells.score), np.inf)


def _events_of(
    cells: Cells,
    cell_of: Ints,
    lower: Floats,
    upper: Floats,
    entries: Ints,
    rivals: Ints,
    number: int,
    k: int,
    flat: bool,
) -> Ranks:
    line = np.repeat(np.arange(len(entries)), rivals)
    place = np.arange(len(line)) - np.repeat(np.cumsum(rivals) - rivals, rivals)
    y = entries[line]
    j = cells.start[cell_of[y]] + place
    other = j != y
    line, y, j = line[other], y[other], j[other]

    first = 1 + cells.ahead[cell_of[entries]]
    # Most pairs never meet in their cell; those that may are looked at below.
    over = lower[j] > upper[y]
    first += np.bincount(line[over], minlength=len(entries))
    zero = first.copy()
    meet = ~over & (upper[j] >= lower[y])
    line, y, j = line[meet], y[meet], j[meet]
    low, high = cells.low[cell_of[y]], cells.high[cell_of[y]]
    who, phi, change = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0, np.int64)]
    # While both documents are under way, there is one crossing at most and no middle piece. One at rest has a score
    # that stays as it is.
    running = np.minimum(cells.stop[y], cells.stop[j]) >= high
    resting = ~running & (cells.stop[j] == 0)
    kinds = (
        (running, _breaks_running, _ahead_running),
        (resting, _breaks_resting, _ahead_resting),
        (~(running | resting), _breaks, _ahead),
    )
    for kind, breaks_of, ahead_of in kinds:
        some = np.flatnonzero(kind)
        if len(some) == 0:
            continue
        curve_y = cells.score[y[some]], cells.slope[y[some]], cells.stop[y[some]]
        curve_j = cells.score[j[some]], cells.slope[j[some]], cells.stop[j[some]]
        breaks = breaks_of(curve_j, curve_y, low[some], high[some])
        state = np.full(len(some), -1, np.int8)
        for left, right in pairwise(breaks):
            # Many pieces have no width.
            wide = np.flatnonzero(right > left)
            before, at = state[wide], left[wide]
            of_j, of_y = _some(curve_j, wide), _some(curve_y, wide)
            ahead = ahead_of(of_j, of_y, (at + right[wide]) / 2).astype(np.int8)
            turn = np.flatnonzero((before >= 0) & (ahead != before))
            who.append(line[some[wide[turn]]])
            phi.append(at[turn])
            change.append((ahead[turn] - before[turn]).astype(np.int64))
            below = np.flatnonzero((before == 0) & (ahead == 0))
            below = below[ahead_of(_some(of_j, below), _some(of_y, below), at[below])]
            who.append(line[some[wide[below]]])
            phi.append(at[below])
            change.append(np.zeros(len(below), np.int64))
            start = before < 0
            first += np.bincount(line[some[wide[start]]], ahead[start], minlength=len(entries)).astype(np.int64)
            state[wide] = ahead
        touching = np.flatnonzero(low[some] == 0)
        ahead_at_zero = curve_j[0][touching] - curve_y[0][touching] >= -TIE
        zero += np.bincount(line[some[touching]], ahead_at_zero, minlength=len(entries)).astype(np.int64)

    entry, angle, step = np.concatenate(who), np.concatenate(phi), np.concatenate(change)
    # At one angle ranks first get worse, then better: a rank never passes through zero.
    order = by_angle(angle, step)
    entry, angle, step = entry[order], angle[order], step[order]
    order = sorted_places(entry)
    running_sum = np.cumsum(step[order])
    starts = np.searchsorted(entry[order], np.arange(len(entries)))
    offset = np.concatenate([[0], running_sum])[starts]
    after = first[entry] - offset[entry]
    after[order] += running_sum
    last = first + np.bincount(entry, step, minlength=len(entries)).astype(np.int64)
    better = np.minimum(after, after - step)
    near = (better == k if flat else better <= k) & (step != 0)
    ties = order[step[order] == 0]
    ties = ties[after[ties] <= k]
    if flat:
        # Those that tie at once may take the last places together.
        ties = ties[after[ties] + _together(entry[ties], angle[ties]) > k]
    return Ranks(
        zero,
        first,
        last,
        entry[near] + number,
        angle[near],
        (after - step)[near],
        after[near],
        angle[ties],
    )


def _together(entry: Ints, angle: Floats) -> Ints:
    """How many events of the same entry there are at the angle of each, given by entry and then by angle."""
    new = begins(entry) | (np.diff(angle, prepend=np.inf) > SAME_ANGLE)
    group = np.cumsum(new) - 1
    count: Ints = np.bincount(group)[group]
    return count


def by_angle(angle: Floats, step: Ints) -> Ints:
    """In the order of the angles; at one angle steps up (+1) come first, steps down (-1) last."""
    up_first = sorted_places(1 - step)
    return up_first[sorted_values(angle[up_first])]


Curve3 = tuple[Floats, Floats, Floats]


def _some(curve: Curve3, which: Ints) -> Curve3:
    return curve[0][which], curve[1][which], curve[2][which]


def _ahead(j: Curve3, y: Curve3, phi: Floats) -> npt.NDArray[np.bool_]:
    lead: npt.NDArray[np.bool_] = height(*j, phi) - height(*y, phi) >= -TIE
    return lead


def _ahead_running(j: Curve3, y: Curve3, phi: Floats) -> npt.NDArray[np.bool_]:
    """The same for documents that are both under way: one cosine does for both."""
    lead: npt.NDArray[np.bool_] = (j[0] - y[0]) * np.cos(phi) + (j[1] - y[1]) * np.sin(phi) >= -TIE
    return lead


def _ahead_resting(j: Curve3, y: Curve3, phi: Floats) -> npt.NDArray[np.bool_]:
    """The same where j rests."""
    lead: npt.NDArray[np.bool_] = j[0] - height(*y, phi) >= -TIE
    return lead


def _breaks_running(j: Curve3, y: Curve3, low: Floats, high: Floats) -> list[Floats]:
    """Breakpoints of f_j - f_y = A cos phi + B sin phi on [low, high]: its one root, clipped."""
    root = np.arctan2(y[0] - j[0], j[1] - y[1])
    root = np.where(root < 0, root + np.pi, root)
    return [low, np.clip(root, low, high), high]


def _breaks(j: Curve3, y: Curve3, low: Floats, high: Floats) -> list[Floats]:
    """Breakpoints in general: both under way, then one of them stopped (two roots), then both."""
    one = np.clip(np.minimum(j[2], y[2]), low, high)
    two = np.clip(np.maximum(j[2], y[2]), low, high)
    both = _breaks_running(j, y, low, one)[1]

    j_goes_on = j[2] > y[2]
    along = np.where(j_goes_on, j[0], y[0]), np.where(j_goes_on, j[1], y[1])
    stopped = np.where(j_goes_on, height(*y, y[2]), height(*j, j[2]))
    return [low, both, one, *_meetings(*along, stopped, one, two), two, high]


def _breaks_resting(j: Curve3, y: Curve3, low: Floats, high: Floats) -> list[Floats]:
    """Breakpoints where j rests: y under way (two roots), then stopped."""
    stops = np.clip(y[2], low, high)
    return [low, *_meetings(y[0], y[1], j[0], low, stops), stops, high]


def _meetings(score: Floats, slope: Floats, level: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Where one who is under way from ``low`` to ``high`` meets a level, clipped.

    A cos phi + B sin phi = R cos(phi - psi) meets a constant c at psi +- arccos(c / R), if |c| <= R.
    """
    radius = np.hypot(score, slope)
    reach = np.sqrt(np.maximum(0.0, (radius - level) * (radius + level)))
    half = np.arctan2(reach, level)
    psi = np.arctan2(slope, score)
    roots = [np.clip(np.where(root < 0, root + 2 * np.pi, root), low, high) for root in (psi - half, psi + half)]
    return np.minimum(*roots), np.maximum(*roots)
