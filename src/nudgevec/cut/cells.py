"""Cells: a query, an interval of angles, and the documents that may change places with a labelled document there.

Which those are is decided elsewhere (``cutter``), and never leaves out too many. Here they are scored in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import begins, numbered
from nudgevec.cut.cutting import Leaf
from nudgevec.cut.known import Known, exact_curves
from nudgevec.motion import Motion
from nudgevec.scan.shortlist import Candidates


@dataclass(frozen=True)
class Cells:
    """Cells, flat: cell c holds the entries ``start[c]:start[c + 1]``, one per document.

    ``ahead`` counts documents that are ahead of all labelled ones all over the cell and are not listed.
    ``score``, ``slope`` and ``stop`` are the document's curve for the cell's query (see ``motion``);
    ``label`` is the index of the validation label it is, or -1.
    """

    query: Ints
    low: Floats
    high: Floats
    ahead: Ints
    start: Ints
    score: Floats
    slope: Floats
    stop: Floats
    label: Ints


def exact_cells(
    leaves: list[Leaf], asked: Ints, queries: Floats, motion: Motion, still: Candidates, known: Known
) -> Cells:
    """Score the documents again in float64, each (query, document) once, and lay the leaves out flat.

    ``asked`` are the queries' own numbers.
    """
    nothing = np.empty(0, np.int64)
    leaves = [Leaf(nothing, nothing, np.empty(0), np.empty(0), nothing), *leaves]
    query, column, low, high, ahead = (np.concatenate(each) for each in zip(*leaves, strict=True))

    columns = len(motion) + still.row.shape[1]
    pair, back = numbered(query * columns + column)
    of_query, of_column = pair // columns, pair % columns
    rests = of_column >= len(motion)
    score, slope, stop = np.empty(len(pair)), np.zeros(len(pair)), np.full(len(pair), motion.still_stop)
    score[rests] = still.exact(asked[of_query[rests]], of_column[rests] - len(motion)) / motion.scale
    # Labels have been scored already.
    label = np.full(len(pair), -1)
    at = np.searchsorted(pair, known.query * columns + known.column)
    listed = np.flatnonzero(np.append(pair, -1)[at] == known.query * columns + known.column)
    at = at[listed]
    label[at], score[at], slope[at], stop[at] = (each[listed] for each in known[2:])
    others = np.flatnonzero(~rests & (label < 0))
    mover = of_column[others]
    score[others], slope[others] = exact_curves(queries, asked[of_query[others]], motion, mover)
    stop[others] = motion.stop[mover]

    first = np.flatnonzero(begins(query) | begins(low))
    return Cells(
        query=asked[query[first]],
        low=low[first],
        high=high[first],
        ahead=ahead[first],
        start=np.append(first, len(query)),
        score=score[back],
        slope=slope[back],
        stop=stop[back],
        label=label[back],
    )
