"""Where one score curve gets ahead of another, in closed form.

A document whose score is within ``TIE`` below that of a label counts as ahead of it (the paper asks for a strict
inequality). "j is ahead of y" means f_j - f_y + TIE >= 0, at every angle, and a crossing is a root of that function on
the whole path of both documents; so neither depends on how the range of angles was bisected. Under NUDGE-M scores are
divided by scale / cos(phi) = hypot(scale, gamma): there a tie is relative to that length.
"""

from __future__ import annotations

import math

from nudgevec.core.compiling import compiled

# Scores are inner products of vectors of about unit length in float64: above their rounding errors, and far below any
# difference that float32 vectors can express.
TIE = 1e-12
# The most pieces that ``divide`` divides an interval into: three for each of three segments.
PIECES = 9


@compiled()
def divide(problem, curves, j, y, span, begins, is_ahead):
    """Divide an interval into pieces in each of which j is ahead of y, or is not; return how many there are.

    There is at least one. ``begins[p]`` is the angle where piece p begins, within (low, high] for p > 0, and
    ``is_ahead[p]`` says whether j is ahead of y in it. On each of three segments the lead f_j - f_y + TIE is
    a cos(phi) + b sin(phi) + c: while both documents move, when one has stopped, when both have.
    """
    mover_j, mover_y = curves.mover[j], curves.mover[y]
    stop_j, stop_y = problem.stop[mover_j], problem.stop[mover_y]
    end_j = curves.s[j] * problem.cos_stop[mover_j] + curves.z[j] * problem.sin_stop[mover_j]
    end_y = curves.s[y] * problem.cos_stop[mover_y] + curves.z[y] * problem.sin_stop[mover_y]
    n = 0
    for segment in range(3):
        if segment == 0:
            left, right = 0.0, min(stop_j, stop_y)
            a, b, c = curves.s[j] - curves.s[y], curves.z[j] - curves.z[y], TIE
        elif segment == 1:
            left, right = min(stop_j, stop_y), max(stop_j, stop_y)
            if stop_j > stop_y:
                a, b, c = curves.s[j], curves.z[j], TIE - end_y
            else:
                a, b, c = -curves.s[y], -curves.z[y], TIE + end_j
        else:
            left, right = max(stop_j, stop_y), problem.last_stop
            a, b, c = 0.0, 0.0, TIE + end_j - end_y
        # The last segment includes the end of the range.
        if left > span.high or (right <= span.low and right < problem.last_stop) or left >= right:
            continue
        root_1, root_2 = _roots(a, b, c, left, right)
        for piece in range(3):
            begin = (left, root_1, root_2)[piece]
            end = (root_1, root_2, right)[piece]
            if begin >= end or end <= span.low or begin > span.high:
                continue
            middle = (begin + end) / 2
            begins[n] = begin
            is_ahead[n] = a * math.cos(middle) + b * math.sin(middle) + c >= 0
            n += 1
    return n


@compiled()
def _roots(a, b, c, left, right):
    """Return the roots of a cos(phi) + b sin(phi) + c, ascending and clipped to [left, right].

    It is r cos(phi - psi) + c with r = hypot(a, b) and psi = atan2(b, a).
    """
    r = math.hypot(a, b)
    if abs(c) > r or r == 0.0:
        return left, left
    psi, half = math.atan2(b, a), math.atan2(math.sqrt((r - c) * (r + c)), -c)
    one, two = psi - half, psi + half
    one = min(max(one + 2 * math.pi if one < 0 else one, left), right)
    two = min(max(two + 2 * math.pi if two < 0 else two, left), right)
    return min(one, two), max(one, two)
