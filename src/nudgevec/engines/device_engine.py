"""The engine for a GPU, through PyTorch: bfloat16 tensor cores, while the next documents are on their way.

Documents go from wherever they are into pinned memory (by several threads) and from there to the device, three
tiles under way at a time. There they are scaled to unit length, rounded and multiplied; maxima of stretches of
scores tell where to look closer, float32 scores of what is found there what to send back. The same code runs
on CPU tensors, slowly, which is how it is tested where there is no GPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from nudgevec.arithmetic import parallel
from nudgevec.arithmetic.rounding import UNIT_ROUNDOFF, error_of
from nudgevec.arithmetic.rows import Floats
from nudgevec.cut.columns import Columns
from nudgevec.engines.base import Result, Survivors, Wanting
from nudgevec.engines.device_meeting import DeviceMeeting
from nudgevec.engines.pytorch import full_precision, import_torch
from nudgevec.engines.transfers import arriving
from nudgevec.scan.tiles import Tile

# One tile: so many bytes of float32 vectors, and scores in bfloat16.
_TILE_BYTES = 96 << 20
_TILE_SCORES = 1 << 29
_STRETCH = 128
# Pairs of vectors multiplied at a time, in float32 on the device and in float64 on the host.
_DEVICE_PAIRS = 1 << 17
_HOST_PAIRS = 1 << 12
# More than the relative error of rounding to bfloat16 (8 bits of precision, to nearest).
_BFLOAT16_ROUNDING = 2.0**-8
# New documents per query and tile that count for its floor.
_LISTED = 256
_FINISHERS = 8


class DeviceEngine:
    """bfloat16 and float32 on a GPU."""

    name = "torch"
    at_once = 1 << 26

    def __init__(self, device: str = "cuda") -> None:
        torch = import_torch()
        # Threads have a current device each: say which one.
        self.device = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)

    def sieve(self, queries: Floats, k: int) -> DeviceSieve:
        return DeviceSieve(queries, k, self.device)

    def meeting(self, columns: Columns, queries: Floats) -> DeviceMeeting:
        return DeviceMeeting(columns, queries, self.device)


class Found(NamedTuple):
    """Survivors on the device: query, number in the tile, bounds of the score."""

    query: Any
    number: Any
    low: Any
    high: Any

    def where(self, keep: Any) -> Found:
        # Looked up once, because the host waits to know how many there are.
        places = keep.nonzero(as_tuple=True)[0]
        return Found(*(column[places] for column in self))


class DeviceSieve:
    """Filters tiles on the device, where each query's best scores so far are kept too.

    The error of a bfloat16 score, for a unit query q and a row x, is at most |q - q'| |x'| + |q| |x - x'| for the
    rounding of both (whose lengths are measured), the error of x itself, and that of adding up: tensor cores
    truncate where others round, and align several products before they add them, so we allow 8 d u |q'| |x'|, some
    four times what is known of them. The sum is rounded to bfloat16 once more, which keeps the order.
    """

    # The floor is kept here, so nobody waits for the lists of the host.
    patience = 16.0

    def __init__(self, queries: Floats, k: int, device: Any) -> None:
        torch = import_torch()
        self.torch, self.device, self.k = torch, device, k
        exact = torch.from_numpy(queries).to(device)
        self.single = exact.float()
        self.coarse = exact.to(torch.bfloat16)
        self.lost = (exact - self.coarse.double()).norm(dim=1).float() * (1 + 1e-5)
        self.best = torch.full((len(queries), k), -torch.inf, device=device)
        self.seen = 0
        dim = queries.shape[1]
        self.adding = (8 * dim + 16) * UNIT_ROUNDOFF + error_of(dim)
        self.width = self.first_width = max(1024, _TILE_BYTES // (4 * dim))

    def scan(
        self, tiles: Iterator[Tile], floor: Floats, wanting: Wanting, finish: Callable[[Survivors], Result]
    ) -> Iterator[Result]:
        """Where blocks of documents stay, survivors are finished at the end, when most of them are known not
        to be among the best; elsewhere by threads while the next tile is filtered. All queries are asked about to the
        end: what their labels reach is found out meanwhile."""
        self._raise_to(floor)
        under_way: deque[list[Future[Result]]] = deque()
        waiting: list[tuple[Tile, Found]] = []
        with ThreadPoolExecutor(min(_FINISHERS, parallel.cores()), "nudgevec", parallel.begin_thread) as pool:
            for tile, vectors in arriving(tiles, self.device):
                found = self._over(tile, vectors)
                if tile.reader.keeps_blocks:
                    waiting.append((tile, found))
                    continue
                (survivors,) = self._fetched([(tile, found)])
                parts = parallel.slices(len(survivors.query), _HOST_PAIRS)
                under_way.append([pool.submit(finish, survivors.part(part)) for part in parts])
                if len(under_way) > 1:
                    yield from (future.result() for future in under_way.popleft())
            for futures in under_way:
                yield from (future.result() for future in futures)
            if waiting:
                self._raise_to(floor)
                yield from map(finish, self._fetched(waiting))

    def _raise_to(self, floor: Floats) -> None:
        """Forget scores below a floor."""
        lowest = np.nextafter(floor.astype(np.float32), np.float32(-np.inf))
        self.best.clamp_(min=self.torch.from_numpy(lowest).to(self.device)[:, None])

    def _fetched(self, some: list[tuple[Tile, Found]]) -> Iterator[Survivors]:
        """What was found in some tiles and is still good, on the host: all of it together, which takes less waiting."""
        torch = self.torch
        tiles, parts = zip(*some, strict=True)
        found = Found(*(torch.cat(column) for column in zip(*parts, strict=True)))
        good = (found.high >= self.best[found.query, -1]).nonzero(as_tuple=True)[0]
        whole = torch.stack([good, found.query[good], found.number[good]]).cpu().numpy()
        bounds = torch.stack([found.low[good], found.high[good]]).cpu().numpy().astype(np.float64)
        begins = np.cumsum([0, *(len(each.query) for each in parts)])
        edges = np.searchsorted(whole[0], begins)
        for each, (start, stop) in zip(tiles, pairwise(edges.tolist()), strict=True):
            (query, number), (low, high) = whole[1:, start:stop], bounds[:, start:stop]
            yield Survivors(each, query, each.at(number), low, high)

    def _over(self, tile: Tile, vectors: Any) -> Found:
        """The documents of a tile that may be among the best so far."""
        torch = self.torch
        rows = vectors.float()
        if tile.seen is not None:
            rows = rows[torch.from_numpy(tile.seen).to(self.device)]
        square = rows.square().sum(dim=1)
        least, most = torch.stack(torch.aminmax(square)).tolist()
        if least > 1e-30 and most < 1e30:
            longest = 1.0 + 1e-3 if tile.cosine else 1.01 * most**0.5
            return self._filter(rows / square.sqrt()[:, None] if tile.cosine else rows, longest)
        # Zeros, infinities, lengths whose squares do not fit: the host knows what to do.
        single, longest = tile.single(np.empty(tuple(rows.shape), np.float32))
        return self._filter(torch.from_numpy(np.array(single)).to(self.device), longest)

    def _filter(self, rows: Any, longest: float) -> Found:
        torch = self.torch
        coarse = rows.to(torch.bfloat16)
        lost = (rows - coarse.float()).norm(dim=1).max()
        margin = 1.001 * (torch.add(lost, self.lost, alpha=1.01 * longest) + 1.02 * self.adding * longest) + 1e-30
        fine_margin = 1.001 * error_of(rows.shape[1]) * longest + 1e-30
        padding = -len(rows) % _STRETCH
        coarse = torch.nn.functional.pad(coarse, (0, 0, 0, padding))
        found = []
        step = max(1, _TILE_SCORES // len(coarse))
        for begin in range(0, len(self.best), step):
            part = slice(begin, begin + step)
            # Documents by rows: maxima of stretches of them are found three times as fast as along a row.
            with full_precision(torch):
                scores = torch.mm(coarse, self.coarse[part].T)
            if padding:
                scores[len(rows) :] = -torch.inf
            stretches = scores.view(-1, _STRETCH, scores.shape[1])
            maxima = stretches.amax(dim=1)
            floor = self.best[part, -1]
            if self.seen < self.k:
                floor = torch.maximum(floor, self._own_floor(scores, maxima, len(rows)) - margin[part])
            bar = (floor - margin[part]).to(torch.bfloat16)
            query, stretch = (maxima >= bar).T.nonzero(as_tuple=True)
            hit, place = (stretches[stretch, :, query] >= bar[query, None]).nonzero(as_tuple=True)
            query, number = query[hit], stretch[hit] * _STRETCH + place
            score = self._scores(self.single[part], query, rows, number)
            low = score - fine_margin
            self._keep_best(part, query, low)
            some = Found(query + begin, number, low, score + fine_margin)
            found.append(some.where((number < len(rows)) & (some.high >= self.best[some.query, -1])))
        self.seen += len(rows)
        return Found(*(torch.cat(column) for column in zip(*found, strict=True)))

    def _own_floor(self, scores: Any, maxima: Any, rows: int) -> Any:
        """What k documents of the tile itself reach, for every query."""
        torch = self.torch
        if rows < self.k:
            return torch.full((scores.shape[1],), -torch.inf, device=self.device)
        heights = maxima if len(maxima) >= 2 * self.k else scores
        best = heights.T.float().topk(self.k, dim=1).values[:, -1]
        return best - best.abs() * _BFLOAT16_ROUNDING

    def _scores(self, queries: Any, query: Any, rows: Any, number: Any) -> Any:
        """float32 scores of pairs; -inf for padding."""
        torch = self.torch
        score = torch.empty(len(query), device=self.device)
        there = number.clamp(max=len(rows) - 1)
        for start in range(0, len(query), _DEVICE_PAIRS):
            some = slice(start, start + _DEVICE_PAIRS)
            torch.sum(queries[query[some]] * rows[there[some]], dim=1, out=score[some])
        return score.masked_fill_(number >= len(rows), -torch.inf)

    def _keep_best(self, part: slice, query: Any, score: Any) -> None:
        """Let new scores (lower bounds of them) into the lists of the best. Pairs come in the order of queries."""
        torch = self.torch
        best = self.best[part]
        count = torch.bincount(query, minlength=len(best))
        place = torch.arange(len(query), device=self.device) - (count.cumsum(0) - count)[query]
        # Of very many, some will do: the floor is only lower then.
        width = min(int(count.max()), max(_LISTED, self.k))
        some = (place < width).nonzero(as_tuple=True)[0]
        table = torch.full((len(best), width), -torch.inf, device=self.device)
        table[query[some], place[some]] = score[some]
        self.best[part] = torch.cat([best, table], dim=1).topk(self.k, dim=1).values
