"""Engines: where the large products run.

An engine has a name and two pure functions on arrays: ``top_k``, the scan of a shard, and ``scorer``, for float32
products of many batches of queries with the same vectors. All decisions rest on the exact score (``core.exact.dot``),
so every engine gives the same answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from nudgevec.arrays import Array, Floats, Ints, Singles
from nudgevec.core.scan import Block, Scorer, TopK, block_of, merge
from nudgevec.errors import OptionError
from nudgevec.registry import Registry

ENGINES: Registry[Any] = Registry(
    "engine", {"cpu": "nudgevec.engines.cpu:CpuEngine", "torch": "nudgevec.engines.torch:TorchEngine"}
)
# Multiplications that a GPU saves more time on than PyTorch takes to be imported.
_WORTH_TORCH = 2e12
_WORTH_IMPORTED_TORCH = 2e10


@runtime_checkable
class Engine(Protocol):
    """Where the large products run.

    Any object with these members can be passed as ``engine`` to tuners, ``evaluate`` and ``tune``.
    """

    name: str
    """What the engine is called, for example "cpu"."""

    def top_k(
        self, blocks: Iterable[Block], queries: Floats, k: int, *, cosine: bool, floor: Floats | None = None
    ) -> TopK:
        """Find the k best documents of every query in one shard, by the exact score (``core.exact.dot``).

        Parameters
        ----------
        blocks : iterable of Block
            The documents of the shard.
        queries : array of shape (q, d)
            Queries of length at most 1, in float64.
        k : int
            How many documents to find.
        cosine : bool
            Divide scores by the lengths of the documents.
        floor : array of shape (q,), optional
            Documents that score less than this may be left out.

        Returns
        -------
        TopK
            The best documents of every query, best first; of two with equal scores the lower row.
        """

    def scorer(self, vectors: Singles) -> Scorer:
        """Return a function that scores many batches of queries with the same vectors.

        Parameters
        ----------
        vectors : array of shape (n, d)
            Vectors in float32.

        Returns
        -------
        callable
            A function from queries, float32 of shape (q, d), to their inner products in full float32 precision, (q, n).
        """


def check_engine(engine: str | Engine) -> None:
    """Raise OptionError for an engine that does not exist."""
    if isinstance(engine, Engine):
        return
    if not isinstance(engine, str) or (engine != "auto" and engine not in ENGINES):
        raise OptionError(f"unknown engine {engine!r}: use one of {', '.join(['auto', *ENGINES])}")


def pick(engine: str | Engine, work: float) -> Engine:
    """Return an engine.

    Parameters
    ----------
    engine : str or Engine
        A name, an engine, or "auto": PyTorch where there is a GPU and enough work, the CPU otherwise.
    work : float
        How many multiplications there are to do.
    """
    check_engine(engine)
    if not isinstance(engine, str):
        return engine
    if engine == "auto":
        engine = "torch" if _gpu_pays(work) else "cpu"
    made: Engine = ENGINES[engine]()
    return made


def with_rows(found: TopK, rows: Ints, vectors: Array, queries: Floats, engine: Engine, *, cosine: bool) -> TopK:
    """Return the best of what a scan has found and some more documents."""
    if len(rows) == 0:
        return found
    return merge(found, engine.top_k([block_of(rows, vectors)], queries, found.rows.shape[1], cosine=cosine))


def _gpu_pays(work: float) -> bool:
    if work < (_WORTH_IMPORTED_TORCH if "torch" in sys.modules else _WORTH_TORCH) or find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
