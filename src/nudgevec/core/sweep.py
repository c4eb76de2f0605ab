"""The metric of every query as an exact function of the step.

``sweep_query`` does the work for one query. It decides which documents can matter, and why that is safe:

1. Every document has a score curve (``paths``). On an interval of angles the range of each curve is known in closed
   form (``_range``), up to the error bound of its float32 scores.
2. Let T be the k-th largest lower bound on the interval. At every angle of it at least k documents score T or more. A
   label whose upper bound is below T is nowhere in the top k. An interval without other labels contributes nothing.
3. The other labels lie between the least of their lower bounds and the largest of their upper bounds. A document that
   is always below that window is never ahead of a label and is dropped. A document that is always above it is always
   ahead of all labels: it is counted, and dropped. A document that is always below T is dropped too (``_prune``).
4. This changes no rank up to k. Suppose a document below T is ahead of a label somewhere: then the k documents whose
   lower bounds reach T are ahead of the label there as well, and are kept or counted, so its rank is worse than k with
   and without the dropped one. Keeping too many documents changes nothing at all, so bounds need not be tight.
5. The interval is bisected until few candidates are left. In such a leaf the candidates are scored exactly, in
   float64, and every label is compared with every other candidate (``_compare``): the angles at which one gets ahead of
   the other have closed forms. Each changes the label's rank by one, and so the metric (``_walk``).

A document whose score is within ``TIE`` below that of a label counts as ahead of it (the paper asks for a strict
inequality). "Ahead" is f_j - f_y + TIE >= 0 at every angle, and a crossing is a root of that function, on the whole
path of both documents; so neither depends on how the range of angles was bisected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from nudgevec.arrays import Array, Floats, Ints, Singles
from nudgevec.core.exact import compilable, dot, float32_error
from nudgevec.core.paths import Paths
from nudgevec.core.scan import TopK, single
from nudgevec.labels import Labels
from nudgevec.metrics import Metric

# Scores are inner products of vectors of about unit length in float64: above their rounding errors, and far below any
# difference that float32 vectors can express.
TIE = 1e-12
# Float32 scores that exist at a time (there are two such tables), to bound memory.
BATCH_SCORES = 1 << 23
# Candidates that are cheaper to compare than to prune further.
LEAF = 32
# Bisecting is given up after so many bisections in a row that pruned less than a quarter of the candidates.
PATIENCE = 4
# Intervals that can wait at a time.
DEPTH = 256
# Not the middle: in symmetric problems crossings lie at round angles.
BISECTION = 0.4921875


class Movers(NamedTuple):
    """What a sweep needs of the paths, the same for all queries. ``stop`` and the like end with one entry for unmoved
    documents."""

    start: Array
    unit: Floats
    direction: Floats
    stop: Floats
    cos_stop: Floats
    sin_stop: Floats
    error: Floats
    """Bound on the error of a float32 score curve."""
    rays: bool
    """True for NUDGE-M."""


class Gains(NamedTuple):
    """How a metric is computed from ranks, in integer units."""

    k: int
    discount: Floats
    """Value of each rank; 0 from rank k + 1 on."""
    share: Floats
    """What each label contributes at a value of 1, in units."""
    best_only: bool
    """Only the best-ranked label of a query counts."""


class Answers(NamedTuple):
    """The labels of all queries, sorted by query."""

    row: Ints
    mover: Ints
    """The number of the document among the movers, or -1."""
    first_label: Ints
    """The first label of every query, and the number of labels."""


class Curves(NamedTuple):
    """The score curves of one query: of its labels, of the best unmoved documents, and of movers that can matter."""

    mover: Ints
    """The number of the document among the movers, or -1."""
    label: Ints
    """The number of its label, or -1."""
    s: Floats
    z: Floats
    stop: Floats
    cos_stop: Floats
    sin_stop: Floats
    error: Floats
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


class Steps(NamedTuple):
    """The metric of every query as a step function of the angle, all queries in one list.

    Query ``query[e]`` gains ``delta[e] * unit`` at angle ``phi[e]``; sorted by angle.
    """

    phi: Floats
    query: Ints
    delta: Ints
    at_zero: Ints
    """The value of each query at angle 0, in units."""
    unit: float

    def per_query(self, phi: float) -> Floats:
        """Return the metric of every query at an angle that is no crossing."""
        before = np.searchsorted(self.phi, phi)
        # The total of a query stays below 2^53 units, so float64 sums of integers are exact here.
        gained = np.bincount(self.query[:before], self.delta[:before].astype(np.float64), len(self.at_zero))
        return np.asarray((self.at_zero + gained) * self.unit, np.float64)


def movers_of(paths: Paths) -> Movers:
    """Return the arrays of the paths that a sweep needs."""
    stop = np.append(paths.stop, paths.unmoved_stop)
    # cos(pi/2) is not quite 0 in float64, and a ray never stops.
    cos_stop = np.cos(stop) if paths.rotates else np.zeros(len(stop))
    # A score curve is s cos + z sin: the errors of s (relative to the scaled start) and of z (a unit vector) add up.
    scaled = np.ones(len(paths)) if paths.rotates else paths.length / paths.scale
    error = float32_error(paths.start.shape[1]) * (scaled + 1.0) + 10 * TIE
    return Movers(
        compilable(paths.start),
        paths.unit,
        paths.direction,
        stop,
        cos_stop,
        np.sin(stop),
        np.append(error, 10 * TIE),
        not paths.rotates,
    )


def sweep(
    paths: Paths,
    queries: Floats,
    labels: Labels,
    metric: Metric,
    unmoved: TopK,
    product: Callable[[Singles, Singles], Singles] = lambda queries, vectors: queries @ vectors.T,
    *,
    leaf: int = LEAF,
) -> Steps:
    """Return the metric of every query as a step function.

    Parameters
    ----------
    paths : Paths
        The documents that move.
    queries : array of shape (q, d)
        Queries of length at most 1.
    labels : Labels
        Their relevant labels; every query has at least one.
    metric : Metric
        What to compute.
    unmoved : TopK
        The best ``metric.k + 1`` or more unmoved documents of every query.
    product : callable
        Returns the float32 inner products of queries and vectors.
    leaf : int
        How many candidates are compared rather than pruned further. The result does not depend on it.
    """
    movers, bits = movers_of(paths), unit_bits(len(queries))
    start32, direction32 = single(movers.start / movers.unit[:, None]), single(movers.direction)
    share = metric.shares(labels.query, labels.weight) * 2.0**bits
    gains = Gains(metric.k, metric.discount(), share, metric.best_only)
    mover = np.searchsorted(paths.rows, labels.row)
    mover = np.where(np.append(paths.rows, -1)[mover] == labels.row, mover, -1)
    first_label = np.searchsorted(labels.query, np.arange(len(queries) + 1))
    answers = Answers(labels.row, mover, first_label)
    scores = unmoved.scores if paths.rotates else unmoved.scores / paths.scale
    size, parts = max(1, BATCH_SCORES // max(1, len(paths))), []
    for begin in range(0, len(queries), size):
        batch = slice(begin, begin + size)
        asked = queries[batch].astype(np.float32)
        s32, z32 = product(asked, start32), product(asked, direction32)
        found = TopK(unmoved.rows[batch], scores[batch])
        parts.append(_sweep_batch(movers, queries[batch], begin, s32, z32, found, gains, answers, paths.end, leaf))
    query, phi, delta, at_zero = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((query, phi))
    return Steps(phi[order], query[order], delta[order], at_zero, 2.0**-bits)


def unit_bits(n_queries: int) -> int:
    """Return b so that sums over all queries in units of 2^-b fit into 64-bit integers."""
    return 62 - max(10, int(n_queries).bit_length())


def _sweep_batch(
    movers: Movers,
    queries: Floats,
    first: int,
    s32: Singles,
    z32: Singles,
    unmoved: TopK,
    gains: Gains,
    answers: Answers,
    end: float,
    leaf: int,
) -> tuple[Ints, Floats, Ints, Ints]:
    """Return (query, phi, delta) of all steps of some queries, from number ``first`` on, and their values at angle 0."""
    n, room = len(queries), 64
    counts, at_zero = np.zeros(n, np.int64), np.zeros(n, np.int64)
    todo, parts = np.arange(n), []
    while len(todo):
        phi, delta = np.empty((len(todo), room)), np.empty((len(todo), room), np.int64)
        _sweep_queries(
            todo, movers, queries, first, s32, z32, unmoved, gains, answers, end, leaf, phi, delta, counts, at_zero
        )
        # Queries with more steps than there is room for are swept again, with more room.
        fits = counts[todo] <= room
        taken = (np.arange(room) < counts[todo][:, None]) & fits[:, None]
        parts.append((first + np.repeat(todo, taken.sum(axis=1)), phi[taken], delta[taken]))
        todo, room = todo[~fits], int(counts.max())
    query, phi, delta = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return query, phi, delta, at_zero


@njit(parallel=True, cache=True)
def _sweep_queries(  # type: ignore[no-untyped-def]
    todo, movers, queries, first, s32, z32, unmoved, gains, answers, end, leaf, phi, delta, counts, at_zero
):
    """Sweep some queries in parallel; write their steps into the rows of ``phi`` and ``delta``, and how many they are."""
    for t in prange(len(todo)):
        i = todo[t]
        curves = _curves(movers, s32[i], z32[i], unmoved.rows[i], unmoved.scores[i], answers, first + i, gains.k, end)
        counts[i], at_zero[i] = sweep_query(queries[i], movers, curves, gains, end, leaf, phi[t], delta[t])


@njit(cache=True)
def _curves(movers, s32, z32, rows, scores, answers, query, k, end):  # type: ignore[no-untyped-def]
    """Return the score curves of one query, without movers that can be seen not to matter at any angle.

    A label that is no mover and not among the best unmoved documents is never in the top k.
    """
    m = len(s32)
    mover, label, n = np.empty(m + len(rows), np.int64), np.empty(m + len(rows), np.int64), 0
    for place in range(len(rows)):
        if rows[place] >= 0:
            mover[n], label[n] = -1, -1
            n += 1
    listed = n
    for number in range(answers.first_label[query], answers.first_label[query + 1]):
        if answers.mover[number] >= 0:
            mover[n], label[n] = answers.mover[number], number
            n += 1
        else:
            for place in range(listed):
                if rows[place] == answers.row[number]:
                    label[place] = number
    # Under NUDGE-M scores of all documents grow alike with the angle, and only their differences tell much. They are
    # curves of the same family, because all documents have the same stop.
    base_s = base_z = 0.0
    if movers.rays and n > listed:
        base_s, base_z = np.float64(s32[mover[n - 1]]), np.float64(z32[mover[n - 1]])
    known = _gathered(movers, s32, z32, scores, mover[:n], label[:n], listed, base_s, base_z)
    whole = _interval(0.0, end)
    heap, bar = np.full(k, -np.inf), np.inf
    for c in range(n):
        low, _ = _bounds(known, c, whole)
        if low > heap[0]:
            _replace_smallest(heap, low)
    for c in range(n):
        low, high = _bounds(known, c, whole)
        if label[c] >= 0 and high >= heap[0]:
            bar = min(bar, max(low, heap[0]))
    is_label = np.zeros(m, np.bool_)
    for c in range(listed, n):
        is_label[mover[c]] = True
    for j in range(m):
        if not is_label[j]:
            _, high = _range(
                s32[j] - base_s, z32[j] - base_z, movers.stop[j], movers.cos_stop[j], movers.sin_stop[j], whole
            )
            if high + movers.error[j] >= bar:
                mover[n], label[n] = j, -1
                n += 1
    return _gathered(movers, s32, z32, scores, mover[:n], label[:n], listed, base_s, base_z)


@njit(cache=True)
def _gathered(movers, s32, z32, scores, mover, label, listed, base_s, base_z):  # type: ignore[no-untyped-def]
    """Return the curves of these documents, of which the first ``listed`` are unmoved."""
    n, m = len(mover), len(s32)
    s, z = np.empty(n), np.zeros(n)
    stop, cos_stop, sin_stop, error = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    for c in range(n):
        j = mover[c] if c >= listed else m
        stop[c], cos_stop[c], sin_stop[c], error[c] = (
            movers.stop[j],
            movers.cos_stop[j],
            movers.sin_stop[j],
            movers.error[j],
        )
        if c < listed:
            s[c] = scores[c]
        else:
            s[c], z[c] = s32[j], z32[j]
    return Curves(mover, label, s, z, stop, cos_stop, sin_stop, error, base_s, base_z)


@njit(cache=True)
def sweep_query(query, movers, curves, gains, end, leaf, phi, delta):  # type: ignore[no-untyped-def]
    """Write the angles at which the metric of a query changes into ``phi``, and the changes into ``delta``.

    Returns the number of steps, of which those that there is room for are written, and the value at angle 0.
    """
    n, n_steps, at_zero = len(curves.s), 0, 0
    lower, upper, exact = np.empty(n), np.empty(n), curves.mover < 0
    # The intervals still to do. Each has candidates, a slice of ``candidates`` that two halves of an interval share,
    # and ``ahead``, how many documents are ahead of all labels on it and not among the candidates.
    candidates = np.arange(2 * n + 64)
    lows, highs, starts, counts = np.zeros(DEPTH), np.full(DEPTH, end), np.zeros(DEPTH, np.int64), np.full(DEPTH, n)
    aheads, patiences, depth = np.zeros(DEPTH, np.int64), np.full(DEPTH, PATIENCE), 1
    while depth:
        depth -= 1
        low, high, start, count = lows[depth], highs[depth], starts[depth], counts[depth]
        own = start + count
        candidates = _room_for(candidates, own + count)
        span = _interval(low, high)
        kept, ahead = _prune(
            curves, candidates[start:own], span, gains.k, aheads[depth], lower, upper, candidates[own : own + count]
        )
        if kept == 0:
            continue
        patience = patiences[depth] - 1 if 4 * kept > 3 * count else PATIENCE
        if kept > leaf and patience > 0 and depth + 2 < DEPTH:
            middle = low + BISECTION * (high - low)
            lows[depth], highs[depth], lows[depth + 1], highs[depth + 1] = middle, high, low, middle
            for half in range(depth, depth + 2):
                starts[half], counts[half], aheads[half], patiences[half] = own, kept, ahead, patience
            depth += 2
            continue
        left = candidates[own : own + kept]
        for c in left:
            if not exact[c]:
                j = curves.mover[c]
                curves.s[c], curves.z[c] = dot(query, movers.start[j]) / movers.unit[j], dot(query, movers.direction[j])
                exact[c] = True
        n_steps, value = _walk(curves, left, ahead, lower, upper, span, gains, end, phi, delta, n_steps)
        if low == 0.0:
            at_zero = value
    return n_steps, at_zero


@njit(cache=True)
def _room_for(array, size):  # type: ignore[no-untyped-def]
    """Return the array, or a larger copy of it with at least this size."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger


@njit(cache=True)
def _interval(low, high):  # type: ignore[no-untyped-def]
    return Interval(low, high, math.cos(low), math.sin(low), math.cos(high), math.sin(high))


@njit(cache=True)
def _range(s, z, stop, cos_stop, sin_stop, span):  # type: ignore[no-untyped-def]
    """Return the smallest and largest value of a curve on an interval.

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


@njit(cache=True)
def _bounds(curves, c, span):  # type: ignore[no-untyped-def]
    """Return what a curve stays between on an interval, errors included, after subtracting the base."""
    smallest, largest = _range(
        curves.s[c] - curves.base_s,
        curves.z[c] - curves.base_z,
        curves.stop[c],
        curves.cos_stop[c],
        curves.sin_stop[c],
        span,
    )
    return smallest - curves.error[c], largest + curves.error[c]


@njit(cache=True)
def _prune(curves, parents, span, k, ahead, lower, upper, kept):  # type: ignore[no-untyped-def]
    """Write the candidates that can matter on an interval into ``kept``, and all bounds into ``lower``, ``upper``.

    ``ahead`` other documents are ahead of all labels. Returns the number of candidates kept (0 if no label can be in
    the top k), and of documents ahead of all labels that are not among them. The module docstring says why this is
    safe.
    """
    if ahead >= k:
        return 0, ahead
    heap = np.full(k - ahead, -np.inf)
    for c in parents:
        lower[c], upper[c] = _bounds(curves, c, span)
        if lower[c] > heap[0]:
            _replace_smallest(heap, lower[c])
    lowest, highest = np.inf, -np.inf
    for c in parents:
        if curves.label[c] >= 0 and upper[c] >= heap[0]:
            lowest, highest = min(lowest, lower[c]), max(highest, upper[c])
    lowest, size = max(lowest, heap[0]), 0
    if highest == -np.inf:
        return 0, ahead
    for c in parents:
        if lower[c] > highest:
            ahead += 1
        elif upper[c] >= lowest:
            kept[size] = c
            size += 1
    return size, ahead


@njit(cache=True)
def _replace_smallest(heap, value):  # type: ignore[no-untyped-def]
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


@njit(cache=True)
def _walk(curves, leaf, n_ahead, lower, upper, span, gains, end, phi, delta, n_steps):  # type: ignore[no-untyped-def]
    """Write the changes of the metric within a leaf into ``phi`` and ``delta``, from index ``n_steps`` on.

    ``n_ahead`` documents that are not in the leaf are ahead of all labels. Returns the new number of steps, and the value
    where the leaf begins.
    """
    labels, n_labels = np.empty(len(leaf), np.int64), 0
    for c in leaf:
        if curves.label[c] >= 0:
            labels[n_labels] = c
            n_labels += 1
    labels = labels[:n_labels]
    rank = np.full(n_labels, 1 + n_ahead)
    # The rank events: at ``angle[e]`` the rank of label ``label[e]`` changes by ``change[e]``.
    angle, label, change, n = np.empty(64), np.empty(64, np.int64), np.empty(64, np.int64), 0
    crossing, ahead = np.empty(8), np.empty(8, np.bool_)
    for number in range(n_labels):
        y = labels[number]
        for j in leaf:
            if j == y or upper[j] < lower[y]:
                continue
            if lower[j] > upper[y]:
                rank[number] += 1
                continue
            pieces = _compare(curves, j, y, span, end, crossing, ahead)
            rank[number] += ahead[0]
            angle, label, change = _room_for(angle, n + 8), _room_for(label, n + 8), _room_for(change, n + 8)
            for piece in range(1, pieces):
                if ahead[piece] != ahead[piece - 1]:
                    angle[n], label[n] = crossing[piece], number
                    change[n] = 1 if ahead[piece] else -1
                    n += 1
    at_rank = np.zeros(gains.k + 2, np.int64)
    value = _value(curves, labels, rank, gains, at_rank)
    at_start = written = value
    order = np.argsort(angle[:n])
    for e in range(n):
        event = order[e]
        number = label[event]
        # While events at the same angle are applied, a rank may be below 1 for a moment: rank 0 is worth nothing.
        before = min(max(rank[number], 0), gains.k + 1)
        rank[number] += change[event]
        after = min(max(rank[number], 0), gains.k + 1)
        at_rank[before] -= 1
        at_rank[after] += 1
        if not gains.best_only:
            share = gains.share[curves.label[labels[number]]]
            value += _units(share, gains.discount[after]) - _units(share, gains.discount[before])
        if e + 1 < n and angle[order[e + 1]] == angle[event]:
            continue
        if gains.best_only:
            value = _best(at_rank, gains)
        if value != written:
            if n_steps < len(phi):
                phi[n_steps], delta[n_steps] = angle[event], value - written
            n_steps += 1
            written = value
    return n_steps, at_start


@njit(cache=True)
def _units(share, discount):  # type: ignore[no-untyped-def]
    """Return a contribution to the metric in units."""
    return np.int64(np.rint(share * discount))


@njit(cache=True)
def _value(curves, labels, rank, gains, at_rank):  # type: ignore[no-untyped-def]
    """Return the metric of these ranks; count in ``at_rank`` how many labels have each rank up to k."""
    total = np.int64(0)
    for number in range(len(rank)):
        position = min(rank[number], gains.k + 1)
        at_rank[position] += 1
        total += _units(gains.share[curves.label[labels[number]]], gains.discount[position])
    return _best(at_rank, gains) if gains.best_only else total


@njit(cache=True)
def _best(at_rank, gains):  # type: ignore[no-untyped-def]
    """Return the value of the best rank that a label has. All labels have the same share."""
    for place in range(1, gains.k + 1):
        if at_rank[place]:
            return _units(gains.share[0], gains.discount[place])
    return np.int64(0)


@njit(cache=True)
def _compare(curves, j, y, span, end, crossing, ahead):  # type: ignore[no-untyped-def]
    """Divide an interval into pieces in each of which j is ahead of y, or is not; return how many there are.

    ``crossing[p]`` is the angle where piece p begins, within (low, high] for p > 0. On each of three segments the lead
    f_j - f_y + TIE is a cos(phi) + b sin(phi) + c: while both documents move, when one has stopped, when both have.
    """
    first, last = min(curves.stop[j], curves.stop[y]), max(curves.stop[j], curves.stop[y])
    end_j = curves.s[j] * curves.cos_stop[j] + curves.z[j] * curves.sin_stop[j]
    end_y = curves.s[y] * curves.cos_stop[y] + curves.z[y] * curves.sin_stop[y]
    n = 0
    for segment in range(3):
        if segment == 0:
            left, right = 0.0, first
            a, b, c = curves.s[j] - curves.s[y], curves.z[j] - curves.z[y], TIE
        elif segment == 1:
            left, right = first, last
            if curves.stop[j] > curves.stop[y]:
                a, b, c = curves.s[j], curves.z[j], TIE - end_y
            else:
                a, b, c = -curves.s[y], -curves.z[y], TIE + end_j
        else:
            left, right = last, end
            a, b, c = 0.0, 0.0, TIE + end_j - end_y
        # The last segment includes the end of the range.
        if left > span.high or (right <= span.low and right < end) or left >= right:
            continue
        root_1, root_2 = _roots(a, b, c, left, right)
        for piece in range(3):
            begin = (left, root_1, root_2)[piece]
            stop = (root_1, root_2, right)[piece]
            if begin >= stop or stop <= span.low or begin > span.high:
                continue
            middle = (begin + stop) / 2
            crossing[n] = begin
            ahead[n] = a * math.cos(middle) + b * math.sin(middle) + c >= 0
            n += 1
    return n


@njit(cache=True)
def _roots(a, b, c, left, right):  # type: ignore[no-untyped-def]
    """Return the roots of a cos(phi) + b sin(phi) + c, ascending and clipped to [left, right].

    It is r cos(phi - psi) + c with r = hypot(a, b) and psi = atan2(b, a).
    """
    r = math.hypot(a, b)
    if abs(c) > r or r == 0.0:
        return left, left
    psi, half = math.atan2(b, a), math.atan2(math.sqrt((r - c) * (r + c)), -c)
    one, two = psi - half, psi + half
    one = min(max(one + 2 * math.pi if one < 0 else one, left), right)
    two = min(max(two + 2 * math.pi if two < 0 else two, left), right)
    return min(one, two), max(one, two)
