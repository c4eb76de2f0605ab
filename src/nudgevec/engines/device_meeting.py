"""Moving documents on a GPU: two float32 products, and what their scores tell about each pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.rows import Floats, Ints, Singles, some_rows
from nudgevec.cut.beside import ever_ahead
from nudgevec.cut.columns import Columns
from nudgevec.cut.lines import Bars, Levels
from nudgevec.cut.overtaking import Lone, Rays
from nudgevec.engines.base import Met, many
from nudgevec.engines.pytorch import full_precision, import_torch
from nudgevec.motion import peak

# Moving documents sent to the device at a time.
_SENT = 1 << 14


class DeviceMeeting:
    """Filters moving documents with two float32 products on the device, many queries at a time."""

    def __init__(self, columns: Columns, queries: Floats, device: Any) -> None:
        self.torch = torch = import_torch()
        self.queries, self.device, self.turns = queries, device, columns.turns
        sent: Callable[[Any], Any] = self._sent
        motion, units, (cosine, sine) = columns.motion, columns.motion.units, columns.motion.stopping
        self.first, self.last = torch.empty((2, *motion.direction.shape), device=device)
        for part in parallel.slices(len(motion), _SENT):
            start = sent(motion.start[part]).double() / sent(units[part, None])
            self.first[part] = start
            self.last[part] = sent(cosine[part, None]) * start + sent(sine[part, None]) * sent(motion.direction[part])
        self.bulge, self.slack, self.stop = map(sent, (columns.bulge, columns.slack, motion.stop))

    def _sent(self, values: npt.NDArray[Any]) -> Any:
        return self.torch.from_numpy(values).to(self.device)

    def among(self, asked: Ints, bars: Bars, lone: Lone, k: int) -> Met:
        torch = self.torch
        queries = self._sent(some_rows(self.queries, asked)).float()
        with full_precision(torch):
            first, last = queries @ self.first.T, queries @ self.last.T
        over = self._over(first, last, bars.way) if self.turns else self._between(first, last, bars)
        lines = np.flatnonzero((over.sum(dim=1) > many(k)).cpu().numpy())
        if len(lines):
            there = self._sent(lines)
            over[there] &= self._closer(first[there], last[there], bars.way.at(lines), k)
        query, column = over.nonzero(as_tuple=True)
        met = Met(query, column, first[query, column], last[query, column])
        worth = self._ever_ahead(met, bars, lone) if self.turns else self._worth_scoring(met, bars, lone, k)
        met = met.where(worth.nonzero(as_tuple=True)[0])
        places, scores = (torch.stack(each).cpu().numpy() for each in (met[:2], met[2:]))
        return Met(*places, *scores)

    def _ever_ahead(self, met: Met, bars: Bars, lone: Lone) -> Any:
        """Which pairs of turning documents come above the level, and above the only label of their line."""
        slack, stop = self.slack[met.column], self.stop[met.column]
        first, last = ((end + slack).double() for end in (met.first, met.last))
        above = peak(first, last, stop) >= self._sent(bars.way.low)[met.query]
        return above & ever_ahead(first, last, stop, lone.sent(self._sent).label, met.query)

    def _worth_scoring(self, met: Met, bars: Bars, lone: Lone, k: int) -> Any:
        """Which pairs of straight rays may matter beside the only label of their line."""

        def between(angle: Floats) -> Any:
            of_first, of_last = (self._beside(each)[met.query, 0] for each in (np.cos(angle), np.sin(angle)))
            return of_first * met.first + of_last * met.last

        rays = Rays(met.query, between(bars.low), between(bars.high), self.slack[met.column])
        return lone.sent(self._sent).worth_scoring([rays], len(met.query), k)

    def _over(self, first: Any, last: Any, level: Levels) -> Any:
        """Where a column may come above the level."""
        low_bar, high_bar = (self._beside(each) for each in level)
        if self.turns:
            bound = (self.torch.maximum(first, last) + self.slack) * self.bulge
            return bound >= self.torch.where(low_bar > 0, low_bar, -self.torch.inf)
        return (first + self.slack >= low_bar) | (last + self.slack >= high_bar)

    def _between(self, first: Any, last: Any, bars: Bars) -> Any:
        """Where straight rays may come above a label between the angles of their lines. Scores are joined there from
        both ends in few passes: these take about as long as the products."""

        def over(angle: Floats, level: Singles) -> Any:
            of_first, of_last = self._beside(np.cos(angle)), self._beside(np.sin(angle))
            most = self.torch.addcmul(self.slack, first, of_first).addcmul_(last, of_last)
            return most >= self._beside(level)

        return over(bars.low, bars.labels.low) | over(bars.high, bars.labels.high)

    def _beside(self, values: npt.NDArray[Any]) -> Any:
        """Values of lines, to be used with all columns of a line."""
        return self._sent(values.astype(np.float32, copy=False))[:, None]

    def _closer(self, first: Any, last: Any, level: Levels, k: int) -> Any:
        """The same as ``_over`` for crowded lines, given what k columns reach there."""
        reached = self._kth_largest(self.torch.minimum(first, last) - self.slack, k)
        return self._over(first, last, level.raised(reached.cpu().numpy()))

    def _kth_largest(self, lower: Any, k: int) -> Any:
        """A height that at least k columns are above, as ``tables.kth_largest``."""
        queries, columns = lower.shape
        if columns < k:
            return self.torch.full((queries,), -self.torch.inf, device=self.device)
        length = max(1, columns // max(512, 8 * k))
        whole = lower[:, : columns // length * length].reshape(queries, -1, length).amax(dim=2)
        return whole.topk(k, dim=1).values[:, -1]
