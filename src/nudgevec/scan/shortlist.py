"""What a scan has found so far: documents that may be among the best of their queries, and the floor they set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import everywhere
from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import sorted_places
from nudgevec.arithmetic.tables import Layout, Target, entries
from nudgevec.engines.base import kth_in_line

Scores = Callable[[Ints, Ints], Floats]
"""Of queries and rows, pair by pair."""
Precedence = Callable[[Ints], npt.NDArray[Any]]
"""Sort keys of rows."""

# More documents than this are not kept in mind to be scored at the end.
_MOST_KEPT = 1 << 20
# Lists are not longer than so many times what is asked for: many documents with nearly the same score are told apart.
_MOST_LISTED = 2
# Scores sorted or laid out at a time, by one thread.
_SORTED = 1 << 15


@dataclass(frozen=True)
class Nearest:
    """The best documents of every query, best first."""

    row: Ints
    score: Floats


@dataclass(frozen=True)
class Candidates:
    """The documents of every query that may be among its best, in no order, and what their scores lie between.

    Lists that are not full end in row -1, with scores of minus infinity. ``scores`` tells the exact ones of queries and
    rows; where there is none, the bounds are exact.
    """

    row: Ints
    low: Floats
    high: Floats
    scores: Scores | None

    def exact(self, query: Ints, place: Ints) -> Floats:
        """The scores of some of them."""
        return self.low[query, place] if self.scores is None else self.scores(query, self.row[query, place])


class Bounded(NamedTuple):
    """Documents found, flat, and what their scores lie between."""

    query: Ints
    row: Ints
    low: Floats
    high: Floats

    def where(self, keep: npt.NDArray[np.bool_]) -> Bounded:
        return self.some(np.flatnonzero(keep))

    def some(self, which: Ints) -> Bounded:
        return Bounded(self.query[which], self.row[which], self.low[which], self.high[which])


def kth_score(score: Floats, k: int) -> Floats:
    """The k-th highest score of each query, minus infinity where there are fewer."""
    return kth_in_line(score, k) if score.shape[1] >= k else np.full(len(score), -np.inf)


class Shortlist:
    """Documents found on the way that may be among the best, and the floor: what k documents of each query reach.

    Exact scores are left for the end, when most of them are known not to be needed. The floor is raised by the first
    documents of a query, and then when there are enough new ones: every time would cost more than the slightly lower
    floors in between.
    """

    def __init__(
        self,
        found: Nearest,
        scores: Scores | None,
        precedence: Precedence | None,
        patience: float,
        floor: Floats | None,
    ) -> None:
        self.found = found
        self.scores, self.precedence = scores, precedence
        self.lowest: np.float64 | Floats = np.float64(-np.inf)
        # The k highest scores that are sure, the lowest of them first.
        self.draft = np.array(found.score[:, ::-1])
        if floor is not None:
            self.leave_out_below(floor)
        self.floor = self.draft[:, 0] if found.row.shape[1] else np.full(len(found.row), np.inf)
        # Queries whose floor has been raised. Where there is patience for many, the first need not raise it either.
        self.begun = np.full(len(found.row), patience >= 1)
        self.room = patience * found.row.size
        self.new: list[Bounded] = []
        self.kept: list[Bounded] = []

    def leave_out_below(self, floor: Floats) -> None:
        """Documents below this floor need not be found from now on."""
        self.lowest = floor[:, None]
        np.maximum(self.draft, self.lowest, out=self.draft)

    def add(self, some: Bounded) -> None:
        if len(some.query) == 0:
            return
        self.new.append(some)
        if _count(self.new) >= self.room or not self.begun[some.query].any():
            self._raise_floor()
        if _count(self.kept) > _MOST_KEPT:
            self._weed()
            # Many documents with nearly the same score: nothing but their exact scores will tell them apart.
            if 2 * _count(self.kept) > _MOST_KEPT:
                self.settle()

    def settle(self) -> None:
        """Decide about everything found so far."""
        self._gather()
        for query, row, low, _ in self.kept:
            score = low if self.scores is None else self.scores(query, row)
            _merge(self.found, query, row, score, self.precedence)
            np.maximum(self.found.score[:, ::-1], self.lowest, out=self.draft)
        self.kept = []

    def candidates(self) -> Candidates:
        """All that may be among the best."""
        self._gather()
        longest = max((int(np.bincount(kept.query).max(initial=0)) for kept in self.kept), default=0)
        if longest > _MOST_LISTED * self.found.row.shape[1]:
            self.settle()
        query, place = entries(self.found.row >= 0)
        score = self.found.score[query, place]
        settled = Bounded(query, self.found.row[query, place], score, score)
        listed = _joined([settled, *self.kept])
        order = sorted_places(listed.query)
        count = np.bincount(listed.query, minlength=len(self.found.row))
        end, shape = np.cumsum(count), (len(count), int(count.max(initial=0)))
        tables = np.empty(shape, np.int64), np.empty(shape), np.empty(shape)

        def fill(part: slice) -> None:
            some = order[end[part.start] - count[part.start] : end[part.stop - 1]]
            layout = Layout(np.repeat(np.arange(part.stop - part.start), count[part]), part.stop - part.start, shape[1])
            for table, values, blank in zip(tables, listed[1:], (-1, -np.inf, -np.inf), strict=True):
                table[part] = layout.table(values[some], blank)

        everywhere(fill, len(count), _at_a_time(shape[1]))
        return Candidates(*tables, self.scores)

    def _gather(self) -> None:
        """Have what is still good in one place."""
        if self.kept:
            self._raise_floor()
            self._weed()
        else:
            # All of it is new: the engine has a floor of its own, which it has used already.
            self.kept, self.new = [_joined(self.new)] if self.new else [], []

    def _raise_floor(self) -> None:
        if self.new:
            new, self.new = _joined(self.new), []
            self.begun[new.query] = True
            sure = new.where(new.low > self.floor[new.query])
            _raise(self.draft, sure.query, sure.low)
            self.kept.append(new.where(new.high >= self.floor[new.query]))

    def _weed(self) -> None:
        """Forget what has fallen below the floor."""
        kept = _joined(self.kept)
        may = kept.high >= self.floor[kept.query]
        self.kept = [kept.where(may)]


def _count(parts: list[Bounded]) -> int:
    return sum(len(part.query) for part in parts)


def _joined(parts: list[Bounded]) -> Bounded:
    """All of at least one part, without a copy where only one of them has something in it."""
    some = [part for part in parts if len(part.query)] or parts[:1]
    return some[0] if len(some) == 1 else Bounded(*(np.concatenate(column) for column in zip(*some, strict=True)))


def _raise(draft: Floats, query: Ints, score: Floats) -> None:
    """Put new scores among the highest of their queries, in place."""
    count = np.bincount(query, minlength=len(draft))
    changed = np.flatnonzero(count)
    count = count[changed]
    end = np.cumsum(count)
    score = score[sorted_places(query)]

    def keep_highest(part: slice) -> None:
        lines, some = changed[part], count[part]
        layout = Layout(np.repeat(np.arange(len(lines)), some), len(lines))
        new = layout.table(score[end[part.start] - some[0] : end[part.stop - 1]], -np.inf)
        # Short lines are sorted faster than parted.
        draft[lines] = np.sort(np.concatenate([draft[lines], new], axis=1), axis=1)[:, new.shape[1] :]

    everywhere(keep_highest, len(changed), _at_a_time(draft.shape[1] + int(count.max(initial=0))))


def _merge(
    found: Nearest,
    query: Ints,
    row: Ints,
    score: Floats,
    precedence: Precedence | None = None,
) -> None:
    """Put new scored documents into the lists of their queries, in place."""
    k = found.row.shape[1]
    changed, order, layout = _lines(query, len(found.row))
    rows = np.concatenate([found.row[changed], layout.table(row[order], -1)], axis=1)
    scores = np.concatenate([found.score[changed], layout.table(score[order], -np.inf)], axis=1)
    if rows.shape[1] > 4 * k:
        bar = np.partition(scores, -k, axis=1)[:, -k]
        target = Target.of(scores >= bar[:, None], np.arange(len(changed)))
        rows, scores = target.fill(rows, -1), target.fill(scores, -np.inf)

    def put_in_order(part: slice) -> None:
        if precedence is None:
            # Equal scores keep the order they come in: by row.
            best = np.argsort(-scores[part], axis=1, kind="stable")[:, :k]
        else:
            keys = precedence(rows[part].ravel()).reshape(rows[part].shape)
            best = np.lexsort((keys, -scores[part]), axis=1)[:, :k]
        found.row[changed[part]] = np.take_along_axis(rows[part], best, axis=1)
        found.score[changed[part]] = np.take_along_axis(scores[part], best, axis=1)

    everywhere(put_in_order, len(changed), _at_a_time(scores.shape[1]))


def _at_a_time(width: int) -> int:
    """How many lines of so many numbers to work on at a time."""
    return 1 + _SORTED // max(1, width)


def _lines(query: Ints, queries: int) -> tuple[Ints, Ints, Layout]:
    """The queries that new documents belong to, the documents in the order of those, and a line for each query."""
    count = np.bincount(query, minlength=queries)
    changed = np.flatnonzero(count)
    return changed, sorted_places(query), Layout(np.repeat(np.arange(len(changed)), count[changed]), len(changed))
