"""Numbers in bfloat16: 8 bits of precision, the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.engines.pytorch import import_torch
from nudgevec.parallel import slices
from nudgevec.rows import Floats
from nudgevec.tiles import Singles

Bits = npt.NDArray[np.int16]
"""Numbers in bfloat16, which NumPy does not know."""

# More than the relative error of rounding to bfloat16 (8 bits of precision, to nearest).
BFLOAT16_ROUNDING = 2.0**-8
# Queries rounded at a time: few enough to stay in the cache, and in memory that is used again.
_AT_A_TIME = 64


def in_bfloat16(queries: Floats, into: Any) -> Floats:
    """Put queries in bfloat16 into a tensor, and say how far each is off."""
    torch = import_torch()
    lost: Floats = np.empty(len(queries))
    for part in slices(len(queries), _AT_A_TIME):
        exact = torch.from_numpy(queries[part])
        into[part] = exact
        lost[part] = (exact - into[part].double()).norm(dim=1).numpy() * (1 + 1e-6)
    return lost


def as_floats(bits: Bits) -> Any:
    """The same memory as a tensor."""
    torch = import_torch()
    return torch.from_numpy(bits).view(torch.bfloat16)


def as_bits(bar: Singles) -> Bits:
    """Levels, rounded to bfloat16, to compare the bits of scores with: those of positive numbers sort like integers.

    A level that is not positive lets everything through: right, and slow for queries that fewer than k documents
    of the corpus agree with.
    """
    whole = bar.view(np.int32)
    # bfloat16 is the upper half of float32; what lies halfway goes to the even one.
    bits = (whole + 0x7FFF + ((whole >> 16) & 1)) >> 16
    return np.where(bar > 0, bits, np.iinfo(np.int16).min).astype(np.int16)


def rounded_up(values: Singles | Floats) -> Bits:
    """Positive numbers in bfloat16, the next one above each."""
    bits = (values.astype(np.float32).view(np.int32) + 0xFFFF) >> 16
    return bits.astype(np.int16)
