"""Engines: where the scan over the corpus is computed.

An engine only filters: of all (query, document) scores it finds those that may exceed a floor, fast and in
low precision, and never misses one. What it lets through is scored again in float64 by the caller, so every
engine gives the same answer.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nudgevec.corpus import Floats, Ints
from nudgevec.errors import OptionError
from nudgevec.tiles import Tile

ENGINES = ("auto", "numpy", "torch")


class Survivors(NamedTuple):
    """Scores that may exceed the floor: query numbers, and places within the tile."""

    tile: Tile
    query: Ints
    place: Ints


class Sieve(Protocol):
    """A filter set up for some queries."""

    @property
    def width(self) -> int:
        """How many documents the next tile should have."""

    def feed(self, tile: Tile, floor: Floats) -> list[Survivors]:
        """Filter one tile against each query's floor. Survivors of earlier tiles may come with it."""

    def flush(self) -> list[Survivors]:
        """The survivors that are still under way."""


class Engine(Protocol):
    """What sets up a filter."""

    @property
    def name(self) -> str:
        """What the engine is called in options."""

    def sieve(self, queries: Floats, k: int) -> Sieve:
        """A filter for these unit queries; k survivors per query are wanted in the end."""


def pick(name: str, work: float) -> Engine:
    """The engine of that name; ``"auto"`` weighs what is installed against the work (in multiplications)."""
    if name not in ENGINES:
        raise OptionError(f"unknown engine {name!r}: use one of {', '.join(ENGINES)}")
    if name == "torch" or (name == "auto" and _torch_pays(work)):
        from nudgevec.engines.torch_engine import TorchEngine

        return TorchEngine()
    from nudgevec.engines.numpy_engine import NumpyEngine

    return NumpyEngine()


def _torch_pays(work: float) -> bool:
    """PyTorch halves the time of the scan where the CPU multiplies bfloat16, but takes seconds to import."""
    import sys
    from importlib.util import find_spec

    if work < (2e10 if "torch" in sys.modules else 2e12) or find_spec("torch") is None:
        return False
    from nudgevec.engines import torch_engine

    return torch_engine.is_fast()


def kth_of_maxima(maxima: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    """The k-th largest of each line: with the maxima of stretches of documents, a height k documents reach.

    Finding the maxima is one pass over the scores; finding the k best themselves would be many.
    """
    place = maxima.shape[1] - k
    kth: npt.NDArray[np.float32] = np.partition(maxima, place, axis=1)[:, place]
    return kth
