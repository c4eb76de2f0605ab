"""PyTorch: products and the filter run on the GPU, exact scores on the CPU.

Blocks are copied to the device one after the other, the next one while the last one is worked on. On the device a
document is dropped where its float32 score plus its error bound is below a lower bound of the k-th best score. What is
left, a few documents per query and block, comes back and gets the same exact score as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arrays import Array, Floats, Ints, Singles
from nudgevec.core.scan import Block, Filter, TopK, add_pairs, empty_top_k, filter_of, single, sort
from nudgevec.errors import MissingExtraError


class _OnDevice(NamedTuple):
    """A block and its copy on the device."""

    block: Block
    filtered: Filter
    vectors: Any
    scale: Any
    error: Any
    keep: Any


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
        self._torch = torch
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.block_rows = block_rows
        # Scores that exist at a time; about four tables of them do.
        self._products = 1 << (27 if self.device.type == "cuda" else 22)

    def scores(self, queries: Singles, vectors: Singles) -> Singles:
        """Return the float32 inner products of all queries with all vectors."""
        with self._full_precision():
            product: Singles = (self._put(queries) @ self._put(vectors).T).cpu().numpy()
        return product

    def top_k(
        self, blocks: Iterable[Block], queries: Floats, k: int, *, cosine: bool, floor: Floats | None = None
    ) -> TopK:
        """Find the k best documents of every query; see ``core.scan.top_k``."""
        found = empty_top_k(len(queries), k)
        if k == 0 or len(queries) == 0:
            return found
        floor = np.full(len(queries), -np.inf) if floor is None else floor
        fast = self._put(single(queries))
        rows = self.block_rows or max(256, self._products // len(queries))
        with self._full_precision():
            for part in self._copied(_parts(blocks, rows), cosine):
                threshold = np.maximum(floor, found.scores[:, 0])
                query, position = self._candidates(fast, part, k, threshold)
                add_pairs(queries, part.block, part.filtered, query, position, floor, found)
        sort(found)
        return found

    def _copied(self, blocks: Iterator[Block], cosine: bool) -> Iterator[_OnDevice]:
        """Copy blocks to the device, each while the one before is worked on."""
        waiting = None
        for block in blocks:
            filtered = filter_of(block, cosine)
            arrays = filtered.vectors, filtered.scale, filtered.error, block.keep
            coming = _OnDevice(block, filtered, *map(self._put, arrays))
            if waiting is not None:
                yield waiting
            waiting = coming
        if waiting is not None:
            yield waiting

    def _candidates(self, queries: Any, part: _OnDevice, k: int, threshold: Floats) -> tuple[Ints, Ints]:
        """Return the (query, position) pairs of a block that may be among the k best."""
        torch = self._torch
        scores = (queries @ part.vectors.T).mul_(part.scale)
        scores = torch.where(part.keep, scores, -torch.inf)
        bound = self._put(_rounded_down(threshold))
        if np.isneginf(threshold).any() and len(part.block.vectors) >= k:
            # There is no threshold yet. The k-th largest lower bound in the block: k documents score as much.
            lower = torch.nan_to_num(scores - part.error, nan=-torch.inf)
            bound = torch.maximum(bound, lower.topk(k, dim=1, sorted=False).values.amin(dim=1))
            del lower
        below = scores.add_(part.error) < bound[:, None]
        pairs = torch.nonzero(~below & part.keep).cpu().numpy()
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])

    def _put(self, array: Array) -> Any:
        """Copy an array to the device, through page-locked memory: that is several times as fast."""
        tensor = self._torch.from_numpy(np.require(array, requirements=["C", "W"]))
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        """Switch TF32 off for a while: its errors exceed the error bound."""
        settings = self._torch.backends.cuda.matmul
        before, settings.allow_tf32 = settings.allow_tf32, False
        try:
            yield
        finally:
            settings.allow_tf32 = before


def _parts(blocks: Iterable[Block], rows: int) -> Iterator[Block]:
    """Divide blocks into smaller ones."""
    for block in blocks:
        for begin in range(0, len(block.vectors), rows):
            part = slice(begin, begin + rows)
            yield Block(block.first + begin, block.vectors[part], block.lengths[part], block.keep[part])


def _rounded_down(values: Floats) -> Singles:
    single = values.astype(np.float32)
    return np.where(single > values, np.nextafter(single, np.float32(-np.inf)), single).astype(np.float32)
