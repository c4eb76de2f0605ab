"""Find the k best documents of every query, exactly.

A document enters a query's list when its exact score is among the k best so far. To spare most exact scores, a float32
product is made first: a document whose float32 score plus its error bound is below the k-th best exact score cannot
enter. Of two documents with equal scores the one with the lower row comes first, so the result depends on nothing but
the vectors.

``top_k`` works on one shard and ``merge`` joins the results of two; together they are the whole scan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numba import get_num_threads, prange
from threadpoolctl import threadpool_limits

from nudgevec.arrays import Array, Floats, Ints, Mask, Singles
from nudgevec.core.compiling import compiled
from nudgevec.core.exact import compilable, dot, float32_error, norms

# Queries and documents per float32 product. Its result (2 MiB) stays in the cache of a core.
QUERY_BATCH = 512
DOCUMENT_BLOCK = 1024
# Documents that are dismissed together if all of them are below the threshold.
GROUP = 128


class TopK(NamedTuple):
    """The best documents of every query; row -1 with score -inf fills lists that are too short.

    The highest score comes first, except during a scan: then every list is a binary heap with the worst entry first.
    """

    rows: Ints
    scores: Floats


Scorer = Callable[[Singles], Singles]
"""A function from queries, (q, d), to their float32 inner products with some vectors, (q, n)."""


class Block(NamedTuple):
    """Some documents of a shard."""

    rows: Ints
    vectors: Array
    """float32 or float64, C-contiguous."""
    lengths: Floats
    keep: Mask
    """False for documents to leave out."""


class Filter(NamedTuple):
    """How float32 scores of the documents of a block decide which of them need exact ones."""

    vectors: Singles
    scale: Singles
    """What multiplies the float32 inner product of each."""
    error: Singles
    """How far the result can be from the exact score; infinite where float32 may overflow."""
    divisor: Floats
    """What divides the exact inner product of each."""


def block_of(rows: Ints, vectors: Array) -> Block:
    """Return a block of vectors that are in memory."""
    vectors = compilable(vectors)
    return Block(rows, vectors, norms(vectors), np.ones(len(rows), np.bool_))


def empty_top_k(n_queries: int, k: int) -> TopK:
    """Return lists without documents."""
    return TopK(np.full((n_queries, k), -1, np.int64), np.full((n_queries, k), -np.inf))


def top_k(blocks: Iterable[Block], queries: Floats, k: int, *, cosine: bool, floor: Floats | None = None) -> TopK:
    """Find the k best documents of every query in one shard.

    Parameters
    ----------
    blocks : iterable of Block
        The documents of the shard.
    queries : array of shape (q, d)
        Queries of length at most 1.
    k : int
        How many documents to find.
    cosine : bool
        Divide scores by the lengths of the documents.
    floor : array of shape (q,), optional
        Documents that score less than this may be left out. It lets an engine that scans many shards pass on what it
        learned from the first ones.

    Returns
    -------
    TopK
    """
    found = empty_top_k(len(queries), k)
    if k == 0 or len(queries) == 0:
        return found
    floor = np.full(len(queries), -np.inf) if floor is None else floor
    queries32 = queries.astype(np.float32)
    # As many batches as keep all threads busy. Each calls the BLAS on its own, which must not start threads itself.
    threads = get_num_threads()
    rounds = -(-len(queries) // (QUERY_BATCH * threads))
    batch = -(-len(queries) // (rounds * threads))
    with _single_threaded_blas():
        for block in blocks:
            _add_block(queries, queries32, batch, block, filter_of(block, cosine), floor, found)
    sort_heaps(found)
    return found


_blas_lock = threading.Lock()
_blas_users: list[threadpool_limits] = []


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    """Keep the BLAS from starting threads. The limit is that of the process: the last of several scans lifts it."""
    with _blas_lock:
        _blas_users.append(_blas_users[0] if _blas_users else threadpool_limits(1, "blas"))
    try:
        yield
    finally:
        with _blas_lock:
            limits = _blas_users.pop()
            if not _blas_users:
                limits.restore_original_limits()


def scorer(vectors: Singles) -> Scorer:
    """Return a function from queries to their float32 inner products with these vectors."""
    return lambda queries: queries @ vectors.T


def merge(a: TopK, b: TopK) -> TopK:
    """Return the best of two results for the same queries, as many as ``a`` has."""
    rows, scores = np.concatenate([a.rows, b.rows], axis=1), np.concatenate([a.scores, b.scores], axis=1)
    best = np.lexsort((rows, -scores))[:, : a.rows.shape[1]]
    return TopK(np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1))


def as_float32(vectors: Array) -> Singles:
    """Return vectors in float32; numbers out of its range become infinite."""
    with np.errstate(over="ignore"):
        return vectors.astype(np.float32, copy=False)


def filter_of(block: Block, cosine: bool, extra_error: float = 0.0) -> Filter:
    """Return the filter of a block. Products of very long or short vectors may leave the range of float32.

    ``extra_error`` is added to the relative error of float32 products.
    """
    error = float32_error(block.vectors.shape[1]) + extra_error
    ordinary = (block.lengths > 1e-15) & (block.lengths < 1e15)
    length = np.where(ordinary, block.lengths, 1.0)
    scale = np.where(ordinary, 1.0 / length if cosine else 1.0, 0.0)
    bound = np.where(ordinary, error if cosine else error * length, np.inf)
    divisor = block.lengths if cosine else np.ones(len(length))
    # The factor covers the rounding of the bound itself to float32.
    return Filter(as_float32(block.vectors), scale.astype(np.float32), (1.001 * bound).astype(np.float32), divisor)


@compiled(parallel=True)
def _add_block(queries, queries32, batch, block, filtered, floor, found):
    """Add the documents of a block to the lists of all queries, in batches."""
    for number in prange((len(queries) + batch - 1) // batch):
        part = slice(number * batch, min((number + 1) * batch, len(queries)))
        lists = TopK(found.rows[part], found.scores[part])
        _add_to_batch(queries[part], queries32[part], block, filtered, floor[part], lists)


@compiled()
def _add_to_batch(queries, queries32, block, filtered, floor, found):
    """Add the documents of a block to the lists of a batch of queries; these are binary heaps with the worst first."""
    for left in range(0, len(block.vectors), DOCUMENT_BLOCK):
        right = min(left + DOCUMENT_BLOCK, len(block.vectors))
        scores = np.dot(queries32, filtered.vectors[left:right].T)
        for i in range(len(queries)):
            for first in range(left, right, GROUP):
                last = min(first + GROUP, right)
                group = scores[i, first - left : last - left]
                scale, error = filtered.scale[first:last], filtered.error[first:last]
                threshold = np.float32(max(floor[i], found.scores[i, 0]))
                if _count_candidates(group, scale, error, threshold) == 0:
                    continue
                for j in range(first, last):
                    if block.keep[j] and not group[j - first] * scale[j - first] + error[j - first] < threshold:
                        add_pair(queries, block, filtered, i, j, floor, found)
                        threshold = np.float32(max(floor[i], found.scores[i, 0]))


@compiled()
def _count_candidates(scores, scale, error, threshold):
    """Return how many upper bounds of scores are not below the threshold; NaN (from infinities) is not below.

    A loop without exits over 32-bit numbers, which the compiler vectorises.
    """
    count = np.int32(0)
    for j in range(len(scores)):
        count += np.int32(not scores[j] * scale[j] + error[j] < threshold)
    return count


@compiled(parallel=True)
def add_pairs(queries, block, filtered, first, position, floor, found):
    """Add documents of a block to the lists: ``position[first[i]:first[i + 1]]`` to that of query i."""
    for i in prange(len(queries)):
        for pair in range(first[i], first[i + 1]):
            if block.keep[position[pair]]:
                add_pair(queries, block, filtered, i, position[pair], floor, found)


@compiled()
def add_pair(queries, block, filtered, i, j, floor, found):
    """Put document j of a block into the list of query i if its exact score is better than the worst there."""
    score, row = dot(queries[i], block.vectors[j]) / filtered.divisor[j], block.rows[j]
    if score >= floor[i] and _before(score, row, found.scores[i, 0], found.rows[i, 0]):
        _replace_worst(found, i, found.rows.shape[1], score, row)


@compiled()
def _before(score, row, other_score, other_row):
    return score > other_score or (score == other_score and row < other_row)


@compiled()
def _replace_worst(found, i, size, score, row):
    """Replace the first entry of the heap of query i, of ``size`` entries, and restore its order."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and _before(
            found.scores[i, child], found.rows[i, child], found.scores[i, other], found.rows[i, other]
        ):
            child = other
        if not _before(score, row, found.scores[i, child], found.rows[i, child]):
            break
        found.scores[i, at], found.rows[i, at] = found.scores[i, child], found.rows[i, child]
        at = child
    found.scores[i, at], found.rows[i, at] = score, row


@compiled()
def sort_heaps(found):
    """Sort every heap in place, best first."""
    for i in range(len(found.rows)):
        _sort_heap(found, i)


@compiled()
def _sort_heap(found, i):
    """Sort a heap in place: move its worst entry to the end of the unsorted part until nothing is left."""
    for size in range(found.rows.shape[1] - 1, 0, -1):
        score, row = found.scores[i, size], found.rows[i, size]
        found.scores[i, size], found.rows[i, size] = found.scores[i, 0], found.rows[i, 0]
        _replace_worst(found, i, size, score, row)
