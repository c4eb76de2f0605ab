"""Straight rays in lines with one label: the leaves they need, without cutting."""

from __future__ import annotations

import numpy as np

from nudgevec.arithmetic.rows import Ints
from nudgevec.arithmetic.sorting import sorted_places
from nudgevec.cut.crossing import crossing
from nudgevec.cut.cutting import Leaf
from nudgevec.cut.lines import Bars
from nudgevec.cut.listed import Begun, Listed
from nudgevec.cut.overtaking import Rays, overtaking

# Between angles that are no further apart, there is no room for several cells.
_NARROW = 1e-6


def ray_leaves(begun: Begun, listed: Listed, k: int, *, flat: bool) -> list[Leaf]:
    """What matters of documents listed in such lines. With ``flat``, only where a label gets into the top k or out."""
    line, column, curves, at, ahead = listed
    label = begun.first_label
    of_label = begun.labelled.some(label)
    ends = (values[at].astype(np.float64) for values in (curves.at_low, curves.at_high, curves.slack))
    rays = Rays(line, *ends).beside(of_label)
    kept, ahead = overtaking(rays, ahead, k)
    closer = flat & (begun.bars.high - begun.bars.low > _NARROW)[line[kept]]
    whole, kept = kept[~closer], kept[closer]
    leaves = _crossing(begun.bars, rays.some(kept), column[kept], ahead, begun.label[label], k)
    return [*leaves, begun.leaf(line[whole], column[whole], ahead)]


def _crossing(bars: Bars, rays: Rays, column: Ints, ahead: Ints, label: Ints, k: int) -> list[Leaf]:
    """Where the labels of some lines, given as columns, get into the top k or out of it."""
    own = column == label[rays.line]
    if not own.any():
        return []
    lines = rays.line[own]
    others = np.flatnonzero(~own & np.isin(rays.line, lines))
    found = crossing(rays.some(others), ahead, lines, k)
    inside, unsure = (stretches.as_angles(bars.low, bars.high) for stretches in (found.inside, found.open))
    nobody = np.zeros(len(inside.line), np.int64)
    # Each stretch has its label, and the documents that matter there.
    number = np.concatenate([np.arange(len(unsure.line)), found.number])
    columns = np.concatenate([label[unsure.line], column[others[found.document]]])
    order = sorted_places(number)
    at = number[order]
    return [
        Leaf(inside.line, label[inside.line], inside.begin, inside.end, nobody),
        Leaf(unsure.line[at], columns[order], unsure.begin[at], unsure.end[at], found.ahead[at]),
    ]
