"""Validation labels as score curves, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.corpus import Floats, Ints
from nudgevec.labels import Labels
from nudgevec.lines import Mask
from nudgevec.motion import Motion, height
from nudgevec.nearest import Nearest
from nudgevec.pairs import dots_with_each
from nudgevec.parallel import slices

# Labels looked up at a time.
_LABELS = 1 << 14


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
    def of(cls, labels: Labels, queries: Floats, motion: Motion, still: Nearest) -> Known:
        query, row = labels.query, labels.row
        column = np.searchsorted(motion.rows, row)
        moves = np.append(motion.rows, -1)[column] == row
        rests, place = _places(np.flatnonzero(~moves), query, row, still)
        goes = column[moves]
        score, slope = exact_curves(queries, query[moves], motion, goes)
        index = np.concatenate([np.flatnonzero(moves), rests])
        known = cls(
            query[index],
            np.concatenate([goes, len(motion) + place]),
            index,
            np.concatenate([score, still.score[query[rests], place]]),
            np.concatenate([slope, np.zeros(len(rests))]),
            np.concatenate([motion.stop[goes], np.full(len(rests), motion.still_stop)]),
        )
        return known.where(np.lexsort((known.column, known.query)))

    def height(self, phi: float) -> Floats:
        """Their scores at an angle."""
        return height(self.score, self.slope, self.stop, np.float64(phi))

    def where(self, keep: slice | Mask | Ints) -> Known:
        query, column, label, score, slope, stop = self
        return Known(query[keep], column[keep], label[keep], score[keep], slope[keep], stop[keep])


def _places(which: Ints, query: Ints, row: Ints, still: Nearest) -> tuple[Ints, Ints]:
    """Some of the labels that are among the still documents of their queries, and where."""
    found = [(which[:0], which[:0])]
    for part in slices(len(which), _LABELS):
        some = which[part]
        hit, place = np.nonzero(still.row[query[some]] == row[some, None])
        found.append((some[hit], place))
    labels, places = (np.concatenate(each) for each in zip(*found, strict=True))
    return labels, places


def exact_curves(queries: Floats, query: Ints, motion: Motion, column: Ints) -> tuple[Floats, Floats]:
    """Score at angle zero and slope of moving documents, in float64."""
    score, slope = dots_with_each(queries, query, [motion.start, motion.direction], column)
    return score / motion.units[column], slope
