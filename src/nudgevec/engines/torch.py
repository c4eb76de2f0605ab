"""PyTorch: products and the filter run on the GPU, exact scores on the CPU.

Blocks are copied to the device one after the other, the next one while the previous one is processed. On the device
every document gets one more dimension, its error bound, and every query a 1 there: so one product gives upper bounds of
all scores. A document is dropped where its upper bound is below a lower bound of the k-th best score. What is left, a
few documents per query and block, comes back and gets the same exact score as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arrays import Array, Floats, Ints, Singles
from nudgevec.core.scan import Block, Filter, Scorer, TopK, add_pairs, as_float32, empty_top_k, filter_of, sort_heaps
from nudgevec.core.softmax import Side
from nudgevec.errors import MissingExtraError

# The width of the matrices is a multiple of this, which tensor cores need to work on them.
_ALIGNED = 8
# Upper bounds are product + 1.01 error: TF32 cuts the error, a column of the product, by at most 2^-10 of its size. So
# a score is at least its upper bound - (1.01 + 1) error, and the rest of 2.03 covers the rounding of these sums.
_UPPER_ERROR = 1.01
_RANGE_ERROR = 2.03


class _OnDevice(NamedTuple):
    """A block and what is on the device of it."""

    block: Block
    filtered: Filter
    bounded: Any
    """The vectors, scaled, with their error bounds as one more dimension."""
    error: Any


class TorchEngine:
    """Runs on a GPU, or on the CPU where there is none.

    Parameters
    ----------
    device : str, optional
        A PyTorch device; the first GPU by default.
    block_rows : int, optional
        Documents per product; by default as many as bound the memory to 2 GB on a GPU and to 64 MB elsewhere.
    """

    name = "torch"

    def __init__(self, device: str | None = None, block_rows: int | None = None) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("the torch engine", "torch") from None
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.block_rows = block_rows
        # Scores of a product for ``moments``; the documents are copied once for each.
        self.softmax_scores = 1 << (27 if self.device.type == "cuda" else 22)
        # Scores that exist at a time; with what is made of them, three times as much memory.
        self._products = 1 << (28 if self.device.type == "cuda" else 22)

    @property
    def _torch(self) -> Any:
        # Not an attribute: modules cannot be copied, and engines are options of tuners.
        import torch

        return torch

    def scorer(self, vectors: Singles) -> Scorer:
        """Return a function from queries to their float32 inner products with these vectors."""
        on_device = self._put(vectors)

        def scores(queries: Singles) -> Singles:
            with self._precision(tf32=False):
                product = self._put(queries) @ on_device.T
            host = self._torch.empty(product.shape, pin_memory=self.device.type == "cuda")
            result: Singles = host.copy_(product).numpy()
            return result

        return scores

    def moments(
        self, queries: Singles, documents: Singles, tau: float, log_weight: Singles, side: Side
    ) -> tuple[Floats, Singles]:
        """Return what ``core.softmax.moments`` returns, up to rounding."""
        with self._precision(tf32=False):
            asked, offered = self._put(queries), self._put(documents)
            scores = asked @ offered.T / tau + self._put(log_weight)
            log_sum = scores.logsumexp(dim=1)
            probability = scores.sub_(log_sum[:, None]).exp_()
            expected = probability @ offered if side == "queries" else probability.T @ asked
        return log_sum.double().cpu().numpy(), expected.cpu().numpy()

    def top_k(
        self, blocks: Iterable[Block], queries: Floats, k: int, *, cosine: bool, floor: Floats | None = None
    ) -> TopK:
        """Find the k best documents of every query; see ``core.scan.top_k``."""
        found = empty_top_k(len(queries), k)
        if k == 0 or len(queries) == 0:
            return found
        floor = np.full(len(queries), -np.inf) if floor is None else floor
        queries32 = self._bounded(self._put(as_float32(queries)), self._torch.ones(len(queries), device=self.device))
        rows = self.block_rows or max(256, self._products // len(queries))
        with self._precision(tf32=True):
            for part in self._copied(_parts(blocks, rows), cosine):
                first, position = self._candidates(queries32, part, k, np.maximum(floor, found.scores[:, 0]))
                add_pairs(queries, part.block, part.filtered, first, position, floor, found)
        sort_heaps(found)
        return found

    def _copied(self, blocks: Iterator[Block], cosine: bool) -> Iterator[_OnDevice]:
        """Copy blocks to the device, each while the previous one is processed."""
        waiting = None
        for block in blocks:
            filtered = filter_of(block, cosine, _tf32_error(block.vectors.shape[1]))
            vectors, scale, error = map(self._put, filtered[:3])
            bounded = self._bounded(vectors * scale[:, None], _UPPER_ERROR * error)
            if waiting is not None:
                yield waiting
            waiting = _OnDevice(block, filtered, bounded, error)
        if waiting is not None:
            yield waiting

    def _bounded(self, vectors: Any, last: Any) -> Any:
        """Return a matrix with one more column, and zeros up to the next aligned width."""
        n, d = vectors.shape
        wider = self._torch.zeros((n, -(-(d + 1) // _ALIGNED) * _ALIGNED), device=self.device)
        wider[:, :d], wider[:, d] = vectors, last
        return wider

    def _candidates(self, queries: Any, part: _OnDevice, k: int, threshold: Floats) -> tuple[Ints, Ints]:
        """Return the documents of a block that may be among the k best of each query, as positions in the block.

        Those of query i are ``position[first[i]:first[i + 1]]``.
        """
        torch = self._torch
        upper = queries @ part.bounded.T
        bound = self._put(_rounded_down(threshold))
        if np.isneginf(threshold).any() and part.block.keep.sum() >= k:
            # There is no threshold yet. The k-th largest lower bound in the block: k documents score as much.
            lower = torch.nan_to_num(upper - _RANGE_ERROR * part.error, nan=-torch.inf, posinf=-torch.inf)
            lower[:, self._put(~part.block.keep)] = -torch.inf
            bound = torch.maximum(bound, lower.topk(k, dim=1, sorted=False).values.amin(dim=1))
            del lower
        # NaN (from infinities) is not below.
        query, position = torch.nonzero(~(upper < bound[:, None]), as_tuple=True)
        first = torch.searchsorted(query, torch.arange(len(queries) + 1, device=self.device))
        return first.cpu().numpy(), position.cpu().numpy()

    def _put(self, array: Array) -> Any:
        """Copy an array to the device, through page-locked memory: that is several times as fast."""
        tensor = self._torch.from_numpy(np.require(array, requirements=["C", "W"]))
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    @contextmanager
    def _precision(self, *, tf32: bool) -> Iterator[None]:
        """Use TF32 products on a GPU, or full float32 precision, for a while."""
        on_gpu = self.device.type == "cuda"
        backend = self._torch.backends.cuda if on_gpu else self._torch.backends.mkldnn
        settings = getattr(backend, "matmul", None)
        name: str = "fp32_precision"
        value: str | bool = "tf32" if tf32 and on_gpu else "ieee"
        if not hasattr(settings, name):
            # PyTorch before 2.9, where products on the CPU have full precision.
            name, value = "allow_tf32", tf32
        if not hasattr(settings, name):
            yield
            return
        before = getattr(settings, name)
        setattr(settings, name, value)
        try:
            yield
        finally:
            setattr(settings, name, before)


def _tf32_error(dim: int) -> float:
    """Bound what TF32 adds to the error of an inner product of a query of length at most 1 and a vector x, relative to
    |x|: both vectors are cut to 10 bits after the point, and sums in float32 may be cut instead of rounded."""
    return 2.01 * 2.0**-10 + dim * 2.0**-23


def _parts(blocks: Iterable[Block], rows: int) -> Iterator[Block]:
    """Divide blocks into equal parts of at most ``rows`` rows."""
    for block in blocks:
        n_parts = -(-len(block.vectors) // rows)
        size = -(-len(block.vectors) // max(1, n_parts))
        for begin in range(0, len(block.vectors), max(1, size)):
            part = slice(begin, begin + size)
            yield Block(block.rows[part], block.vectors[part], block.lengths[part], block.keep[part])


def _rounded_down(values: Floats) -> Singles:
    single = values.astype(np.float32)
    return np.where(single > values, np.nextafter(single, np.float32(-np.inf)), single).astype(np.float32)
