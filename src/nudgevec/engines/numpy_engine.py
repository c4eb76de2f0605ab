"""The engine of the base install: float32 products by NumPy's BLAS, one comparison per score."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Floats
from nudgevec.engines import Survivors, kth_of_maxima
from nudgevec.tiles import Singles, Tile

# Scores of one tile: 2 million float32, 8 MB.
_TILE_SCORES = 1 << 21
_FIRST_SCORES = 1 << 23
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
        # The first tile sets the floor for the rest, and is worth being large.
        self.width = max(256, _FIRST_SCORES // len(queries))
        self._next_width = max(256, _TILE_SCORES // min(len(queries), _QUERIES))
        self._scores = np.empty(0, np.float32)
        self._over = np.empty(0, np.bool_)

    def feed(self, tile: Tile, floor: Floats) -> list[Survivors]:
        self.width = self._next_width
        found = []
        for begin in range(0, len(floor), _QUERIES):
            some = slice(begin, begin + _QUERIES)
            columns = self.queries[:, some]
            scores, over = self._scratch(len(tile.rows), columns.shape[1])
            np.matmul(tile.single, columns, out=scores)
            level = floor[some]
            if np.isneginf(level).any():
                level = np.maximum(level, self._own_floor(scores) - tile.margin)
            bar = np.nextafter((level - tile.margin).astype(np.float32), np.float32(-np.inf))
            np.greater_equal(scores, bar, out=over)
            place, query = np.divmod(np.flatnonzero(over), scores.shape[1])
            found.append(Survivors(tile, query + begin, place))
        return found

    def _scratch(self, rows: int, columns: int) -> tuple[Singles, npt.NDArray[np.bool_]]:
        """Room for the scores of a tile: fresh memory would cost as much as comparing them."""
        size = rows * columns
        if len(self._scores) < size:
            self._scores, self._over = np.empty(size, np.float32), np.empty(size, np.bool_)
        return self._scores[:size].reshape(rows, columns), self._over[:size].reshape(rows, columns)

    def _own_floor(self, scores: Singles) -> Singles:
        """What k documents of the tile itself reach, for every query."""
        if len(scores) < self.k:
            return np.full(scores.shape[1], -np.inf, np.float32)
        length = max(1, min(32, len(scores) // (4 * self.k)))
        stretches = scores[: len(scores) // length * length].reshape(-1, length, scores.shape[1])
        return kth_of_maxima(stretches.max(axis=1).T, self.k)

    def flush(self) -> list[Survivors]:
        return []
