"""The engine for PyTorch on the CPU: bfloat16 products where the hardware has them.

bfloat16 keeps 8 bits, so the filter lets a few more documents through; what it lets through is scored again in
float64 like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec import parallel
from nudgevec.corpus import Floats, Ints
from nudgevec.engines import Result, Survivors, kth_of_maxima
from nudgevec.engines.numpy_engine import CpuSieve, NumpyEngine, Scratch
from nudgevec.errors import MissingExtraError
from nudgevec.tiles import UNIT_ROUNDOFF, Tile, error_of

# Scores of one tile: 4 million bfloat16, 8 MB.
_TILE_SCORES = 1 << 22
_FIRST_SCORES = 1 << 23
# More than the relative error of rounding to bfloat16 (8 bits of precision, to nearest).
BFLOAT16_ROUNDING = 2.0**-8


def import_torch() -> Any:
    """PyTorch, or what to do where it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("the torch engine", "torch") from None
    return torch


class TorchEngine(NumpyEngine):
    """bfloat16 on the CPU."""

    name = "torch"

    def sieve(self, queries: Floats, k: int) -> TorchSieve:
        return TorchSieve(queries, k)


class _Coarse(NamedTuple):
    """A tile in bfloat16, and a bound on the error of each query's scores."""

    rows: Any
    margin: Floats


class TorchSieve(CpuSieve):
    """Filters with bfloat16 products, queries by rows and documents by columns.

    The error of a score, for a unit query q and a row x, is at most |q - q'| |x'| + |q| |x - x'| for the
    rounding of both (whose lengths are measured), 2 d u |q'| |x'| for adding up in float32, and the error of
    x itself. The result is rounded to bfloat16 once more, which keeps the order.
    """

    def __init__(self, queries: Floats, k: int) -> None:
        super().__init__(len(queries), _FIRST_SCORES, _TILE_SCORES)
        torch = import_torch()
        self.torch = torch
        self.k = k
        self.scratch = Scratch()
        exact = torch.from_numpy(queries)
        self.queries = exact.to(torch.bfloat16)
        self.lost = (exact - self.queries.double()).norm(dim=1).numpy() * (1 + 1e-6)

    def scan(self, tiles: Iterator[Tile], floor: Floats, finish: Callable[[Survivors], Result]) -> Iterator[Result]:
        threads = self.torch.get_num_threads()
        try:
            yield from super().scan(tiles, floor, finish)
        finally:
            self.torch.set_num_threads(threads)

    def prepared(self, tile: Tile) -> _Coarse:
        torch = self.torch
        if parallel.cores() > 1:
            torch.set_num_threads(1)
        rows, longest = tile.single()
        single = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
        coarse = single.to(torch.bfloat16)
        lost = float((single - coarse.float()).norm(dim=1).max()) * (1 + 1e-3)
        adding = (2 * rows.shape[1] + 16) * UNIT_ROUNDOFF + error_of(rows.shape[1])
        return _Coarse(coarse, self.lost * longest * 1.01 + lost + 1.02 * adding * longest + 1e-30)

    def over(self, prepared: _Coarse, floor: Floats, queries: slice) -> tuple[Ints, Ints]:
        torch = self.torch
        asked = self.queries[queries]
        bits = self.scratch.room("scores", (len(asked), len(prepared.rows)), np.int16)
        scores = torch.from_numpy(bits).view(torch.bfloat16)
        torch.mm(asked, prepared.rows.T, out=scores)
        margin = prepared.margin[queries]
        level = floor
        if np.isneginf(level).any():
            level = np.maximum(level, self._own_floor(scores) - margin)
        # Rounding keeps the order: a sum of at least the bar is rounded to at least the rounded bar.
        bar = np.nextafter((level - margin).astype(np.float32), np.float32(-np.inf))
        over = self.scratch.room("over", bits.shape, np.bool_)
        np.greater_equal(bits, _as_bits(torch.from_numpy(bar).to(torch.bfloat16))[:, None], out=over)
        query, number = np.divmod(np.flatnonzero(over), bits.shape[1])
        return query, number

    def _own_floor(self, scores: Any) -> Floats:
        """What k documents of the tile itself reach, for every query."""
        queries, documents = scores.shape
        if documents < self.k:
            return np.full(queries, -np.inf)
        length = max(1, min(32, documents // (4 * self.k)))
        stretches = scores[:, : documents // length * length].reshape(queries, -1, length)
        best = kth_of_maxima(stretches.amax(dim=2).float().numpy(), self.k).astype(np.float64)
        return best - np.abs(best) * BFLOAT16_ROUNDING


def _as_bits(bar: Any) -> npt.NDArray[np.int16]:
    """Levels to compare the bits of bfloat16 scores with: those of positive numbers sort like integers.

    A level that is not positive lets everything through: right, and slow for queries that fewer than k documents
    of the corpus agree with.
    """
    torch = import_torch()
    bits: npt.NDArray[np.int16] = torch.where(bar > 0, bar.view(torch.int16), torch.iinfo(torch.int16).min).numpy()
    return bits
