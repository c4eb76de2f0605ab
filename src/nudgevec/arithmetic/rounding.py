"""What float32 products are off by at most: filters lower their thresholds by it, and so never miss a document."""

from __future__ import annotations

UNIT_ROUNDOFF = 2.0**-24


def error_of(dim: int) -> float:
    """A bound on the error of the float32 inner product of a unit query and a row, per unit of the row's length.

    With u = 2^-24 and rows x of d numbers: rounding q and x costs at most u|x| each; a float32 inner
    product in any order at most d u/(1 - d u) |x|; normalising by a float32 length (itself off by
    (d/2 + 2) u) at most (d/2 + 4) u |x|. Together below (1.5 d + 16) u |x| (1 + 1e-2) for every d up
    to 100,000.
    """
    return 1.01 * (1.5 * dim + 16) * UNIT_ROUNDOFF
