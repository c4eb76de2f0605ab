"""What passes from step to step where moving documents are looked at: queries begun with, and documents listed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.cutting import Leaf
from nudgevec.known import Known
from nudgevec.lines import Bars, Curves, Mask
from nudgevec.rows import Ints


class Begun(NamedTuple):
    """What is known of a group of queries, a line each, before looking at the moving documents: their labels, as
    columns and curves, what documents have to come above, and the still documents that may matter as (line, place) with
    their curves."""

    group: slice
    known: Known
    bars: Bars
    label: Ints
    labelled: Curves
    alive: Mask
    line: Ints
    place: Ints
    rests: Curves

    @property
    def alone(self) -> Mask:
        """The lines with one label that may be in the top k."""
        only: Mask = self.alive.sum(axis=1) == 1
        return only

    @property
    def first_label(self) -> tuple[Ints, Ints]:
        """Where each line has its first label that may be in the top k."""
        return np.arange(len(self.alive)), np.argmax(self.alive, axis=1)

    def leaf(self, line: Ints, column: Ints, ahead: Ints) -> Leaf:
        """Documents in whole lines, of which so many more are ahead."""
        return Leaf(line, column, self.bars.low[line], self.bars.high[line], ahead[line])


class Listed(NamedTuple):
    """Documents that may matter in a line, sorted by line, and where their curves are."""

    line: Ints
    column: Ints
    curves: Curves
    at: Ints

    def some(self, which: Ints) -> Listed:
        return Listed(self.line[which], self.column[which], self.curves, self.at[which])
