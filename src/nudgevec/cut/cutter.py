"""The cutter: for the documents that move, which of them can matter at which angles.

Intervals of angles are cut in two until their cells are small (``cutting``); straight rays beside a single label
need no cutting (``rays``). Everything is decided on float32 scores with a proven bound on their error, so a
cell can only hold too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.parallel import everywhere, ordered, slices
from nudgevec.arithmetic.rounding import error_of
from nudgevec.arithmetic.rows import Floats, Ints, Mask
from nudgevec.arithmetic.sorting import begins, distinct, sorted_places
from nudgevec.arithmetic.tables import Layout, entries, kth_largest
from nudgevec.cut.beside import ever_ahead
from nudgevec.cut.cells import Cells, exact_cells
from nudgevec.cut.columns import Columns
from nudgevec.cut.cutting import Node, cut, label_range
from nudgevec.cut.known import Known
from nudgevec.cut.lines import Bars, Curves, Levels
from nudgevec.cut.listed import Begun, Listed, as_good_as_ahead
from nudgevec.cut.overtaking import Lone
from nudgevec.cut.rays import ray_leaves
from nudgevec.engines.base import Met
from nudgevec.errors import VectorError
from nudgevec.labels import Labels
from nudgevec.motion import Motion
from nudgevec.scan.scan import Scan
from nudgevec.scan.shortlist import Candidates, kth_score

# Queries are taken in groups: enough of them for products to be fast.
_GROUP_SCORES = 1 << 19
_GROUP_QUERIES = 384
_LARGEST_GROUP = 1 << 23
_FEWEST_QUERIES = 64
# Turning documents go through many short steps, so groups are larger where their queries meet few documents. They are
# smaller where a group would meet more than should be kept at a time. How many each meets, a few queries tell.
_LARGE_GROUP_QUERIES = 1024
_GROUP_PAIRS = 1 << 17
_MOST_PAIRS = 1 << 19
_ASKED_FIRST = 16
# Less than this is done sooner by one thread than by several.
_FEWEST_SCORES = 1 << 18
# Where the scores come from a device, what is left for the host is many short steps: few threads, large groups.
_CENTRAL_QUERIES = 4096
_CENTRAL_THREADS = 5
# Lines are put together by how many documents they have: they are padded to the longest.
_WIDTHS = 32, 256
# Higher scores, with the length of a moving document for a unit, are too near to what float32 can hold.
_HIGHEST = 1e30
# So many documents are scored again sooner than cutting would leave some of them out.
_FEW_LISTED = 256
# Scores have much in common where their mean is so many times their standard deviation. Then it pays to compare turning
# documents with a label, which takes longer than with a level and leaves fewer.
_IN_COMMON = 12
# Pairs looked at, at a time: few enough to stay in the cache.
_PAIRS = 1 << 14
# One level for each line of a table.
_EACH = slice(None), None


class Cutter:
    """Cuts the range of angles into cells, for groups of queries. Where no label can be in the top k there is none.

    ``scan`` has the queries and finds their nearest unmoved documents (k + 1 of them are enough), ``labels`` are the
    relevant validation labels. With ``flat`` only what gets a label into the top k and out of it is of interest.
    """

    def __init__(self, motion: Motion, scan: Scan, labels: Labels, k: int, *, flat: bool) -> None:
        self.motion, self.queries, self.k, self.flat = motion, scan.queries, k, flat
        self.columns = Columns.of(motion)
        self.meeting = scan.meeting(self.columns)
        self.at_once = scan.engine.at_once
        self.threads = _CENTRAL_THREADS if self.at_once else 0
        known = Known.moving(labels, scan.queries, motion)
        # Asked for last: the scan may be under way.
        self.still = scan.still(motion.rows, lambda: known.reach(labels, scan.queries, motion, scan.reader))
        self.rests = _Rests.of(self.still, k, motion.scale)
        high = self.still.row[(np.abs(self.rests.score) > _HIGHEST) & (self.still.row >= 0)]
        if len(high):
            where = scan.reader.name(int(high[0]))
            raise VectorError(f"documents: {where} is 1e30 times as long as those that move; rescale the vectors")
        known = known.and_resting(labels, motion, self.still)
        self.known = known.where(self._hopeful(known))
        self.asked = self.known.query[begins(self.known.query)]

    def groups(self) -> Iterator[Callable[[], Cells]]:
        """The cells of groups of queries, each to be called for from any thread."""
        width = max(1, len(self.motion))
        threads = self.threads or parallel.cores()
        share = -(-len(self.asked) // threads)
        step = min(_CENTRAL_QUERIES, self.at_once // width) if self.at_once else self._step(width, share)
        step = max(1, min(step, max(share, _FEWEST_QUERIES, _FEWEST_SCORES // width)))
        # All of about the same size and, where a thread has several, equally many for each.
        count = max(1, -(-len(self.asked) // step))
        if count > threads:
            count = -(-count // threads) * threads
        step = max(1, -(-len(self.asked) // count))
        groups = list(slices(len(self.asked), step))
        if not self.at_once:
            yield from (partial(self._cells, group) for group in groups)
            return
        begun = list(ordered(self._begin, groups, self.threads))
        together = max(1, self.at_once // (step * width))
        for first in range(0, len(begun), together):
            some = begun[first : first + together]
            asked = self.asked[some[0].group.start : some[-1].group.stop]
            bars, lone = Bars.joined(one.bars for one in some), Lone.joined(one.lone for one in some)
            met = self.meeting().among(asked, bars, lone, self.k)
            for one in some:
                yield partial(self._finish, one, met.part(one.group, some[0].group.start))

    def _step(self, width: int, share: int) -> int:
        """How many queries to take at a time, of so many that a thread has in all."""
        most = _LARGEST_GROUP // width
        step = max(_GROUP_SCORES // width, min(_GROUP_QUERIES, most))
        larger = self.motion.turns and step < min(most, share)
        smaller = min(step, share) > max(_FEWEST_QUERIES, _MOST_PAIRS // width)
        if not (larger or smaller):
            return step
        _, met = self._met(slice(0, _ASKED_FIRST))
        each_meets = max(1, len(met.query)) / _ASKED_FIRST
        if larger:
            step = max(step, min(_LARGE_GROUP_QUERIES, most, int(_GROUP_PAIRS / each_meets)))
        return min(step, max(_FEWEST_QUERIES, int(_MOST_PAIRS / each_meets)))

    def _cells(self, group: slice) -> Cells:
        return self._finish(*self._met(group))

    def _met(self, group: slice) -> tuple[Begun, Met]:
        """A group begun with, and the moving documents it meets."""
        begun = self._begin(group)
        return begun, self.meeting().among(self.asked[group], begun.bars, begun.lone, self.k)

    def _hopeful(self, known: Known) -> Mask:
        """Which labels come up to the k-th still document somewhere. No others are ever in the top k."""
        kth = self.rests.kth[known.query]
        room = known.room(kth)
        levels = Levels(*((each - room).astype(np.float32) for each in (kth, kth if self.motion.turns else 0.0)))
        hopeful: Mask = known.score >= levels.low
        moves = known.column < len(self.motion)
        first, last = (known.height(phi)[moves] for phi in (0.0, self.motion.end))
        hopeful[moves] = self.columns.above(known.column[moves], first, last, levels.at(moves))
        return hopeful

    def _begin(self, group: slice) -> Begun:
        asked = self.asked[group]
        known = self.known.where(slice(*np.searchsorted(self.known.query, [asked[0], asked[-1] + 1])))
        known = known._replace(query=np.searchsorted(asked, known.query))
        off = self.rests.off[asked]
        layout = Layout(known.query, len(asked))
        label, labelled = layout.table(known.column, -1), self._label_curves(known, off).laid_out(layout)
        rests = self._still_curves(self.rests.score[asked], off[:, None])
        if self.motion.turns:
            low, high = (np.full(len(asked), angle) for angle in (0.0, self.motion.end))
            lower, upper = rests.bounds(low, high, turns=True)
            bar = kth_largest(lower, np.full(len(asked), self.k))
            alive, floor, _ = label_range(labelled.bounds(low, high, turns=True), bar)
            stills, labels = Levels(bar, bar), Levels(floor, floor)
            way = labels.stricter(stills)
            matter = upper >= way.low[:, None]
        else:
            alive, labels, stills = self._levels(labelled, rests)
            way = labels.stricter(stills)
            low, high = known.window(self.rests.kth[asked], self.motion.end)
            # Where fewer than k documents rest, labels may be in the top k at all angles, which have been looked at.
            if rests.score.shape[1] >= self.k:
                labelled, rests = (each.between(low[_EACH], high[_EACH]) for each in (labelled, rests))
                alive, labels, stills = self._levels(labelled, rests)
            matter = rests.reach(labels.at(_EACH)) & rests.reach(stills.at(_EACH))
        line, place = entries(matter)
        curves = Curves(*(values[line, place] for values in rests))
        is_label = self._resting_labels(known, matter.shape)[line, place]
        bars = Bars(way, low, high, labels, stills)
        return Begun(group, known, bars, label, labelled, alive, line, place, curves, is_label)

    def _resting_labels(self, known: Known, shape: tuple[int, int]) -> Mask:
        """Which still documents of each line are labels."""
        rests = known.column >= len(self.motion)
        are: Mask = np.zeros(shape, np.bool_)
        are[known.query[rests], known.column[rests] - len(self.motion)] = True
        return are

    def _levels(self, labelled: Curves, rests: Curves) -> tuple[Mask, Levels, Levels]:
        """Which labels on straight rays may be in the top k, and at both ends of the interval the lowest of these and
        the k-th still document, which is the same one at both."""
        k = np.full(len(rests.score), self.k)
        stills = Levels(*(kth_largest(height - rests.slack, k) for height in (rests.at_low, rests.at_high)))
        alive = labelled.reach(stills.at(_EACH)) & (labelled.at_low > -np.inf)
        below = (height - labelled.slack for height in (labelled.at_low, labelled.at_high))
        labels = Levels(*(np.where(alive, each, np.float32(np.inf)).min(axis=1, initial=np.inf) for each in below))
        return alive, labels, stills

    def _finish(self, begun: Begun, met: Met) -> Cells:
        listed = self._listed(begun, met)
        leaves = []
        if not self.motion.turns:
            alone = begun.alone[listed.line]
            leaves += ray_leaves(begun, listed.some(np.flatnonzero(alone)), self.k, flat=self.flat)
            listed = listed.some(np.flatnonzero(~alone))
        if len(listed.line) > _FEW_LISTED:
            leaves += cut(self._roots(begun, listed), self.motion, self.k, flat=self.flat)
        else:
            leaves.append(begun.leaf(listed.line, listed.column, listed.ahead))
        return exact_cells(leaves, self.asked[begun.group], self.queries, self.motion, self.still, begun.known)

    def _listed(self, begun: Begun, met: Met) -> Listed:
        """All that may matter."""
        alone, label = begun.alone, begun.labelled.some(begun.first_label)
        parts = slices(len(met.query), _PAIRS)
        some = [part.start + self._may_matter(met.where(part), begun.bars, alone, label) for part in parts]
        met = met.where(np.concatenate(some)) if some else met
        line, column = met.query, met.column
        moving = self._moving_curves(met)
        if not self.motion.turns:
            moving = moving.between(begun.bars.low[line], begun.bars.high[line])
        lines = len(begun.alive)
        still, ahead = np.arange(len(begun.line)), np.zeros(lines, np.int64)
        if self.flat:
            others = np.bincount(np.concatenate([line, begun.line[begun.is_label]]), minlength=lines)
            taken = as_good_as_ahead(begun, others, self.k)
            still, ahead = np.flatnonzero(~taken), np.bincount(begun.line[taken], minlength=lines)
        if len(still) == 0:
            # In the order of the lines already.
            return Listed(line, column, moving, np.arange(len(line)), ahead)
        # All curves one after the other, and where those of each line are.
        curves = Curves.joined([moving, begun.rests.some(still)])
        column = np.concatenate([column, len(self.motion) + begun.place[still]])
        line = np.concatenate([line, begun.line[still]])
        at = sorted_places(line)
        return Listed(line[at], column[at], curves, at, ahead)

    def _may_matter(self, met: Met, bars: Bars, alone: Mask, label: Curves) -> Ints:
        """Which pairs may do so. Of turning documents in lines with one label, only those that may be ahead of it."""
        slack = self.columns.slack[met.column]
        first, last = ((end + slack).astype(np.float64) for end in (met.first, met.last))
        may = np.flatnonzero(self.columns.matter(met.query, met.column, first, last, bars))
        if not self.motion.turns:
            return may
        one = np.flatnonzero(alone[met.query[may]])
        these = may[one]
        ahead = ever_ahead(first[these], last[these], self.motion.stop[met.column[these]], label, met.query[these])
        return np.delete(may, one[~ahead])

    def _roots(self, begun: Begun, listed: Listed) -> Iterator[Node]:
        """Lines with few documents apart from those with many."""
        count = np.bincount(listed.line, minlength=len(begun.alive))
        size = np.where(count > 0, np.searchsorted(_WIDTHS, count), -1)
        for each in distinct(size[size >= 0]):
            lines, some = np.flatnonzero(size == each), listed.some(np.flatnonzero(size[listed.line] == each))
            layout = Layout(np.searchsorted(lines, some.line), len(lines))
            documents = some.curves.some(some.at).laid_out(layout)
            yield self._root(begun, lines, listed.ahead[lines], layout.table(some.column, 0), documents)

    def _root(self, begun: Begun, lines: Ints, ahead: Ints, columns: Ints, documents: Curves) -> Node:
        labelled = begun.labelled.where(begun.alive, lines)
        beside = None
        if not self.motion.turns or _much_in_common(documents):
            label = np.argmax(labelled.at_low > -np.inf, axis=1)[:, None]
            beside = Curves(*(np.take_along_axis(values, label, axis=1) for values in labelled))
            if not self.motion.turns:
                documents, labelled, beside = documents.less(beside), labelled.less(beside), None
        low, high = begun.bars.low[lines], begun.bars.high[lines]
        return Node(0, lines, low, high, ahead, columns, documents, begun.label[lines], labelled, beside)

    def _moving_curves(self, met: Met) -> Curves:
        """Curves from scores at both ends of all angles."""
        stop = self.motion.stop[met.column].astype(np.float32)
        slope = met.last
        if self.motion.turns:
            sine = np.sin(stop)
            rise = met.last - np.cos(stop) * met.first
            slope = np.divide(rise, sine, out=np.zeros_like(rise), where=sine > 0)
        return Curves(met.first, slope, stop, met.first, met.last, self.columns.slack[met.column])

    def _still_curves(self, score: Floats, off: Floats) -> Curves:
        first = score.astype(np.float32)
        last = first if self.motion.turns else np.zeros_like(first)
        slack = np.float32(error_of(32)) * np.maximum(np.abs(first), np.float32(1)) + off.astype(np.float32)
        stop = np.full_like(first, self.motion.still_stop)
        curves = Curves(first, np.zeros_like(first), stop, first, last, slack)
        there = first > -np.inf
        return curves if there.all() else curves.where(there, slice(None))

    def _label_curves(self, known: Known, off: Floats) -> Curves:
        """Curves of the labelled documents, made from float64 scores.

        The same documents may be listed with float32 scores that are off as much as others. Where a label is out of
        the top k its document must not be listed, or it would count as a label there: hence twice the slack.
        """
        moves = known.column < len(self.motion)
        first, last = (known.height(phi).astype(np.float32) for phi in (0.0, self.motion.end))
        labelled = self._moving_curves(Met(known.query, known.column, first, last).where(moves))
        if not moves.all():
            rests = self._still_curves(known.score[~moves], off[known.query[~moves]])
            # In the order of the labels again.
            labelled = Curves.joined([labelled, rests]).some(np.argsort(sorted_places(1 - moves)))
        return labelled._replace(slack=2 * labelled.slack)


class _Rests(NamedTuple):
    """Scores of the documents at rest, what those of a query are off by at most, and what k of them reach."""

    score: Floats
    off: Floats
    kth: Floats

    @classmethod
    def of(cls, still: Candidates, k: int, scale: float) -> _Rests:
        score = np.empty_like(still.low)
        off, kth = np.empty((2, len(score)))

        def look_at(part: slice) -> None:
            low, high = still.low[part] / scale, still.high[part] / scale
            score[part] = (low + high) / 2
            width = np.subtract(high, low, out=np.zeros_like(low), where=still.row[part] >= 0)
            # A hundredth more covers its rounding to float32.
            off[part] = 0.505 * width.max(axis=1, initial=0)
            kth[part] = kth_score(low, k)

        everywhere(look_at, len(score))
        return cls(score, off, kth)


def _much_in_common(documents: Curves) -> bool:
    """Whether scores differ little beside what all of them have in common."""
    scores = documents.at_low[documents.at_low > -np.inf]
    return bool(scores.mean(dtype=np.float64) > _IN_COMMON * scores.std(dtype=np.float64))
