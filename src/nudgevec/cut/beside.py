"""Turning documents beside the only label of their line: which of them are ever ahead of it.

Where vectors have much in common, all scores rise while documents turn, and one that is above the label at its highest
may be so only when the label is higher still. So curves are compared with the label's, not with a level.
"""

from __future__ import annotations

from nudgevec.arithmetic.numpy_or_torch import functions_for
from nudgevec.arithmetic.rows import Floats, Ints, Mask
from nudgevec.cut.lines import Curves
from nudgevec.motion import height, peak


def ever_ahead(first: Floats, last: Floats, stop: Floats, label: Curves, line: Ints) -> Mask:
    """Which documents may be ahead of the label of their line somewhere, given what scores at both ends are at most.

    While both are under way they differ by one sinusoid, over less than half its period: one that is behind at both
    ends of that is behind all the time. Then one of them has stopped. If that is the document, the label has to come
    down to it: a sinusoid is lowest at one of its ends, where it is positive at both. If it is the label, the document
    has to come up to it. Of NumPy or PyTorch.
    """
    xp = functions_for(first)
    score, slope, until = (xp.asarray(values, dtype=xp.float64)[line] for values in label[:3])
    room = label.slack[line]
    both = xp.minimum(stop, until)
    then = (first * xp.sin(stop - both) + last * xp.sin(both)) / xp.sin(stop)
    beside, end = height(score, slope, until, both) - room, label.at_high[line] - room
    ahead = (first >= score - room) | (then >= beside)
    comes_down = (last >= end) | (end < 0) | (beside < 0)
    comes_up = peak(then, last, stop - both) >= end
    mask: Mask = ahead | xp.where(stop < until, comes_down, comes_up)
    return mask
