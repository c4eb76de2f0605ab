"""What a fit asks of its engine, for one set of queries: one pass over the corpus, and the filter for what moves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np

from nudgevec.arithmetic.rows import Floats, Ints
from nudgevec.arithmetic.sorting import distinct
from nudgevec.corpus import Reader
from nudgevec.cut.columns import Columns
from nudgevec.engines.base import Engine, Meeting
from nudgevec.scan.nearest import Later, Reach, candidates, nearest
from nudgevec.scan.shortlist import Candidates, Nearest, kth_score


class Scan:
    """One pass over a corpus for the nearest documents that will not move.

    Which those are is known once the labelled documents have been looked at. A corpus that streams is not asked for
    them one by one: they are put aside during the pass, and those that turn out to stay join in afterwards. So it is
    where the pass runs on a device, while others find out.
    """

    def __init__(
        self, reader: Reader, queries: Floats, k: int, labelled: Ints, *, cosine: bool, engine: Engine
    ) -> None:
        self.reader, self.queries, self.k = reader, queries, k
        self.cosine, self.engine = cosine, engine
        self.others: Callable[[], Candidates] | None = None
        # What documents must come up to, as soon as it is known.
        self.lowest: Future[Floats] = Future()
        self.background = ThreadPoolExecutor(2, "scan")
        self.labelled = distinct(labelled) if reader.streams or engine.at_once else labelled
        if reader.streams:
            reader.watch(self.labelled)
            others = self._pass(reader, skip=self.labelled)
            self.others = lambda: others
        elif engine.at_once:
            self.others = self.background.submit(self._pass, reader, self.labelled, later=self.lowest.result).result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A pass that still waits for it has nobody to tell what it has found.
        self.lowest.cancel()
        self.background.shutdown()

    def _pass(self, reader: Reader, skip: Ints, reach: Reach | None = None, later: Later | None = None) -> Candidates:
        return candidates(
            reader,
            self.queries,
            self.k,
            cosine=self.cosine,
            skip=skip,
            reach=reach,
            later=later,
            engine=self.engine,
        )

    def meeting(self, columns: Columns) -> Callable[[], Meeting]:
        """The engine's filter for documents that move, made while others go on where that leaves them the cores; what
        goes wrong there is told to who calls for it."""
        if self.engine.at_once:
            return self.background.submit(self.engine.meeting, columns, self.queries).result
        meeting = self.engine.meeting(columns, self.queries)
        return lambda: meeting

    def still(self, moving: Ints, reach: Callable[[], Reach]) -> Candidates:
        """The nearest of all documents but those in ``moving``, and a few more. Those that never meet a label, which is
        asked about where the pass has not ended, are not needed, nor more of them where no label is ever seen."""
        if self.others is None:
            return self._pass(self.reader, skip=moving, reach=reach())
        rest = np.setdiff1d(self.labelled, moving, assume_unique=True)
        if self.reader.streams:
            others = self.others()
            return _joined(others, rest, self._nearest(rest, kth_score(others.low, self.k)))
        self.lowest.set_result(reach().lowest)
        # While the pass goes on.
        joining = self._nearest(rest, self.lowest.result())
        return _joined(self.others(), rest, joining)

    def _nearest(self, rows: Ints, floor: Floats) -> Nearest | None:
        """The nearest of some documents, if there are any."""
        if len(rows) == 0:
            return None
        reader = Reader(self.reader.take(rows))
        return nearest(reader, self.queries, self.k, cosine=self.cosine, floor=floor, engine=self.engine)


def _joined(others: Candidates, rest: Ints, joining: Nearest | None) -> Candidates:
    """Candidates, and the nearest of some more documents, numbered by their place in ``rest``."""
    if joining is None:
        return others
    return Candidates(
        row=np.concatenate([others.row, np.where(joining.row >= 0, rest[joining.row], -1)], axis=1),
        low=np.concatenate([others.low, joining.score], axis=1),
        high=np.concatenate([others.high, joining.score], axis=1),
        scores=others.scores,
    )
