"""The CPU: BLAS products and compiled loops."""

from __future__ import annotations

from nudgevec.core.scan import scorer, top_k
from nudgevec.core.softmax import moments


class CpuEngine:
    """Runs on the CPU."""

    name = "cpu"
    top_k = staticmethod(top_k)
    scorer = staticmethod(scorer)
    moments = staticmethod(moments)
