"""What passes from step to step where moving documents are looked at: queries begun with, and documents listed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.rows import Ints, Mask
from nudgevec.arithmetic.sorting import sorted_within
from nudgevec.cut.cutting import Leaf
from nudgevec.cut.known import Known
from nudgevec.cut.lines import Bars, Curves
from nudgevec.cut.overtaking import Lone


class Begun(NamedTuple):
    """What is known of a group of queries, a line each, before looking at the moving documents: their labels, as
    columns and curves, what documents have to come above, and the still documents that may matter as (line, place) with
    their curves, and which of these are labels."""

    group: slice
    known: Known
    bars: Bars
    label: Ints
    labelled: Curves
    alive: Mask
    line: Ints
    place: Ints
    rests: Curves
    is_label: Mask

    @property
    def alone(self) -> Mask:
        """The lines with one label that may be in the top k."""
        only: Mask = self.alive.sum(axis=1) == 1
        return only

    @property
    def first_label(self) -> tuple[Ints, Ints]:
        """Where each line has its first label that may be in the top k."""
        return np.arange(len(self.alive)), np.argmax(self.alive, axis=1)

    @property
    def lone(self) -> Lone:
        """The lines with one label, for a filter."""
        return Lone.of(self.alone, self.labelled.some(self.first_label), self.line, self.rests)

    def leaf(self, line: Ints, column: Ints, ahead: Ints) -> Leaf:
        """Documents in whole lines, of which so many more are ahead."""
        return Leaf(line, column, self.bars.low[line], self.bars.high[line], ahead[line])


class Listed(NamedTuple):
    """Documents that may matter in a line, sorted by line, and where their curves are; and for each line, how many more
    are ahead of all labels, or might as well be."""

    line: Ints
    column: Ints
    curves: Curves
    at: Ints
    ahead: Ints

    def some(self, which: Ints) -> Listed:
        return Listed(self.line[which], self.column[which], self.curves, self.at[which], self.ahead)


def as_good_as_ahead(begun: Begun, others: Ints, k: int) -> Mask:
    """Which of the still documents may be taken for ahead of all labels, where it is enough for these to be in the top
    k. ``others`` counts, for each line, the documents that move and those that are labels.

    Of m others, at most m - 1 are ahead of a label. So it is out of the top k only where more than k - m still
    documents are ahead of it, too; while any of the k - m best of these is not, it is in, and would be with all of them
    ahead.
    """
    best = k - others
    some = np.flatnonzero((best[begun.line] > 0) & ~begun.is_label)
    line, score, slack = begun.line[some], begun.rests.score[some], begun.rests.slack[some]
    order = sorted_within(line, -(score + slack).astype(np.float64))
    count = np.bincount(line, minlength=len(best))
    place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    # What the next best one may reach.
    limit = np.full(len(best), np.float32(-np.inf))
    following = order[place == best[line[order]]]
    limit[line[following]] = (score + slack)[following]
    ahead = np.zeros(len(begun.line), np.bool_)
    ahead[some] = score - slack > limit[line]
    return ahead
