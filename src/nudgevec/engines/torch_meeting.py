"""Moving documents on the CPU with PyTorch: bfloat16 products where the hardware has them."""

from __future__ import annotations

import numpy as np

from nudgevec.columns import Columns
from nudgevec.engines.base import Met, crowded, handfuls
from nudgevec.engines.bfloat16 import BFLOAT16_ROUNDING, Bits, as_bits, as_floats, in_bfloat16, rounded_up
from nudgevec.engines.pytorch import import_torch, pair_products
from nudgevec.lines import Bars, Levels, Mask, kth_largest
from nudgevec.parallel import everywhere
from nudgevec.rows import Floats, Ints
from nudgevec.scratch import Scratch
from nudgevec.sorting import sorted_places
from nudgevec.tiles import UNIT_ROUNDOFF, Singles


class TorchMeeting:
    """Filters moving documents with a bfloat16 product for each end; what is left is scored in float32.

    A product comes out as what the score is at most: the error of q . x, at most |q - q'| |x'| + |x - x'| for the
    rounding of both and a little for adding up, is itself an inner product, (|q - q'|, 1) . (|x'|, |x - x'| + ...), and
    two more dimensions do the adding. Documents that turn are multiplied by their bulge beforehand. Rounding the
    result keeps the order, so it is compared with the rounded bar, bit by bit: positive numbers in bfloat16 sort like
    their bits, negative ones stay below all of them, and levels are positive or none.
    """

    def __init__(self, columns: Columns, scratch: Scratch) -> None:
        self.torch = torch = import_torch()
        self.columns = columns
        self.scratch = scratch
        count, _, dim = columns.ends.shape
        self.rows = np.empty((2, count, dim + 2), np.int16)
        # Of each document the longer end, and what its products may be off by without the rounding of the query.
        self.length, self.off = np.zeros((2, count), np.float32)
        adding = np.float32(2 * (dim + 64) * UNIT_ROUNDOFF)

        def fill(part: slice) -> None:
            for rows, end in zip(self.rows, (columns.first, columns.last), strict=True):
                exact = end[part] * columns.bulge[part, None]
                coarse = torch.from_numpy(exact).to(torch.bfloat16)
                floats = coarse.float().numpy()
                length = _at_most_long(floats)
                exact -= floats
                off = _at_most_long(exact)
                off += columns.bulge[part] * columns.slack[part] + adding * length
                as_floats(rows)[part, :dim] = coarse
                rows[part, dim], rows[part, dim + 1] = rounded_up(length), rounded_up(off)
                self.length[part] = np.maximum(self.length[part], length)
                self.off[part] = np.maximum(self.off[part], off)

        everywhere(fill, count)

    def among(self, queries: Floats, bars: Bars, k: int) -> Met:
        (first, last), lost = self._products(queries)
        shape = first.shape
        margin = np.float32(2 * (1 + 4 * BFLOAT16_ROUNDING)) * (np.float32(1.01 * lost) * self.length + self.off)
        found = np.concatenate(
            [
                self._found(first[lines], last[lines], bars.way.at(lines), margin, k) + lines.start * shape[1]
                for lines in handfuls(*shape)
            ]
        )
        query, column = np.divmod(found, shape[1])
        low, high = (self._at_most(height.ravel()[found], column) for height in (first, last))
        may = self.columns.matter(query, column, low, high, bars)
        query, column = query[may], column[may]
        return Met(query, column, *self._scores(queries, query, column))

    def _products(self, queries: Floats) -> tuple[list[Bits], float]:
        """What scores are at most, at both ends, and what the queries are off by at most."""
        dim = queries.shape[1]
        asked = np.empty((len(queries), dim + 2), np.int16)
        lost = in_bfloat16(queries, as_floats(asked)[:, :dim])
        asked[:, dim], asked[:, dim + 1] = rounded_up(lost), rounded_up(np.ones(1))
        heights = [self.scratch.room(name, (len(asked), len(self.off)), np.int16) for name in ("scores", "last")]
        for height, rows in zip(heights, self.rows, strict=True):
            self.torch.mm(as_floats(asked), as_floats(rows).T, out=as_floats(height))
        return heights, float(lost.max(initial=0.0))

    def _found(self, first: Bits, last: Bits, level: Levels, margin: Singles, k: int) -> Ints:
        """The places in a table of queries and columns where one may come above the level."""
        over = self._over(first, last, level, self.scratch.room("over", first.shape, np.bool_))
        crowd = crowded(over, k)
        if len(crowd):
            ends = first[crowd], last[crowd]
            level = level.at(crowd).raised(self._reached(*ends, margin, k))
            over[crowd] = self._over(*ends, level, np.empty(ends[0].shape, np.bool_))
        found: Ints = np.flatnonzero(over)
        return found

    def _over(self, first: Bits, last: Bits, level: Levels, over: Mask) -> Mask:
        """Where a column may come above the level."""
        np.greater_equal(first, as_bits(level.low)[:, None], out=over)
        some = self.scratch.room("some", first.shape, np.bool_)
        over |= np.greater_equal(last, as_bits(level.high)[:, None], out=some)
        return over

    def _reached(self, first: Bits, last: Bits, margin: Singles, k: int) -> Singles:
        """What k columns never fall below, or -inf where that is not positive.

        A product F holds a margin m that itself may be needed in full, so a score is at least F (1 - u) - 2m over the
        bulge, with u for a rounding. ``margin`` is 2m (1 + 4u): (F - margin) over the bulge is rounded twice on the
        way, and (1 - 4u) of it is less.
        """
        bound: Bits = self.scratch.room("bound", first.shape, np.int16)
        np.minimum(first, last, out=bound)  # of two negative numbers the wrong one, which is negative too
        floats = as_floats(bound).sub_(as_floats(rounded_up(margin)))
        if self.columns.turns:
            floats.div_(as_floats(rounded_up(self.columns.bulge)))
        reached = _kth_largest(bound, k) * np.float32(1 - 4 * BFLOAT16_ROUNDING)
        return np.where(reached > 0, reached, np.float32(-np.inf))

    def _scores(self, queries: Floats, query: Ints, column: Ints) -> tuple[Singles, Singles]:
        """Scores of pairs at both ends. Made in the order of the documents, so that each is read once: there are fewer
        queries, which stay in the cache."""
        ends = self.columns.ends.reshape(2 * len(self.columns), queries.shape[1])
        both = np.concatenate([2 * column, 2 * column + 1])
        order = sorted_places(both)
        scores = np.empty(len(both), np.float32)
        scores[order] = pair_products(ends, both[order], queries.astype(np.float32), np.tile(query, 2)[order])
        return scores[: len(column)], scores[len(column) :]

    def _at_most(self, height: Bits, column: Ints) -> Floats:
        """What scores are at most, given their products."""
        product: Floats = as_floats(height).double().numpy()
        return (product + np.abs(product) * BFLOAT16_ROUNDING) / self.columns.bulge[column]


def _at_most_long(rows: Singles) -> Singles:
    """What rows are no longer than."""
    length: Singles = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return length * np.float32(1.001 + rows.shape[1] * UNIT_ROUNDOFF)


def _kth_largest(lower: Bits, k: int) -> Singles:
    """As ``lines.kth_largest``. Only positive heights are right, and no others are needed."""
    queries, columns = lower.shape
    stretches = max(64, 8 * k)
    length = columns // stretches
    if length > 1:
        lower = lower[:, : stretches * length].reshape(queries, length, stretches).max(axis=1)
    return kth_largest(as_floats(lower).float().numpy(), np.full(queries, k))
