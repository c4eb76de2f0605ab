"""What engines are: the filters they set up, what those let through, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import slices
from nudgevec.arithmetic.rows import Floats, Ints, Mask, Singles
from nudgevec.cut.columns import Columns
from nudgevec.cut.lines import Bars
from nudgevec.cut.overtaking import Lone
from nudgevec.scan.tiles import Tile

# Scores to look at, at a time: few enough for all that is made of them to stay in the cache.
_AT_A_TIME = 1 << 18

Result = TypeVar("Result")
Wanting = Callable[[Ints], Ints]
"""Which of some queries want more documents: fewer and fewer of them."""


class Survivors(NamedTuple):
    """Documents of a tile whose scores may exceed the floor: query numbers, places in the block, and what the
    scores lie between."""

    tile: Tile
    query: Ints
    place: Ints
    low: Floats
    high: Floats

    def part(self, which: slice) -> Survivors:
        """Some of them."""
        return Survivors(self.tile, self.query[which], self.place[which], self.low[which], self.high[which])


class Sieve(Protocol):
    """A filter for a scan over the corpus, set up for some queries."""

    @property
    def first_width(self) -> int:
        """How many documents the first tile should have. It sets the floor for the rest."""

    @property
    def width(self) -> int:
        """How many documents the other tiles should have."""

    @property
    def patience(self) -> float:
        """How many documents may have been found, per place in the lists, before the floor must follow."""

    def scan(
        self, tiles: Iterator[Tile], floor: Floats, wanting: Wanting, finish: Callable[[Survivors], Result]
    ) -> Iterator[Result]:
        """Filter all tiles against each query's floor, which may rise meanwhile, and finish what is left of
        each, possibly in other threads. Results come in the order of the documents. Queries that want no more need not
        be asked about any longer."""


class Met(NamedTuple):
    """Pairs of a query and a column that may matter, and their scores at angle zero and where they stop."""

    query: Ints
    column: Ints
    first: Singles
    last: Singles

    def where(self, keep: slice | Mask | Ints) -> Met:
        return Met(self.query[keep], self.column[keep], self.first[keep], self.last[keep])

    def part(self, group: slice, start: int) -> Met:
        """The pairs of some queries, numbered from the first of them; here they are numbered from ``start``."""
        some = self.where(slice(*np.searchsorted(self.query, [group.start - start, group.stop - start])))
        return some._replace(query=some.query - (group.start - start))

    @classmethod
    def joined(cls, parts: Iterable[Met]) -> Met:
        some = list(parts)
        return some[0] if len(some) == 1 else cls(*(np.concatenate(column) for column in zip(*some, strict=True)))


class Meeting(Protocol):
    """A filter for the documents that move."""

    def among(self, asked: Ints, bars: Bars, lone: Lone, k: int) -> Met:
        """The columns that may matter to each of some queries, and some more. They are asked for by their numbers, in
        order; pairs come in that order, with queries numbered anew. Where columns are many, those below what k of them
        never fall below are left out too. Where it is sooner told here than later, so are those that do not matter
        beside the only label of a query."""


class Engine(Protocol):
    """What sets up filters."""

    @property
    def name(self) -> str:
        """What the engine is called in options."""

    @property
    def at_once(self) -> int:
        """Where products run on a device, which leaves the cores of the host to others: how many scores of moving
        documents to ask for at a time, from one thread. Zero where they run on the cores: ask from many threads."""

    def sieve(self, queries: Floats, k: int) -> Sieve:
        """For these unit queries, of which k survivors each are wanted in the end."""

    def meeting(self, columns: Columns, queries: Floats) -> Meeting:
        """For these moving documents and unit queries."""


def handfuls(lines: int, columns: int) -> Iterator[slice]:
    """Lines of a table of scores, as many at a time as stay in the cache."""
    return slices(lines, max(1, _AT_A_TIME // max(1, columns)))


def many(k: int) -> int:
    """With more columns in question than this, it pays to ask what k of them reach."""
    return 64 + 8 * k


def crowded(over: Mask, k: int) -> Ints:
    """The lines with so many."""
    return np.flatnonzero(over.sum(axis=1, dtype=np.int32) > many(k))


def kth_reached(scores: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
    """What k documents, by rows, reach for every query, of which there are at least so many.

    It is the k-th largest of the maxima of stretches. Finding those is one pass over the scores; finding the k best
    themselves would be many.
    """
    documents, queries = scores.shape
    length = max(1, min(32, documents // (4 * k)))
    stretches = scores[: documents // length * length].reshape(-1, length, queries)
    return kth_in_line(stretches.max(axis=1).T, k)


def kth_in_line(values: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
    """The k-th largest of each line."""
    place = values.shape[1] - k
    return np.partition(values, place, axis=1)[:, place]
