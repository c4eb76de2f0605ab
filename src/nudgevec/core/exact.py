"""The exact score of a query and a vector, and error bounds of the fast ones.

Every decision of the library rests on ``dot``: float64, summed in one fixed order, so that a score has the same bits on
every CPU, for every block size and number of threads. Fast float32 scores only decide which pairs deserve an exact one,
and ``float32_error`` bounds how far they can be off.

Angles are another matter: sines, cosines and arc tangents of the mathematical libraries can differ in their last digit
between CPUs, and so can the angles at which scores cross, the step and the moved vectors.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from nudgevec.arrays import Array, Floats
from nudgevec.core.compiling import compiled


@compiled()
def dot(a, b):
    """Return the inner product of two vectors in float64.

    Eight partial sums, because a single one would wait for every addition; the compiler may not reorder them.
    """
    d = a.shape[0]
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = d - d % 8
    for i in range(0, whole, 8):
        s0 += np.float64(a[i]) * np.float64(b[i])
        s1 += np.float64(a[i + 1]) * np.float64(b[i + 1])
        s2 += np.float64(a[i + 2]) * np.float64(b[i + 2])
        s3 += np.float64(a[i + 3]) * np.float64(b[i + 3])
        s4 += np.float64(a[i + 4]) * np.float64(b[i + 4])
        s5 += np.float64(a[i + 5]) * np.float64(b[i + 5])
        s6 += np.float64(a[i + 6]) * np.float64(b[i + 6])
        s7 += np.float64(a[i + 7]) * np.float64(b[i + 7])
    for i in range(whole, d):
        s0 += np.float64(a[i]) * np.float64(b[i])
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@compiled()
def norm(a):
    """Return the Euclidean length of a vector, also where its squares would underflow or overflow."""
    length = math.sqrt(dot(a, a))
    if 1e-140 < length < 1e140:
        return length
    largest = 0.0
    for i in range(a.shape[0]):
        largest = max(largest, abs(np.float64(a[i])))
        if not math.isfinite(a[i]):
            return math.nan
    if largest == 0.0:
        return 0.0
    total = 0.0
    for i in range(a.shape[0]):
        total += (np.float64(a[i]) / largest) ** 2
    return largest * math.sqrt(total)


@compiled(parallel=True)
def _norms(vectors):
    lengths = np.empty(len(vectors))
    for i in prange(len(vectors)):
        lengths[i] = norm(vectors[i])
    return lengths


def norms(vectors: Array) -> Floats:
    """Return the Euclidean length of every row; NaN where a row is not finite."""
    lengths: Floats = _norms(compilable(vectors))
    return lengths


def compilable(vectors: Array) -> Array:
    """Return vectors as float32 or float64 in a C-contiguous, writeable array, without rounding.

    So there are two versions of every compiled loop, and not one for every layout of memory.
    """
    return np.require(vectors, np.float32 if vectors.dtype == np.float16 else None, ["C", "W"])


def scaled_queries(queries: Array) -> Floats:
    """Return the queries in float64, each scaled by a power of two to a length in [0.5, 1).

    The scaling keeps the ranking and rounds nothing, so scores that are equal stay equal.
    """
    exact = queries.astype(np.float64)
    _, exponents = np.frexp(norms(exact))
    return np.ldexp(exact, -exponents[:, None])


def float32_error(dim: int) -> float:
    """Bound the error of a float32 inner product of a query of length at most 1 and a vector x, relative to |x|.

    With u = 2^-24: rounding both vectors to float32 costs at most u|x| each; a float32 inner product in any order at
    most d u/(1 - d u) |x|; dividing by a float32 length (itself off by (d/2 + 2) u) at most (d/2 + 4) u |x|. Together
    below 1.01 (1.5 d + 6) u |x| for every d up to 100,000. Another 10 u |x| allow for rounding the sum of a score and
    this bound, and the threshold it is compared with (which matters only if it is below |x|).
    """
    return 1.01 * (1.5 * dim + 16) * 2.0**-24
