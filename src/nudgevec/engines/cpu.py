"""The CPU: BLAS products and compiled loops."""

from __future__ import annotations

from nudgevec.arrays import Singles
from nudgevec.core.scan import top_k


class CpuEngine:
    """Runs on the CPU."""

    name = "cpu"
    top_k = staticmethod(top_k)

    def scores(self, queries: Singles, vectors: Singles) -> Singles:
        """Return the float32 inner products of all queries with all vectors."""
        product: Singles = queries @ vectors.T
        return product
