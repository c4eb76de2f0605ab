"""The engine for PyTorch on the CPU, where the hardware multiplies numbers of 8 or 16 bits.

They are precise to a part in a hundred or two, so the filter lets a few more documents through; what it lets through
is scored again in float64 like everything else.
"""

from __future__ import annotations

from nudgevec.columns import Columns
from nudgevec.engines.numpy_engine import NumpyEngine
from nudgevec.engines.torch_meeting import TorchMeeting
from nudgevec.engines.torch_sieve import TorchSieve
from nudgevec.rows import Floats


class TorchEngine(NumpyEngine):
    """8 and 16 bits on the CPU."""

    name = "torch"

    def sieve(self, queries: Floats, k: int) -> TorchSieve:
        return TorchSieve(queries, k, self.scratch)

    def meeting(self, columns: Columns) -> TorchMeeting:
        return TorchMeeting(columns, self.scratch)
