"""The engine of the base install: float32 products by NumPy's BLAS, one comparison per score."""

from __future__ import annotations

import numpy as np

from nudgevec.corpus import Floats
from nudgevec.engines import Survivors
from nudgevec.tiles import Tile

# Scores of one tile: 2 million float32, 8 MB.
_TILE_SCORES = 1 << 21
_QUERIES = 2048


class NumpyEngine:
    """float32 on the CPU."""

    name = "numpy"

    def sieve(self, queries: Floats, k: int) -> NumpySieve:
        return NumpySieve(queries, k)


class NumpySieve:
    """Filters with float32 products, documents by rows and queries by columns."""

    def __init__(self, queries: Floats, k: int) -> None:
        self.k = k
        self.queries = np.ascontiguousarray(queries.T, dtype=np.float32)
        self.width = max(k, 256, _TILE_SCORES // min(len(queries), _QUERIES))

    def feed(self, tile: Tile, floor: Floats) -> list[Survivors]:
        found = []
        for begin in range(0, len(floor), _QUERIES):
            some = slice(begin, begin + _QUERIES)
            scores = tile.single @ self.queries[:, some]
            level = floor[some]
            if len(scores) >= self.k and np.isneginf(level).any():
                # Nothing to compare with yet: the k-th best of this tile is as good a floor.
                best = np.partition(scores.T, len(scores) - self.k, axis=1)[:, len(scores) - self.k]
                level = np.maximum(level, best - tile.margin)
            bar = np.nextafter((level - tile.margin).astype(np.float32), np.float32(-np.inf))
            place, query = np.divmod(np.flatnonzero(scores >= bar), scores.shape[1])
            found.append(Survivors(tile, query + begin, place))
        return found

    def flush(self) -> list[Survivors]:
        return []
