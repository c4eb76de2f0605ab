"""Which documents can matter for a query, and why that is safe.

Every document has a score curve (``paths``), a function of the angle. The sweep needs the ranks of the labels up to k,
at every angle, and almost all documents have nothing to do with them. On an interval of angles:

1. The range of each curve is known in closed form (``curve_range``), up to the error bound of its float32 scores.
2. Let T be the k-th largest lower bound. At every angle of the interval at least k documents score T or more. A label
   whose upper bound is below T is nowhere in the top k. If there are no other labels, the interval contributes nothing.
3. The other labels lie in a window of scores: from W, the smallest of their max(lower bound, T), to the largest of
   their upper bounds. A document that is always below the window is dropped. A document that is always above it is
   always ahead of all these labels: it is counted, and dropped.
4. Dropping a document j that is always below W changes no rank up to k. Let y be one of the labels. If the lower bound
   of y is at least W, j is never ahead of y. If it is less, then W = T, because W is at most max(lower bound of y, T).
   So j is always below T, and where it is ahead of y, y is below T too: then at least k documents are ahead of y, the
   ones whose lower bounds reach T. Those are not below the window, so they are kept or counted, and the rank of y is
   worse than k with and without j.
5. Halves of a bisected interval begin with what is left of it. Ranks up to k are then 1 + the documents that were
   counted + the kept ones that are ahead, so step 2 asks for the (k - counted)-th largest lower bound of the kept ones,
   and steps 3 and 4 hold again.

Two more facts make this exact:

- A document within ``TIE`` below a label counts as ahead of it (``crossings``). The error bounds include ten times
  that, so all of the above holds for ties too. Of the unmoved documents, k + 1 are candidates: the labelled document
  itself may be one of them, and k others decide whether it is in the top k.
- Under NUDGE-M a base curve is subtracted from all curves before their ranges are compared. It is the same for all, and
  so changes no comparison.

Keeping too many documents changes nothing at all, so bounds need not be tight; a T of fewer documents is smaller, and
keeps more. ``first_candidates`` applies this to the whole range of angles, ``prune`` to one interval of a bisection.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nudgevec.arrays import Array, Floats, Ints, Mask
from nudgevec.core.compiling import compiled


class Problem(NamedTuple):
    """What a sweep needs to know, the same for all queries.

    There are m movers. Arrays of length m + 1 end with an entry for unmoved documents.
    """

    start: Array
    """(m, d), the vectors of the movers as the corpus keeps them."""
    divisor: Floats
    """(m,), what each start is divided by."""
    direction: Floats
    """(m, d)"""
    stop: Floats
    """(m + 1,)"""
    cos_stop: Floats
    sin_stop: Floats
    error: Floats
    """(m + 1,), bound on the error of a score curve made of float32 scores."""
    rays: bool
    """True for NUDGE-M."""
    end: float
    """The largest angle."""
    first_label: Ints
    """(q + 1,), the first label of every query, and the number of labels."""
    label_row: Ints
    label_mover: Ints
    """The index of the labelled document among the movers, or -1."""
    share: Floats
    """What each label contributes to the metric at a discount of 1, in quanta."""
    discount: Floats
    """The value of each rank; 0 from rank k + 1 on."""
    k: int
    best_only: bool
    """Only the best-ranked label of a query counts."""


class ScoreCurves(NamedTuple):
    """The score curves s cos(phi) + z sin(phi) of the documents that can matter for a query, its candidates."""

    path: Ints
    """The index of the document among the movers, or m if it does not move."""
    label: Ints
    """The index of its label, or -1."""
    s: Floats
    z: Floats
    exact: Mask
    """True where s and z are exact scores, False where they are float32 scores."""
    lower: Floats
    upper: Floats
    """Bounds of the curve on the interval that was pruned last, minus the base curve."""
    base_s: float
    base_z: float
    """A curve that is subtracted from all others before their ranges are compared."""


class Interval(NamedTuple):
    """An interval of angles."""

    low: float
    high: float
    cos_low: float
    sin_low: float
    cos_high: float
    sin_high: float


@compiled()
def interval(low, high):
    """Return the interval between two angles."""
    return Interval(low, high, math.cos(low), math.sin(low), math.cos(high), math.sin(high))


@compiled()
def first_candidates(problem, query, s32, z32, rows, scores):
    """Return the score curves of the candidates of query number ``query`` on the whole range of angles.

    ``s32`` and ``z32`` are its float32 scores of the movers; ``rows`` and ``scores`` are its best unmoved documents,
    with row -1 for none.
    """
    m, n, first = len(s32), np.int64(0), problem.first_label[query]
    size = len(rows) + problem.first_label[query + 1] - first
    path, label = np.empty(size, np.int64), np.empty(size, np.int64)
    while n < len(rows) and rows[n] >= 0:
        path[n], label[n] = m, -1
        n += 1
    n_unmoved = n
    for y in range(first, problem.first_label[query + 1]):
        if problem.label_mover[y] >= 0:
            path[n], label[n] = problem.label_mover[y], y
            n += 1
        else:
            for c in range(n_unmoved):
                if rows[c] == problem.label_row[y]:
                    label[c] = y
    # Under NUDGE-M the scores of all documents grow alike with the angle, and only their differences separate them.
    # These are curves of the same family, because all documents have the same stop.
    base_s, base_z = _base_curve(path[n_unmoved:n], s32, z32) if problem.rays else (0.0, 0.0)
    known, whole = np.arange(n), interval(0.0, problem.end)
    curves = _score_curves(path[:n], label[:n], s32, z32, scores, base_s, base_z)
    lowest, _ = _label_window(curves, known, _threshold(problem, curves, known, problem.k, whole))
    reaches = np.empty(m, np.bool_)
    for j in range(m):
        s, z, low = s32[j] - base_s, z32[j] - base_z, lowest - problem.error[j]
        # The amplitude of a curve bounds it, and takes a tenth of the time of the exact range.
        out_of_reach = low > 0 and s * s + z * z < low * low
        if not out_of_reach:
            _, upper = curve_range(s, z, problem.stop[j], problem.cos_stop[j], problem.sin_stop[j], whole)
            out_of_reach = upper < low
        reaches[j] = not out_of_reach
    for c in range(n_unmoved, n):
        reaches[path[c]] = False
    others = np.flatnonzero(reaches)
    path, label = np.append(path[:n], others), np.append(label[:n], np.full(len(others), -1))
    return _score_curves(path, label, s32, z32, scores, base_s, base_z)


@compiled()
def _base_curve(labelled, s32, z32):
    """Return the curve of the labelled mover with the smallest amplitude.

    A larger one would widen the ranges of all others. Above an amplitude of 10^4 there is none: rounding the
    subtraction could then exceed the error bounds.
    """
    smallest, base_s, base_z = 1e8, 0.0, 0.0
    for j in labelled:
        s, z = np.float64(s32[j]), np.float64(z32[j])
        if s * s + z * z < smallest:
            smallest, base_s, base_z = s * s + z * z, s, z
    return base_s, base_z


@compiled()
def _score_curves(path, label, s32, z32, scores, base_s, base_z):
    """Return the score curves of these documents; unmoved ones come first, in the order of ``scores``."""
    n, m = len(path), len(s32)
    s, z, exact = np.empty(n), np.zeros(n), np.empty(n, np.bool_)
    for c in range(n):
        exact[c] = path[c] == m
        if exact[c]:
            s[c] = scores[c]
        else:
            s[c], z[c] = s32[path[c]], z32[path[c]]
    return ScoreCurves(path, label, s, z, exact, np.empty(n), np.empty(n), base_s, base_z)


@compiled()
def prune(problem, curves, parents, span, ahead, kept):
    """Write the candidates that can matter on an interval into ``kept``.

    ``ahead`` documents that are not among the ``parents`` are ahead of all labels. Returns the number of candidates
    kept (0 if no label can be in the top k), and of documents ahead of all labels that are not among them.
    """
    if ahead >= problem.k:
        return 0, ahead
    lowest, highest = _label_window(curves, parents, _threshold(problem, curves, parents, problem.k - ahead, span))
    size = 0
    for c in parents:
        if curves.lower[c] > highest:
            ahead += 1
        elif curves.upper[c] >= lowest:
            kept[size] = c
            size += 1
    return size, ahead


@compiled()
def _threshold(problem, curves, candidates, k, span):
    """Set the bounds of the candidates on an interval; return the k-th largest lower bound."""
    heap = np.full(k, -np.inf)
    for c in candidates:
        j = curves.path[c]
        s, z = curves.s[c] - curves.base_s, curves.z[c] - curves.base_z
        smallest, largest = curve_range(s, z, problem.stop[j], problem.cos_stop[j], problem.sin_stop[j], span)
        curves.lower[c], curves.upper[c] = smallest - problem.error[j], largest + problem.error[j]
        if curves.lower[c] > heap[0]:
            _replace_smallest(heap, curves.lower[c])
    return heap[0]


@compiled()
def _label_window(curves, candidates, threshold):
    """Return the bounds of all labels that may reach the threshold; (inf, -inf) if there are none."""
    lowest, highest = np.inf, -np.inf
    for c in candidates:
        if curves.label[c] >= 0 and curves.upper[c] >= threshold:
            lowest, highest = min(lowest, max(curves.lower[c], threshold)), max(highest, curves.upper[c])
    return lowest, highest


@compiled()
def curve_range(s, z, stop, cos_stop, sin_stop, span):
    """Return the smallest and largest value of the curve s cos + z sin on an interval.

    A sinusoid on less than half a turn has its extremes at the ends of the interval, except where its slope changes
    sign in between: then one is its amplitude.
    """
    if span.low >= stop:
        value = s * cos_stop + z * sin_stop
        return value, value
    cos_high, sin_high = span.cos_high, span.sin_high
    if span.high > stop:
        cos_high, sin_high = cos_stop, sin_stop
    first, last = s * span.cos_low + z * span.sin_low, s * cos_high + z * sin_high
    slope_first, slope_last = z * span.cos_low - s * span.sin_low, z * cos_high - s * sin_high
    smallest, largest = min(first, last), max(first, last)
    if slope_first > 0 and slope_last < 0:
        largest = math.sqrt(s * s + z * z)
    elif slope_first < 0 and slope_last > 0:
        smallest = -math.sqrt(s * s + z * z)
    return smallest, largest


@compiled()
def _replace_smallest(heap, value):
    """Replace the first entry of a binary heap, its smallest."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= len(heap):
            break
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@compiled()
def grown(array, size):
    """Return the array, or a copy with at least this size.

    Arrays start small: on some machines fresh memory takes longer than the work that is done in it.
    """
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger
