"""The engine for PyTorch on the CPU, where the hardware multiplies integers of 8 bits.

They are precise to a part in a hundred or two, so the filter lets a few more documents through; what it lets through
is scored again in float64 like everything else.
"""

from __future__ import annotations

from nudgevec.arithmetic.parallel import meanwhile, single_threaded
from nudgevec.arithmetic.rows import Floats
from nudgevec.cut.columns import Columns
from nudgevec.engines.base import Meeting
from nudgevec.engines.integers import integers_fit
from nudgevec.engines.numpy_engine import CpuSieve, NumpyEngine
from nudgevec.engines.pytorch import multiplies_integers
from nudgevec.engines.torch_meeting import TorchMeeting
from nudgevec.engines.torch_sieve import TorchSieve


class TorchEngine(NumpyEngine):
    """8 bits on the CPU, and float32 where these do not fit."""

    name = "torch"

    def __init__(self) -> None:
        super().__init__()
        # PyTorch makes ready for the first of these products, which takes a while.
        self.multiplies_integers = meanwhile(_multiplies_integers)

    def sieve(self, queries: Floats, k: int) -> CpuSieve:
        fits = self._integers_fit(queries.shape[1])
        return TorchSieve(queries, k, self.scratch) if fits else super().sieve(queries, k)

    def meeting(self, columns: Columns, queries: Floats) -> Meeting:
        fits = len(columns) > 0 and self._integers_fit(queries.shape[1])
        return TorchMeeting(columns, queries, self.scratch) if fits else super().meeting(columns, queries)

    def _integers_fit(self, dim: int) -> bool:
        return integers_fit(dim) and self.multiplies_integers()


def _multiplies_integers() -> bool:
    with single_threaded():
        return multiplies_integers()
