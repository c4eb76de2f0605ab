"""Cutting intervals of angles in two, until few documents are left in question in each.

Everything is decided on float32 scores with a proven bound on their error, so that an interval can only keep too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles
from nudgevec.arithmetic.tables import Target, entries, kth_largest
from nudgevec.cut.lines import Curves
from nudgevec.motion import Motion

# A cell is swept as it is when it holds at most this much work, in (label, document) pairs; one more
# label is counted in for scoring each document again.
_CELL_PAIRS = 64
_CELL_SPARE = 16
_CELL_DEPTH = 12
# Nor is it cut where its scores change, all together, by no more than so many times what they may be off by.
_IN_VAIN = 4
# Entries of a node that is cut off another: memory is needed for some of these and not for all lines there will be.
_NODE_ENTRIES = 1 << 18
# Intervals are cut a little aside of round angles: documents made of round numbers meet there, and where two labels
# change places at the very end of a cell nobody would notice.
_ASIDE = 0.0172839


class Leaf(NamedTuple):
    """Documents (query, column) with their intervals, and for each of those how many more are surely ahead."""

    query: Ints
    column: Ints
    low: Floats
    high: Floats
    ahead: Ints


class Node(NamedTuple):
    """Intervals of queries, one a line, and for each the documents still in question.

    Lines are padded. ``labelled`` are the curves of those documents that are labels and may be in the top k, ``label``
    their columns. ``ahead`` counts documents that are ahead of all those labels, here and in every part of the
    interval.

    Where scores of a line fall and rise together, what counts is how they do so beside a label: ``beside`` is the curve
    of one, for turning documents. Straight rays have been diminished by one.
    """

    depth: int
    query: Ints
    low: Floats
    high: Floats
    ahead: Ints
    column: Ints
    documents: Curves
    label: Ints
    labelled: Curves
    beside: Curves | None

    def bounds(self, curves: Curves, *, turns: bool) -> tuple[Singles, Singles]:
        """What curves cannot leave in the intervals of their lines."""
        if self.beside is None:
            return curves.bounds(self.low, self.high, turns=turns)
        return curves.bounds_beside(self.beside, self.low, self.high)


def cut(roots: Iterable[Node], motion: Motion, k: int, *, flat: bool) -> list[Leaf]:
    """Cut all angles into leaves.

    A document is in question where it can be in the top k and can meet a label that can be there too. A
    label that cannot be in the top k in an interval stays out of all its parts. With ``flat`` it does not matter where
    in the top k a label is: where the only one is surely there, nothing else is in question.
    """
    leaves: list[Leaf] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        lower, upper = node.bounds(node.documents, turns=motion.turns)
        bar = kth_largest(lower, k - node.ahead)
        alive, floor, ceiling = label_range(node.bounds(node.labelled, turns=motion.turns), bar)
        keep = (upper >= np.maximum(bar, floor)[:, None]) & (lower <= ceiling[:, None])
        alone = (alive.sum(axis=1) == 1) & flat
        if flat:
            inside = alone & _surely_inside(node, upper, alive, floor, k)
            keep[inside] = False
            if inside.any():
                leaves.append(_labels(node, alive, inside))
        node = node._replace(ahead=node.ahead + (lower > ceiling[:, None]).sum(axis=1))
        keep[~alive.any(axis=1) | (node.ahead >= k)] = False
        # Narrower intervals help where scores change more than they may be off by.
        change = np.subtract(upper, lower, out=np.zeros_like(upper), where=keep).sum(axis=1)
        vain = change <= _IN_VAIN * np.where(keep, node.documents.slack, np.float32(0)).sum(axis=1)
        count = keep.sum(axis=1)
        work = count * (alive.sum(axis=1) + 1)
        # The top k itself stays in question however narrow the interval, unless it is enough to be there.
        small = (work <= _CELL_PAIRS) | ((count <= 2 * k + _CELL_SPARE) & ~alone) | vain | (node.low >= motion.span)
        if node.depth >= _CELL_DEPTH:
            small[:] = True
        done, large = np.flatnonzero(small & (count > 0)), np.flatnonzero(~small)
        if len(done):
            leaves.append(_leaf(node, keep, done))
        if len(large):
            step = max(1, _NODE_ENTRIES // (2 * int(count[large].max())))
            if len(large) > step:
                large = large[np.argsort(count[large], kind="stable")]
            stack += [_halved(node, keep, alive, large[part], motion.span) for part in slices(len(large), step)]
    return leaves


def label_range(bounds: tuple[Singles, Singles], bar: Singles) -> tuple[Mask, Singles, Singles]:
    """Which labels of a line may be in the top k, and the range of their scores.

    A document below that range is never ahead of such a label, one above it always is.
    """
    lower, upper = bounds
    alive = (upper >= bar[:, None]) & (upper > -np.inf)
    floor = np.where(alive, lower, np.float32(np.inf)).min(axis=1, initial=np.inf)
    ceiling = np.where(alive, upper, np.float32(-np.inf)).max(axis=1, initial=-np.inf)
    return alive, floor, ceiling


def _surely_inside(node: Node, upper: Singles, alive: Mask, floor: Singles, k: int) -> Mask:
    """Where the first label of each line that may be in the top k is surely there: too few others can be ahead.

    Documents that were dropped because k are above them, here or in a larger interval, are no exception: where the
    label can be below one of those, it can be below the k, and they are counted.
    """
    own = np.take_along_axis(node.label, np.argmax(alive, axis=1)[:, None], axis=1)
    may = upper >= floor[:, None]
    listed = (may & (node.column == own)).any(axis=1)
    inside: Mask = listed & (node.ahead + may.sum(axis=1) <= k)
    return inside


def _labels(node: Node, alive: Mask, lines: Mask) -> Leaf:
    """The labels of some lines and nothing else."""
    line, place = entries(alive & lines[:, None])
    return Leaf(
        node.query[line], node.label[line, place], node.low[line], node.high[line], np.zeros(len(line), np.int64)
    )


def _leaf(node: Node, keep: Mask, lines: Ints) -> Leaf:
    """What is kept of some lines."""
    line, place = entries(keep[lines])
    line = lines[line]
    return Leaf(node.query[line], node.column[line, place], node.low[line], node.high[line], node.ahead[line])


def _halved(node: Node, keep: Mask, alive: Mask, lines: Ints, span: float) -> Node:
    """What is kept of some lines: the first halves of their intervals, then the second halves."""
    low, high = node.low[lines], node.high[lines]
    middle = low + (0.5 + _ASIDE) * (np.minimum(high, span) - low)
    twice = np.concatenate([lines, lines])
    target = Target.of(keep, twice)
    return Node(
        node.depth + 1,
        node.query[twice],
        np.concatenate([low, middle]),
        np.concatenate([middle, high]),
        node.ahead[twice],
        target.fill(node.column, 0),
        node.documents.packed(target).halved(middle),
        node.label[twice],
        node.labelled.where(alive, twice).halved(middle),
        None if node.beside is None else node.beside.some(twice).halved(middle),
    )
