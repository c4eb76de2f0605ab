"""Validation labels as score curves, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.pairs import dots_with_each, pair_dots
from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rows import Floats, Ints, Mask, lengths
from nudgevec.arithmetic.sorting import begins, numbered
from nudgevec.arithmetic.tables import entries
from nudgevec.corpus.reader import Reader, check_nonzero
from nudgevec.labels import Labels
from nudgevec.motion import Motion, height, peak
from nudgevec.scan.nearest import Reach
from nudgevec.scan.shortlist import Candidates

# Labels looked up at a time.
_LABELS = 1 << 14
# Labels and documents are given up when they are this much below, in parts of the scores: more than rounding to float32
# takes.
_ROOM = 1e-6


class Known(NamedTuple):
    """Labels as (query, column), sorted, with the index of each label and its curve.

    Columns are the moving documents, then the still ones of the query. A label on any other document
    never gets into the top k.
    """

    query: Ints
    column: Ints
    label: Ints
    score: Floats
    slope: Floats
    stop: Floats

    @classmethod
    def moving(cls, labels: Labels, queries: Floats, motion: Motion) -> Known:
        """Those on documents that move."""
        column = np.searchsorted(motion.rows, labels.row)
        label = np.flatnonzero(np.append(motion.rows, -1)[column] == labels.row)
        query, column = labels.query[label], column[label]
        return cls(query, column, label, *exact_curves(queries, query, motion, column), motion.stop[column])

    def reach(self, labels: Labels, queries: Floats, motion: Motion, reader: Reader) -> Reach:
        """Between which scores these labels and those that rest stay, in the units of the documents."""
        if motion.turns:
            # A sinusoid that is positive at both ends is lowest at one of them,
            last = self.height(motion.end)
            least = np.minimum(self.score, last)
            least[least <= 0] = -np.inf
            most = peak(self.score, last, self.stop)
        else:
            # a ray that rises where it begins, and one that falls is highest there, beside what rests.
            least = np.where(self.slope > 0, self.score, -np.inf)
            most = np.where(self.slope < -2 * self.room(self.score), self.score, np.inf)
        lowest, highest = np.full(len(queries), np.inf), np.full(len(queries), -np.inf)
        np.minimum.at(lowest, self.query, least)
        np.maximum.at(highest, self.query, most)
        rest = self._rest(labels)
        if len(rest):
            rows, which = numbered(labels.row[rest])
            vectors = reader.take(rows)
            if motion.turns:
                check_nonzero(lengths(vectors), rows, reader)
            score = pair_dots(queries, labels.query[rest], vectors, which, cosine=motion.turns)
            np.minimum.at(lowest, labels.query[rest], score / motion.scale)
            np.maximum.at(highest, labels.query[rest], score / motion.scale)
        lowest -= _ROOM * (1 + np.abs(lowest))
        highest += _ROOM * (1 + np.abs(highest))
        return Reach(lowest * motion.scale, highest * motion.scale)

    def _rest(self, labels: Labels) -> Ints:
        """The other labels."""
        return np.delete(np.arange(len(labels)), self.label)

    def and_resting(self, labels: Labels, motion: Motion, still: Candidates) -> Known:
        """These, and those among the still documents of their queries."""
        if len(self.label) == len(labels):
            return self
        label, place = _places(self._rest(labels), labels.query, labels.row, still)
        query = labels.query[label]
        stop = np.full(len(label), motion.still_stop)
        score = still.exact(query, place) / motion.scale
        resting = Known(query, len(motion) + place, label, score, np.zeros(len(label)), stop)
        known = Known(*(np.concatenate(each) for each in zip(self, resting, strict=True)))
        return known.where(np.lexsort((known.column, known.query)))

    def room(self, heights: Floats) -> Floats:
        """More than they are off by beside some heights, one each."""
        return _ROOM * (1 + np.abs(heights) + np.hypot(self.score, self.slope))

    def window(self, heights: Floats, end: float) -> tuple[Floats, Floats]:
        """Between which angles, up to ``end``, labels on straight rays come up to a document at rest with this height,
        one for each query, or may do so. Each of them begins or ceases to be above it once at most."""
        rests = heights[self.query]
        room = self.room(rests)
        above, rises = self.score - rests + room, self.slope + room
        begin = np.where((above < 0) & (rises > 0), np.arctan2(-above, rises), 0.0)
        cease = np.where((above > 0) & (rises < 0), np.arctan2(above, -rises), end)
        firsts = np.flatnonzero(begins(self.query))
        return np.minimum.reduceat(begin, firsts), np.maximum.reduceat(cease, firsts)

    def height(self, phi: float) -> Floats:
        """Their scores at an angle."""
        return height(self.score, self.slope, self.stop, np.float64(phi))

    def where(self, keep: slice | Mask | Ints) -> Known:
        query, column, label, score, slope, stop = self
        return Known(query[keep], column[keep], label[keep], score[keep], slope[keep], stop[keep])


def _places(which: Ints, query: Ints, row: Ints, still: Candidates) -> tuple[Ints, Ints]:
    """Some of the labels that are among the still documents of their queries, and where."""
    found = [(which[:0], which[:0])]
    for part in slices(len(which), _LABELS):
        some = which[part]
        hit, place = entries(still.row[query[some]] == row[some, None])
        found.append((some[hit], place))
    labels, places = (np.concatenate(each) for each in zip(*found, strict=True))
    return labels, places


def exact_curves(queries: Floats, query: Ints, motion: Motion, column: Ints) -> tuple[Floats, Floats]:
    """Score at angle zero and slope of moving documents, in float64."""
    score, slope = dots_with_each(queries, query, [motion.start, motion.direction], column)
    return score / motion.units[column], slope
