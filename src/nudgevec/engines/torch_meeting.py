"""Moving documents on the CPU with PyTorch: products of 8 bits tell where to look closer, float32 what to keep."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.parallel import everywhere, slices
from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles, some_rows
from nudgevec.arithmetic.scratch import Scratch
from nudgevec.arithmetic.sorting import sorted_places
from nudgevec.arithmetic.tables import all_true, kth_largest, split_up
from nudgevec.cut.columns import Columns, between
from nudgevec.cut.lines import Bars, Levels
from nudgevec.cut.overtaking import HANDFUL, Lone, Rays
from nudgevec.engines.base import Met, crowded
from nudgevec.engines.integers import Asked, Rounded, Whole, at_a_time, in_units, put_rounded, unit_for
from nudgevec.engines.numpy_engine import NumpyMeeting
from nudgevec.engines.pytorch import import_torch, pair_products

# Where more than this share of all pairs is left, 8 bits do not tell the scores apart.
_MOST_LEFT = 0.25


class End(NamedTuple):
    """All documents at one end of their way, and what they are no longer than there."""

    rounded: Rounded
    longest: float


class TorchMeeting:
    """Filters moving documents with a product of 8 bits for each end; what is left is scored in float32.

    Documents that turn are multiplied by their bulge beforehand. Where too much is left, products are float32 from then
    on.
    """

    def __init__(self, columns: Columns, queries: Floats, scratch: Scratch) -> None:
        self.columns, self.queries = columns, queries
        self.scratch = scratch
        self.closer = NumpyMeeting(columns, queries, scratch)
        self.tells_apart = True
        self.slack = float((columns.bulge * columns.slack).max())
        self.ends = [self._rounded(rows) for rows in (columns.first, columns.last)]

    def _rounded(self, rows: Singles) -> End:
        bulge = self.columns.bulge
        whole = np.empty(rows.shape, np.int8)
        largest, length, off = np.empty((3, len(rows)))

        def measure(part: slice) -> None:
            some = rows[part]
            largest[part] = np.maximum(some.max(axis=1), -some.min(axis=1)) * bulge[part]
            length[part] = np.sqrt(np.einsum("ij,ij->i", some, some)) * bulge[part]

        everywhere(measure, len(rows))
        unit = float(unit_for(1.001 * largest.max()))

        def fill(part: slice) -> None:
            some: Singles = self.scratch.room("bulged", rows[part].shape, np.float32)
            np.multiply(rows[part], bulge[part, None], out=some)
            off[part] = put_rounded(some, unit, whole[part], self.scratch)

        everywhere(fill, len(rows))
        return End(Rounded(import_torch().from_numpy(whole), unit, off.max()), 1.001 * length.max())

    def among(self, asked: Ints, bars: Bars, lone: Lone, k: int) -> Met:
        if not self.tells_apart:
            return self.closer.among(asked, bars, lone, k)
        queries = some_rows(self.queries, asked)
        rounded, found = Asked(queries), []
        for part in slices(len(self.columns), at_a_time(len(queries))):
            some = self._found(rounded, bars, part, k)
            if some is None:
                self.tells_apart = False
                return self.closer.among(asked, bars, lone, k)
            found.append(some)
        met = Met.joined(found)
        del found
        if not self.columns.turns and np.isfinite(lone.label.slack).any():
            met = met.where(self._worth_scoring(met, rounded, bars, lone, k))
        single = queries.astype(np.float32)
        ends = (pair_products(rows, met.column, single, met.query) for rows in self.columns.ends)
        return Met(met.query, met.column, *ends).where(sorted_places(met.query))

    def _worth_scoring(self, met: Met, asked: Asked, bars: Bars, lone: Lone, k: int) -> Ints:
        """Which straight rays may matter beside the only label of a line, too. Scores are the highest they may be."""
        angles, off = (bars.low, bars.high), [self._off(asked, end) for end in self.ends]
        off = [between(angle, slice(None), *off).astype(np.float32) for angle in angles]

        def rays(query: Ints, _: Ints, first: Singles, last: Singles) -> Rays:
            heights = (between(angle, query, first, last) for angle in angles)
            low, high = (height - lost[query] for height, lost in zip(heights, off, strict=True))
            return Rays(query, low, high, np.maximum(*off)[query])

        handfuls = (rays(*met.where(part)) for part in slices(len(met.query), HANDFUL))
        return np.flatnonzero(lone.worth_scoring(handfuls, len(met.query), k))

    def _found(self, asked: Asked, bars: Bars, part: slice, k: int) -> Met | None:
        """The queries and documents, some of the latter, that may matter to each other, in the order of the documents,
        with the highest their scores may be; None where too many may."""
        ends = [self._heights(asked, part, *each) for each in zip(("scores", "last"), self.ends, strict=True)]
        bulge = self.columns.bulge[part]
        over = self._over(ends, bars.way, self.scratch.room("over", ends[0].table.shape, np.bool_))
        crowd = crowded(over.T, k)
        if len(crowd):
            some = [each.at(crowd) for each in ends]
            # Rounded to float32 it may be a little higher.
            least = np.minimum(*(each.at_least() for each in some)).T / bulge * (1 - 1e-6)
            level = bars.way.at(crowd).raised(kth_largest(least.astype(np.float32), np.full(len(crowd), k)))
            over[:, crowd] = self._over(some, level, np.empty(some[0].table.shape, np.bool_))
        found = all_true(over)
        if len(found) > _MOST_LEFT * over.size:
            return None
        place, query = split_up(found, over.shape[1])
        first, last = (each.at_most(found, query) / bulge[place] for each in ends)
        met = Met(query, place + part.start, first, last)
        return met.where(np.flatnonzero(self.columns.matter(*met, bars)))

    def _heights(self, asked: Asked, part: slice, name: str, end: End) -> Heights:
        documents = end.rounded.part(part)
        every = slice(0, len(asked.unit))
        table = self.scratch.room(name, (len(documents.rows), every.stop), np.int32)
        asked.products(every, documents, table)
        return Heights(table, asked.unit * documents.unit, self._off(asked, end))

    def _off(self, asked: Asked, end: End) -> Floats:
        """What scores of each query are off by at most. A fiftieth more covers the rounding of the bound, and a
        millionth that of scores to float32."""
        return 1.02 * (asked.off(end.rounded, end.longest) + self.slack) + 1e-6 * end.longest

    def _over(self, ends: list[Heights], level: Levels, over: Mask) -> Mask:
        """Where a document may come above the level."""
        if self.columns.turns:
            # Bounds on a sinusoid are these where they are positive; what is not is left to those who look closer.
            low = np.where(level.low > 0, level.low, np.float32(-np.inf))
            level = Levels(low, low)
        some = self.scratch.room("some", over.shape, np.bool_)
        for end, bar, into in zip(ends, level, (over, some), strict=True):
            np.greater_equal(end.table, end.bar(bar), out=into)
        over |= some
        return over


class Heights(NamedTuple):
    """Products, a column for each query, the unit of each column, and what its scores are off by at most."""

    table: Whole
    unit: Floats
    off: Floats

    def at(self, queries: Ints) -> Heights:
        return Heights(self.table[:, queries], self.unit[queries], self.off[queries])

    def bar(self, level: Singles) -> Whole:
        """What products are no less than where scores may be at least these."""
        return in_units(level - self.off, self.unit)

    def at_least(self) -> Floats:
        return self.table * self.unit - self.off

    def at_most(self, places: Ints, query: Ints) -> Singles:
        """What some scores are at most, by their places in the table."""
        bound: Singles = self.table.ravel()[places].astype(np.float32)
        bound *= self.unit.astype(np.float32)[query]
        bound += self.off.astype(np.float32)[query]
        return bound
