"""The metric of every query as an exact function of the step.

``sweep_query`` does the work for one query. It begins with the documents that can matter (``candidates``), and bisects
the range of angles until few of them are left. In such a leaf the candidates are scored exactly, in float64, and every
label is compared with every other candidate: the angles at which one gets ahead of the other have closed forms
(``crossings``). Each changes the label's rank by one, and so the metric (``_walk``).

Values of the metric are whole numbers of a small quantum, so that sums over queries do not depend on their order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numba import prange

from nudgevec.arrays import Array, Floats, Ints, Singles
from nudgevec.core.candidates import Problem, ScoreCurves, first_candidates, interval, prune
from nudgevec.core.compiling import compiled
from nudgevec.core.crossings import PIECES, TIE, divide
from nudgevec.core.exact import compilable, dot, float32_error
from nudgevec.core.paths import Paths
from nudgevec.core.scan import Scorer, TopK, as_float32, scorer
from nudgevec.errors import NudgeWarning
from nudgevec.labels import Labels
from nudgevec.metrics import Metric

# Float32 scores that exist at a time (there are two such tables, of 16 MB).
BATCH_SCORES = 1 << 22
# Candidates that are cheaper to compare than to prune further.
LEAF = 32
# Radians: narrower intervals are not bisected.
NARROW = 1e-6
# Intervals that can wait at a time.
DEPTH = 256
# Not the middle: in symmetric problems crossings lie at round angles.
BISECTION = 0.4921875
# Steps of a query that most queries stay below; the others are swept again, with space for all of their steps.
USUAL_STEPS = 64
# Seconds of CPU time and bytes for every pair of a label and a document that can cross in the top k, and the number of
# pairs above which they are announced.
PAIR_SECONDS, PAIR_BYTES = 1.2e-7, 8.0
MANY_PAIRS = 3e8


class Steps(NamedTuple):
    """The metric of every query as a step function of the angle, all queries in one list.

    Query ``query[e]`` gains ``delta[e] * quantum`` at angle ``phi[e]``; sorted by angle.
    """

    phi: Floats
    query: Ints
    delta: Ints
    at_zero: Ints
    """The value of each query at angle 0, in quanta."""
    quantum: float

    def per_query(self, phi: float) -> Floats:
        """Return the metric of every query at an angle that is no crossing."""
        before = np.searchsorted(self.phi, phi)
        # The total of a query stays below 2^53 quanta, so float64 sums of integers are exact here.
        gained = np.bincount(self.query[:before], self.delta[:before].astype(np.float64), len(self.at_zero))
        return np.asarray((self.at_zero + gained) * self.quantum, np.float64)


class _Batch(NamedTuple):
    """A batch of queries, from number ``first`` on."""

    first: int
    queries: Floats
    s32: Singles
    """Float32 scores of the starts of the movers, (q, m)."""
    z32: Singles
    """Float32 scores of their directions."""
    rows: Ints
    scores: Floats
    """The best unmoved documents of every query, (q, at least k + 1)."""


class _Output(NamedTuple):
    """The steps of some queries of a batch. The space of the t-th of them begins at ``first[t]``."""

    phi: Floats
    delta: Ints
    first: Ints
    """One more than there are queries; the last one is the end."""
    n_steps: Ints
    """The steps of every query of the batch, whether they fit into its space or not."""
    at_zero: Ints


def metric_steps(
    paths: Paths,
    queries: Floats,
    labels: Labels,
    metric: Metric,
    unmoved: TopK,
    score_with: Callable[[Singles], Scorer] = scorer,
    *,
    leaf_size: int = LEAF,
    n_queries: int | None = None,
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
    score_with : callable
        Makes a scorer of vectors: the ``scorer`` of an engine.
    leaf_size : int
        How many candidates are compared rather than pruned further. The result does not depend on it.
    n_queries : int, optional
        The number of queries whose steps will be added up, these by default.
    """
    _warn_if_large(paths, labels, len(queries), metric)
    bits = quantum_bits(n_queries or len(queries))
    problem = _problem(paths, labels, len(queries), metric, 2.0**bits)
    score_start = score_with(as_float32(problem.start / problem.divisor[:, None]))
    score_direction = score_with(as_float32(problem.direction))
    unmoved_scores = unmoved.scores if paths.rotates else unmoved.scores / paths.scale
    size, parts, at_zero = max(1, BATCH_SCORES // max(1, len(paths))), [], np.zeros(len(queries), np.int64)
    for begin in range(0, len(queries), size):
        part = slice(begin, begin + size)
        queries32 = queries[part].astype(np.float32)
        s32, z32 = score_start(queries32), score_direction(queries32)
        batch = _Batch(begin, queries[part], s32, z32, unmoved.rows[part], unmoved_scores[part])
        parts += _sweep_batch(problem, batch, leaf_size, at_zero[part])
    # There can be millions of steps: only one column at a time is in memory twice.
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    query, phi, delta = (_concatenated(column) for column in columns)
    order = np.lexsort((query, phi))
    phi = phi[order]
    query = query[order]
    delta = delta[order]
    return Steps(phi, query, delta, at_zero, 2.0**-bits)


def _concatenated(parts: list[Array]) -> Array:
    """Return the concatenation of arrays, and release them."""
    joined: Array = np.concatenate(parts)
    parts.clear()
    return joined


def _warn_if_large(paths: Paths, labels: Labels, n_queries: int, metric: Metric) -> None:
    """Warn before a sweep of many minutes. In the top k every label can cross every document, if one of them moves."""
    n_labels = np.minimum(np.bincount(labels.query, minlength=n_queries), metric.k)
    n_movers = min(len(paths), metric.k)
    n_pairs = float((n_labels * n_movers + np.minimum(n_labels, n_movers) * metric.k).sum())
    if n_pairs > MANY_PAIRS:
        message = (
            f"the exact curve of {metric} with up to {n_labels.max():,} labels per query may take about "
            f"{n_pairs * PAIR_SECONDS:,.0f} seconds of CPU time and {n_pairs * PAIR_BYTES / 1e9:,.0f} GB of memory; "
            "a smaller k or fewer validation queries take less"
        )
        warnings.warn(message, NudgeWarning, stacklevel=5)


def joined(parts: Sequence[Steps]) -> Steps:
    """Return the steps of several groups of queries as those of one; the groups have the same quantum."""
    sizes = [len(part.at_zero) for part in parts]
    first = np.repeat(np.cumsum([0, *sizes[:-1]]), [len(part.phi) for part in parts])
    phi, query, delta, at_zero = (np.concatenate([part[column] for part in parts]) for column in range(4))
    order = np.lexsort((query + first, phi))
    return Steps(phi[order], (query + first)[order], delta[order], at_zero, parts[0].quantum)


def quantum_bits(n_queries: int) -> int:
    """Return b so that sums over all queries in quanta of 2^-b fit into 64-bit integers."""
    return 62 - max(10, int(n_queries).bit_length())


def _problem(paths: Paths, labels: Labels, n_queries: int, metric: Metric, quanta: float) -> Problem:
    stop = np.append(paths.stop, paths.unmoved_stop)
    # A score curve is s cos + z sin: the errors of s (relative to the scaled start) and of z (a unit vector) add up.
    scaled = np.ones(len(paths)) if paths.rotates else paths.length / paths.scale
    # Ten times TIE keep rounding errors of ranges, and ties, on the safe side.
    error = float32_error(paths.start.shape[1]) * (scaled + 1.0) + 10 * TIE
    mover = np.searchsorted(paths.rows, labels.row)
    return Problem(
        start=compilable(paths.start),
        divisor=paths.divisor,
        direction=paths.direction,
        stop=stop,
        # cos(pi/2) is not quite 0 in float64, and a ray never stops.
        cos_stop=np.cos(stop) if paths.rotates else np.zeros(len(stop)),
        sin_stop=np.sin(stop),
        error=np.append(error, 10 * TIE),
        rays=not paths.rotates,
        # Nothing changes beyond the last stop.
        last_stop=paths.last_stop or paths.max_angle,
        first_label=np.searchsorted(labels.query, np.arange(n_queries + 1)),
        label_row=labels.row,
        label_mover=np.where(np.append(paths.rows, -1)[mover] == labels.row, mover, -1),
        share=metric.shares(labels.query, labels.weight) * quanta,
        discount=metric.discount(),
        k=metric.k,
        best_only=metric.best_only,
    )


def _sweep_batch(problem: Problem, batch: _Batch, leaf_size: int, at_zero: Ints) -> list[tuple[Ints, Floats, Ints]]:
    """Return the steps of a batch in parts of (query, phi, delta); its values at angle 0 go into ``at_zero``."""
    n, parts = len(batch.queries), []
    n_steps, todo, capacity = np.zeros(n, np.int64), np.arange(n), np.full(n, USUAL_STEPS)
    while len(todo):
        first = np.append(0, np.cumsum(capacity))
        phi, delta = np.empty(first[-1]), np.empty(first[-1], np.int64)
        _sweep_queries(problem, batch, todo, leaf_size, _Output(phi, delta, first, n_steps, at_zero))
        count = n_steps[todo]
        fits = count <= capacity
        written = np.where(fits, count, 0)
        # Of the space of every query, a part is written and the rest is not.
        lengths = np.stack([written, capacity - written], axis=1).ravel()
        is_written = np.repeat(np.tile([True, False], len(todo)), lengths)
        parts.append((batch.first + np.repeat(todo, written), phi[is_written], delta[is_written]))
        todo, capacity = todo[~fits], count[~fits]
    return parts


@compiled(parallel=True)
def _sweep_queries(problem, batch, todo, leaf_size, output):
    """Sweep the queries ``todo`` of a batch in parallel."""
    for t in prange(len(todo)):
        # The index of a parallel loop has a type of its own, for which numba would compile everything again.
        _sweep_one(problem, batch, todo[t], leaf_size, output, np.int64(t))


@compiled()
def _sweep_one(problem, batch, i, leaf_size, output, t):
    """Sweep query i of a batch; its steps go into space t of the output."""
    curves = first_candidates(problem, batch.first + i, batch.s32[i], batch.z32[i], batch.rows[i], batch.scores[i])
    space = slice(output.first[t], output.first[t + 1])
    output.n_steps[i], output.at_zero[i] = sweep_query(
        problem, curves, batch.queries[i], leaf_size, output.phi[space], output.delta[space]
    )


@compiled()
def sweep_query(problem, curves, query, leaf_size, phi, delta):
    """Write the angles at which the metric of a query changes into ``phi``, and the changes into ``delta``.

    Returns the number of steps, of which as many as fit are written, and the value at angle 0.
    """
    n, n_steps, at_zero = len(curves.s), np.int64(0), np.int64(0)
    at_angle = _with_bounds_of_its_own(curves)
    # The intervals still to do. Each has candidates, a slice of ``candidates`` that two halves of an interval share,
    # and the number of documents that are ahead of all labelled ones on it and not among the candidates.
    candidates = np.arange(2 * n + 64)
    lows, highs = np.zeros(DEPTH), np.full(DEPTH, problem.last_stop)
    starts, counts, n_aheads, depth = np.zeros(DEPTH, np.int64), np.full(DEPTH, n), np.zeros(DEPTH, np.int64), 1
    while depth:
        depth -= 1
        low, high, start, count = lows[depth], highs[depth], starts[depth], counts[depth]
        end = start + count
        candidates, span = _grown(candidates, end + count), interval(low, high)
        n_kept, n_ahead = prune(
            problem, curves, candidates[start:end], span, n_aheads[depth], candidates[end : end + count]
        )
        if n_kept == 0:
            continue
        kept, middle = candidates[end : end + n_kept], low + BISECTION * (high - low)
        divisible = n_kept > leaf_size and high - low > NARROW and depth + 2 < DEPTH
        # Bisecting may not help, for example with many equal documents. Then few are pruned at a single angle, too.
        if divisible and (4 * n_kept <= 3 * count or 2 * _count_at(problem, at_angle, kept, middle, n_ahead) <= n_kept):
            lows[depth], highs[depth], lows[depth + 1], highs[depth + 1] = middle, high, low, middle
            for half in range(depth, depth + 2):
                starts[half], counts[half], n_aheads[half] = end, n_kept, n_ahead
            depth += 2
            continue
        _score_exactly(problem, curves, kept, query)
        n_steps, value = _walk(problem, curves, kept, n_ahead, span, phi, delta, n_steps)
        if low == 0.0:
            at_zero = value
    return n_steps, at_zero


@compiled()
def _with_bounds_of_its_own(curves):
    """Return the same score curves, with other arrays for the bounds."""
    lower, upper = np.empty(len(curves.s)), np.empty(len(curves.s))
    return ScoreCurves(
        curves.mover, curves.label, curves.s, curves.z, curves.exact, lower, upper, curves.base_s, curves.base_z
    )


@compiled()
def _count_at(problem, curves, candidates, phi, n_ahead):
    """Return how many candidates can matter at a single angle."""
    count, _ = prune(problem, curves, candidates, interval(phi, phi), n_ahead, np.empty(len(candidates), np.int64))
    return count


@compiled()
def _score_exactly(problem, curves, candidates, query):
    """Replace float32 scores by exact ones."""
    for c in candidates:
        if not curves.exact[c]:
            j = curves.mover[c]
            curves.s[c] = dot(query, problem.start[j]) / problem.divisor[j]
            curves.z[c] = dot(query, problem.direction[j])
            curves.exact[c] = True


@compiled()
def _walk(problem, curves, leaf, n_ahead, span, phi, delta, n_steps):
    """Write the changes of the metric within a leaf into ``phi`` and ``delta``, from index ``n_steps`` on.

    ``n_ahead`` documents that are not in the leaf are ahead of all labelled ones. Returns the new number of steps, and
    the value where the leaf begins.
    """
    rank = np.full(len(leaf), 1 + n_ahead)
    angle, event_label, change, n_events = _rank_events(problem, curves, leaf, span, rank)
    # How many labels have each rank up to k + 1; ranks beyond are all the same.
    last = problem.k + 1
    at_rank, value = np.zeros(last + 1, np.int64), np.int64(0)
    for i in range(len(leaf)):
        if curves.label[leaf[i]] >= 0:
            at_rank[rank[i]] += 1
            value += _quanta(problem, curves.label[leaf[i]], rank[i])
    if problem.best_only:
        value = _best(problem, at_rank)
    at_start = written = value
    for e in range(n_events):
        i = event_label[e]
        # While events at the same angle are applied, a rank may be below 1 for a moment: rank 0 is worth nothing.
        before = min(max(rank[i], 0), last)
        rank[i] += change[e]
        after = min(max(rank[i], 0), last)
        at_rank[before] -= 1
        at_rank[after] += 1
        value += _quanta(problem, curves.label[leaf[i]], after) - _quanta(problem, curves.label[leaf[i]], before)
        if e + 1 < n_events and angle[e + 1] == angle[e]:
            continue
        if problem.best_only:
            value = _best(problem, at_rank)
        if value != written:
            if n_steps < len(phi):
                phi[n_steps], delta[n_steps] = angle[e], value - written
            n_steps += 1
            written = value
    return n_steps, at_start


@compiled()
def _rank_events(problem, curves, leaf, span, rank):
    """Return the angles at which the rank of a label changes, ascending, with the position of the label in the leaf,
    the change, and the number of these events.

    Adds to ``rank`` the number of documents of the leaf that are ahead of each label where the interval begins. All
    ranks beyond k count as k + 1. Changes that are worth nothing are merged into later ones: without them there are
    hardly more events than steps.
    """
    angle, label, change, n = np.empty(64), np.empty(64, np.int64), np.empty(64, np.int64), np.int64(0)
    begins, is_ahead = np.empty(PIECES), np.empty(PIECES, np.bool_)
    for i in range(len(leaf)):
        y = leaf[i]
        if curves.label[y] < 0:
            continue
        first, most = n, n + PIECES * len(leaf)
        angle, label, change = _grown(angle, most), _grown(label, most), _grown(change, most)
        for j in leaf:
            # The bounds include the error bounds, and so ties: where they are apart, the order is certain.
            if j == y or curves.upper[j] < curves.lower[y]:
                continue
            if curves.lower[j] > curves.upper[y]:
                rank[i] += 1
                continue
            pieces = divide(problem, curves, j, y, span, begins, is_ahead)
            rank[i] += is_ahead[0]
            for piece in range(1, pieces):
                if is_ahead[piece] != is_ahead[piece - 1]:
                    angle[n], label[n], change[n] = begins[piece], i, 1 if is_ahead[piece] else -1
                    n += 1
        _sort_by_angle(angle[first:n], label[first:n], change[first:n])
        n = first + _merge_changes(problem, rank[i], angle[first:n], change[first:n])
        rank[i] = min(rank[i], problem.k + 1)
    _sort_by_angle(angle[:n], label[:n], change[:n])
    return angle, label, change, n


@compiled()
def _merge_changes(problem, rank, angle, change):
    """Merge changes of a label's rank that are worth nothing into the next one; return how many changes are left."""
    n, last = 0, problem.k + 1
    before = min(rank, last)
    for e in range(len(angle)):
        rank += change[e]
        after = min(max(rank, 0), last)
        if after != before and (problem.best_only or problem.discount[after] != problem.discount[before]):
            angle[n], change[n] = angle[e], after - before
            n, before = n + 1, after
    return n


@compiled()
def _sort_by_angle(angle, label, change):
    """Sort events in place (Shell's method, which compiles in a tenth of the time of ``np.argsort``)."""
    gap = len(angle) // 2
    while gap:
        for i in range(gap, len(angle)):
            one, its_label, its_change, at = angle[i], label[i], change[i], i
            while at >= gap and angle[at - gap] > one:
                angle[at], label[at], change[at] = angle[at - gap], label[at - gap], change[at - gap]
                at -= gap
            angle[at], label[at], change[at] = one, its_label, its_change
        gap = 1 if gap == 2 else gap * 5 // 11


@compiled()
def _quanta(problem, label, rank):
    """Return what a label contributes to the metric at a rank, in quanta."""
    return np.int64(np.rint(problem.share[label] * problem.discount[rank]))


@compiled()
def _best(problem, at_rank):
    """Return the value of the best rank that a label has. All labels have the same share."""
    for rank in range(1, problem.k + 1):
        if at_rank[rank]:
            return _quanta(problem, 0, rank)
    return np.int64(0)


@compiled()
def _grown(array, size):
    """Return the array, or a copy with at least this size.

    Arrays start small: on some machines fresh memory takes longer than the work that is done in it.
    """
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    for i in range(len(array)):
        larger[i] = array[i]
    return larger
