"""The sweep: from cells to the exact curve of a rank metric over all steps.

The rank of a labelled document y at angle phi is one plus the number of documents ahead of it, and
``f_j - f_y`` changes sign at a handful of angles that have closed forms. Every such crossing moves one
rank by one. Adding up what the crossings of all queries do to the metric gives a step function that is
exact for all angles at once; nothing is sampled.

Metric values are added as integers in units of ``Steps.unit``, so that sums do not depend on their order and
equal plateaus compare equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nudgevec.arithmetic.parallel import ordered
from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import begins, distinct, sorted_places
from nudgevec.cut.cells import Cells
from nudgevec.cut.cutter import Cutter
from nudgevec.labels import Labels
from nudgevec.metrics import Metric
from nudgevec.sweep.ranks import SAME_ANGLE, Ranks, by_angle, rank_events


@dataclass(frozen=True)
class Steps:
    """The metric of every query as a step function of the angle, all queries in one list.

    Query ``query[e]`` gains ``delta[e] * unit`` at angle ``phi[e]``, sorted by angle. ``crossings`` are the angles of
    crossings alone, and those where a label is tied for an instant. ``at_zero`` is each query's value at angle zero
    itself, where ties of documents that are about to part still hold.
    """

    phi: Floats
    query: Ints
    delta: Ints
    crossings: Floats
    at_zero: Ints
    unit: float

    def totals(self) -> tuple[Floats, Ints]:
        """Plateaus of the sum over queries: their left ends, and their values in units."""
        phi = np.append(0.0, self.phi)
        first = np.flatnonzero(np.append(True, np.diff(phi) > SAME_ANGLE))
        phi, first = phi[first], np.maximum(first - 1, 0)
        running = np.concatenate([[0], np.cumsum(self.delta)])
        value = running[np.append(first[1:], len(self.delta))]
        changes = np.append(True, np.diff(value) != 0)
        return phi[changes], value[changes]

    def per_query(self, phi: float) -> Floats:
        """Every query's metric at an angle inside a plateau."""
        before = self.phi < phi
        # Each query's total stays below 2^53 units, so float64 sums of integers are exact here.
        gained = self.delta[before].astype(np.float64)
        return np.multiply(np.bincount(self.query[before], gained, minlength=len(self.at_zero)), self.unit)


def sweep(cutter: Cutter, labels: Labels, metric: Metric, end: float) -> Steps:
    """Walk through all crossings of all cells, up to the angle ``end``. ``labels`` are the relevant ones."""
    bits = 62 - max(10, int(labels.queries).bit_length())
    tables = _Values(metric, labels, bits)
    at_zero = np.zeros(labels.queries, np.int64)

    def walk(group: Callable[[], Cells]) -> tuple[Floats, Ints, Ints, Floats]:
        batch = group()
        entries, ranks = rank_events(batch, metric.k, flat=metric.flat)
        tables.add_at_zero(at_zero, batch, entries, ranks)
        opening, crossings, closing = tables.steps(batch, entries, ranks)
        gains = _lasting(*(np.concatenate(each) for each in zip(opening, closing, strict=True))), crossings
        phi, query, delta = (np.concatenate(each) for each in zip(*gains, strict=True))
        counts = (phi < end) & (delta != 0)
        return phi[counts], query[counts], delta[counts], np.concatenate([crossings[0], ranks.touches])

    nothing = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    parts = zip(nothing, *ordered(walk, cutter.groups(), cutter.threads), strict=True)
    angle, query, delta, crossings = (np.concatenate(part) for part in parts)
    # Most of them come sorted, group by group.
    order = np.argsort(angle, kind="stable")
    return Steps(angle[order], query[order], delta[order], distinct(crossings), at_zero, 2.0**-bits)


Gains = tuple[Floats, Ints, Ints]
"""(phi, query, delta in units), flat."""


def _lasting(phi: Floats, query: Ints, delta: Ints) -> Gains:
    """Gains at the ends of cells, without those that cancel where two cells of a query meet: where angles were cut must
    not show."""
    order = np.lexsort((query, phi))
    phi, query = phi[order], query[order]
    first = np.flatnonzero(begins(phi) | begins(query))
    gained = np.add.reduceat(delta[order], first) if len(first) else delta[:0]
    lasts = np.flatnonzero(gained)
    return phi[first[lasts]], query[first[lasts]], gained[lasts]


class _Values:
    """What ranks are worth, in integer units, and what rank events do to the metric."""

    def __init__(self, metric: Metric, labels: Labels, bits: int) -> None:
        self.metric = metric
        self.share = metric.shares(labels.query, labels.weight)
        self.discount = metric.discount()
        self.scale = 2.0**bits

    def worth(self, label: Ints, rank: Ints) -> Ints:
        value = self.share[label] * self.discount[np.minimum(rank, self.metric.k + 1)]
        return np.rint(value * self.scale).astype(np.int64)

    def add_at_zero(self, at_zero: Ints, cells: Cells, entries: Ints, ranks: Ranks) -> None:
        cell = np.searchsorted(cells.start, entries, side="right") - 1
        starts = cells.low[cell] == 0
        add = np.maximum if self.metric.best_only else np.add
        add.at(at_zero, cells.query[cell[starts]], self.worth(cells.label[entries[starts]], ranks.at_zero[starts]))

    def steps(self, cells: Cells, entries: Ints, ranks: Ranks) -> tuple[Gains, Gains, Gains]:
        """A cell's value appears where it begins, changes at crossings, and goes where it ends.

        Neighbouring cells agree where they meet, so there the two cancel.
        """
        cell = np.searchsorted(cells.start, entries, side="right") - 1
        query = cells.query[cell]
        if self.metric.best_only:
            return self._steps_of_best(cells, cell, ranks)
        label = cells.label[entries]
        moved = ranks.entry
        delta = self.worth(label[moved], ranks.after) - self.worth(label[moved], ranks.before)
        counts = delta != 0
        return (
            (cells.low[cell], query, self.worth(label, ranks.first)),
            (ranks.phi[counts], query[moved[counts]], delta[counts]),
            (cells.high[cell], query, -self.worth(label, ranks.last)),
        )

    def _steps_of_best(self, cells: Cells, cell: Ints, ranks: Ranks) -> tuple[Gains, Gains, Gains]:
        """Metrics of the best rank, through thresholds: is any label of the cell within the first r?

        With w_r = v(r) - v(r + 1) the value of a best rank b is the sum of w_r over r >= b, and a rank
        that moves by one crosses exactly one threshold, so this is no more work than the sum.
        """
        # Where all ranks are worth the same, the last threshold is the only one.
        k, lower = (1, self.metric.k - 1) if self.metric.flat else (self.metric.k, 0)
        level = np.rint(self.discount[lower:] * self.scale).astype(np.int64)
        weight = level[1:-1] - level[2:]  # w_1 ... w_k
        first = np.maximum(ranks.first - lower, 1)
        within = np.zeros((len(cells.query), k), np.int64)
        np.add.at(within, (cell[first <= k], first[first <= k] - 1), 1)
        within = np.cumsum(within, axis=1)
        opening = (within > 0) @ weight

        where = cell[ranks.entry]
        threshold = np.minimum(ranks.before, ranks.after) - lower - 1
        step = ranks.before - ranks.after  # +1: one more label within the threshold
        key = where * k + threshold
        order = by_angle(ranks.phi, step)
        order = order[sorted_places(key[order])]
        key, step, phi = key[order], step[order], ranks.phi[order]
        running = np.cumsum(step)
        begins = np.searchsorted(key, key)
        after = within.ravel()[key] + running - np.concatenate([[0], running])[begins]
        flips = (after > 0) != (after - step > 0)
        delta = np.where(flips, np.sign(step), 0) * weight[key % k]
        of_cell = key // k
        closing = opening.copy()
        np.add.at(closing, of_cell, delta)
        # Where one label takes another's place nothing changes, but at that very angle both are tied
        # and the value dips: such crossings stay in the list, with a delta of zero.
        counts = weight[key % k] != 0
        return (
            (cells.low, cells.query, opening),
            (phi[counts], cells.query[of_cell[counts]], delta[counts]),
            (cells.high, cells.query, -closing),
        )
