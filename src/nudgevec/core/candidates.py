"""Which documents can matter for a query, and why that is safe.

Every document has a score curve f (``paths``), a function of the angle. Document j is *ahead* of a labelled document y
where f_j >= f_y - TIE (``crossings``), and the *rank* of y is 1 + the number of documents ahead of it. Metrics depend
on ranks up to k only, also those that take the best label of a query. So the sweep needs the ranks where they are at
most k, at every angle, and almost all documents have nothing to do with them. On an interval of angles:

1. The range of every curve is known in closed form (``curve_range``), up to an error bound: lower_j <= f_j <= upper_j.
   The error bounds include ten times TIE: where upper_i < lower_j, f_i < f_j - TIE at every angle. So j is ahead of i,
   and i is not ahead of j.
2. Let T be the k-th largest lower bound, or -inf if there are fewer than k documents. Let Y be the labelled documents
   with upper_y >= T. The rank of any other is worse than k at every angle, because the k documents whose lower bounds
   reach T are ahead of it. If Y is empty, the interval contributes nothing.
3. Let W be T or the smallest lower_y of Y, whichever is larger, and V the largest upper_y of Y. A document with
   upper_j < W is dropped. A document with lower_j > V is ahead of all of Y at every angle: it is counted, and dropped.
   All others are kept. These include all of Y, because upper_y reaches both T and lower_y, and so W; and no other
   labelled document, because its upper bound is below T.
4. No rank up to k changes. Let j be a document with upper_j < W, and y in Y. If lower_y >= W, j is never ahead of y.
   If lower_y < W, then W is T, and there are at least k documents whose lower bounds reach T (if T is -inf, no lower_y
   is below W). They are ahead of j by more than TIE, so where j is ahead of y, they are ahead of y too. The document y
   is not one of them, and they are kept or counted, because their upper bounds reach W. So the rank of y is worse than
   k with and without j.
5. So for every y in Y: where its rank is at most k, it is 1 + the counted documents + the kept ones ahead of it; where
   it is worse than k, so is this number.
6. Halves of a bisected interval begin with the kept documents, and their labelled documents are those of Y. The counted
   ones stay ahead of all of these, so steps 2 to 4 hold again with k - counted in place of k: wherever k - counted of
   the kept documents are ahead of y, k documents are. If k or more are counted, no label can be in the top k, and the
   half contributes nothing.

Three more facts:

- Of the unmoved documents only the k + 1 best are candidates (``scan.top_k`` finds them). Let u be another one. Where u
  is ahead of y, so are these k + 1, or k of them if y is one: the rank of y is worse than k with and without u. A
  labelled unmoved document that is not among them has k + 1 documents ahead of it everywhere.
- ``first_candidates`` does this for the whole range of angles, with a T of the unmoved and labelled documents only, all
  of which it keeps. Steps 2 to 4 hold for every T that k lower bounds reach; a smaller one keeps more. Keeping too many
  changes nothing, so bounds need not be tight.
- Under NUDGE-M a base curve is subtracted from all curves before their ranges are compared, which changes no difference
  of two curves; and scores can be large. Step 1 holds in spite of rounding. Let i and j be two documents whose ranges
  are close. If one moves, its error bound is at least 1e-6 of both scores, far more than rounding. If neither moves,
  their difference is (s_i - s_j) cos(phi), smallest at the upper end of the interval. Where both scores are at most
  10^4 there, rounding errors are below ten times TIE. Where one is larger, s_i and s_j are equal, or so far apart in
  float64 that the difference exceeds TIE; and rounding is monotone, so ranges that are apart are in the right order.
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
    """(m + 1,), bound on the error of a score curve: of float32 scores for movers, of exact ones for the others."""
    rays: bool
    """True for NUDGE-M."""
    last_stop: float
    """The angle beyond which nothing changes."""
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

    mover: Ints
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
    mover, label = np.empty(size, np.int64), np.empty(size, np.int64)
    while n < len(rows) and rows[n] >= 0:
        mover[n], label[n] = m, -1
        n += 1
    n_unmoved = n
    for y in range(first, problem.first_label[query + 1]):
        if problem.label_mover[y] >= 0:
            mover[n], label[n] = problem.label_mover[y], y
            n += 1
        else:
            for c in range(n_unmoved):
                if rows[c] == problem.label_row[y]:
                    label[c] = y
    # Under NUDGE-M the scores of all documents grow alike with the angle, and only their differences separate them.
    # These are curves of the same family, because all documents have the same stop.
    base_s, base_z = _base_curve(mover[n_unmoved:n], s32, z32) if problem.rays else (0.0, 0.0)
    first, whole = np.arange(n), interval(0.0, problem.last_stop)
    curves = _score_curves(mover[:n], label[:n], s32, z32, scores, base_s, base_z)
    lowest, _ = _label_window(curves, first, _bound_curves(problem, curves, first, problem.k, whole))
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
        reaches[mover[c]] = False
    others = np.flatnonzero(reaches)
    mover, label = np.append(mover[:n], others), np.append(label[:n], np.full(len(others), -1))
    return _score_curves(mover, label, s32, z32, scores, base_s, base_z)


@compiled()
def _base_curve(labelled, s32, z32):
    """Return the curve of the labelled mover with the smallest amplitude.

    A larger one would widen the ranges of all others. Above an amplitude of 10^3 there is none: rounding the
    subtraction could then exceed the error bounds.
    """
    smallest, base_s, base_z = 1e6, 0.0, 0.0
    for j in labelled:
        s, z = np.float64(s32[j]), np.float64(z32[j])
        if s * s + z * z < smallest:
            smallest, base_s, base_z = s * s + z * z, s, z
    return base_s, base_z


@compiled()
def _score_curves(mover, label, s32, z32, scores, base_s, base_z):
    """Return the score curves of these documents; unmoved ones come first, in the order of ``scores``."""
    n, m = len(mover), len(s32)
    s, z, exact = np.empty(n), np.zeros(n), np.empty(n, np.bool_)
    for c in range(n):
        exact[c] = mover[c] == m
        if exact[c]:
            s[c] = scores[c]
        else:
            s[c], z[c] = s32[mover[c]], z32[mover[c]]
    return ScoreCurves(mover, label, s, z, exact, np.empty(n), np.empty(n), base_s, base_z)


@compiled()
def prune(problem, curves, parents, span, n_ahead, kept):
    """Write the candidates that can matter on an interval into ``kept``.

    ``n_ahead`` documents that are not among the ``parents`` are ahead of all labelled ones. Returns the number of
    candidates kept, and the number of documents ahead of all labelled ones that are not among them. If no labelled
    document can be in the top k, the first number is 0, and the second has no meaning.
    """
    if n_ahead >= problem.k:
        return 0, n_ahead
    threshold = _bound_curves(problem, curves, parents, problem.k - n_ahead, span)
    lowest, highest = _label_window(curves, parents, threshold)
    size = 0
    for c in parents:
        if curves.lower[c] > highest:
            n_ahead += 1
        elif curves.upper[c] >= lowest:
            kept[size] = c
            size += 1
    return size, n_ahead


@compiled()
def _bound_curves(problem, curves, candidates, k, span):
    """Set the bounds of the candidates on an interval; return the k-th largest lower bound, T."""
    heap = np.full(k, -np.inf)
    for c in candidates:
        j = curves.mover[c]
        s, z = curves.s[c] - curves.base_s, curves.z[c] - curves.base_z
        smallest, largest = curve_range(s, z, problem.stop[j], problem.cos_stop[j], problem.sin_stop[j], span)
        curves.lower[c], curves.upper[c] = smallest - problem.error[j], largest + problem.error[j]
        if curves.lower[c] > heap[0]:
            _replace_smallest(heap, curves.lower[c])
    return heap[0]


@compiled()
def _label_window(curves, candidates, threshold):
    """Return W and V, the window of the labelled documents that may reach T; (inf, -inf) if there are none."""
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
