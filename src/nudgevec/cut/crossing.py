"""Straight rays beside the only label of their line, for metrics that ask no more than whether it is in the top k.

While each document is surely ahead of the label or surely behind it, so is the label in the top k or out of it. Only
where a document changes places with it may that change: most do so while others keep the label in or out all the same.
What is left are short stretches, with a document or two each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nudgevec.arithmetic.rows import Floats, Ints, Mask
from nudgevec.arithmetic.sorting import begins, sorted_within
from nudgevec.cut.overtaking import Rays

# Of the way. Open stretches reach a little further, so what is too short to be told from its neighbours is open too.
_FURTHER = 1e-8
_SHORT = 10 * _FURTHER

Part = tuple[Floats, Floats]
"""From which part of the way and up to which, for each document."""


class Stretches(NamedTuple):
    """Parts of the way of some lines."""

    line: Ints
    begin: Floats
    end: Floats

    def as_angles(self, low: Floats, high: Floats) -> Stretches:
        """The same, where the way of each line goes from one angle to another."""
        low, high = low[self.line], high[self.line]
        sine, cosine = np.sin(high - low), np.cos(high - low)
        begin, end = (low + np.arctan2(part * sine, 1 - part + part * cosine) for part in (self.begin, self.end))
        return Stretches(self.line, begin, np.where(self.end == 1, high, end))


class Crossing(NamedTuple):
    """Stretches on which the label is surely in the top k, and those where that is open; the documents that matter on
    the latter, by the number of the stretch, and how many more are ahead on each."""

    inside: Stretches
    open: Stretches
    document: Ints
    number: Ints
    ahead: Ints


def crossing(rays: Rays, ahead: Ints, lines: Ints, k: int) -> Crossing:
    """Where labels get into the top k or out of it.

    ``rays`` are documents other than the labels, ``ahead`` counts more that are ahead all the way, for every line, and
    ``lines`` are the numbers of those to look at, sorted, at least one.
    """
    line, low, high, off = rays.with_room()
    # Each document is surely ahead between two parts of the way, and not surely behind between two others.
    sure, maybe = (_above(low, high, level) for level in (off, -off))
    at, where, least, most = _changes(line, sure, maybe, lines)
    least += ahead[at]
    most += ahead[at]
    last = np.append(begins(at)[1:], True)
    until = np.where(last, 1.0, np.append(where[1:], 1.0))
    inside, outside = most < k, least >= k
    unsure = (until - where <= _SHORT) | ~(inside | outside)
    # From one to the other there is something in between, unless that is too short for float64.
    abrupt = np.flatnonzero(((inside[:-1] & outside[1:]) | (outside[:-1] & inside[1:])) & ~last[:-1])
    unsure[abrupt] = unsure[abrupt + 1] = True
    inside &= ~unsure
    # Neighbours of a kind are one stretch. What is open begins a little earlier and ends a little later.
    begin = np.where(unsure, where - _FURTHER, where + _FURTHER)
    end = np.where(unsure, until + _FURTHER, until - _FURTHER)
    begin[begins(at)], end[last] = 0.0, 1.0
    opened = _joined(unsure, at, begin, end)
    return Crossing(_joined(inside, at, begin, end), opened, *_documents(opened, line, sure, maybe, ahead))


def _above(low: Floats, high: Floats, level: Floats) -> Part:
    """Between which parts of the way rays are above a level: from 0, or up to 1, or never (from 1 up to 0)."""
    # As sums and products, which take less time than to choose one by one.
    part = np.clip((low - level) / (low - high + (low == high)), 0.0, 1.0)
    not_first, not_last = (low <= level).astype(np.float64), (high <= level).astype(np.float64)
    begin = not_first * (part + not_last * (1 - part))
    end = 1 - not_last * (1 - part + not_first * part)
    return begin, end


def _changes(line: Ints, sure: Part, maybe: Part, lines: Ints) -> tuple[Ints, Floats, Ints, Ints]:
    """Parts of the way from which on, up to the next one, a number of documents is surely ahead, and may be ahead:
    (line, part, least, most), sorted, of each line from 0 on."""
    at, where = [lines], [np.zeros(len(lines))]
    least: list[Ints] = []
    most: list[Ints] = []
    for (begin, end), changing, same in ((sure, least, most), (maybe, most, least)):
        # How many are there from the beginning, then what changes.
        there = begin < end
        changing.insert(0, np.bincount(line[there & (begin == 0)], minlength=lines[-1] + 1)[lines])
        for part, some, step in ((begin, there & (begin > 0), 1), (end, there & (end < 1), -1)):
            which = np.flatnonzero(some)
            at.append(line[which])
            where.append(part[which])
            changing.append(np.full(len(which), step))
            same.append(np.zeros(len(which), np.int64))
    return _summed(np.concatenate(at), np.concatenate(where), np.concatenate(least), np.concatenate(most))


def _summed(at: Ints, where: Floats, least: Ints, most: Ints) -> tuple[Ints, Floats, Ints, Ints]:
    """Changes in order, and what they come to in their line so far."""
    order = sorted_within(at, where)
    at, where = at[order], where[order]
    # What changes at the same place changes at once.
    final = np.flatnonzero(np.append((begins(at) | begins(where))[1:], True))
    least, most = (np.cumsum(each[order])[final] for each in (least, most))
    at, where = at[final], where[final]
    # Sums begin anew with each line.
    first = np.flatnonzero(begins(at))
    count = np.diff(np.append(first, len(at)))
    least, most = (each - np.repeat(np.append(0, each)[first], count) for each in (least, most))
    return at, where, least, most


def _joined(kind: Mask, at: Ints, begin: Floats, end: Floats) -> Stretches:
    """Those of a kind, one for neighbours."""
    some = np.flatnonzero(kind)
    new = begins(at[some]) | (np.diff(some, prepend=-2) > 1)
    first = np.flatnonzero(new)
    final = np.append(first[1:], len(some)) - 1 if len(first) else first
    return Stretches(at[some[first]], begin[some[first]], end[some[final]])


def _documents(stretches: Stretches, line: Ints, sure: Part, maybe: Part, ahead: Ints) -> tuple[Ints, Ints, Ints]:
    """Which documents matter on which stretch, and how many more are ahead on each."""
    first, count = (np.searchsorted(line, stretches.line, side=side) for side in ("left", "right"))
    count -= first
    number = np.repeat(np.arange(len(count)), count)
    document = np.arange(len(number)) + np.repeat(first - (np.cumsum(count) - count), count)
    begin, end = stretches.begin[number], stretches.end[number]
    all_along = (sure[0][document] <= begin) & (sure[1][document] >= end)
    never = (maybe[0][document] >= end) | (maybe[1][document] <= begin)
    matter = np.flatnonzero(~all_along & ~never)
    more = np.bincount(number[all_along], minlength=len(count))
    return document[matter], number[matter], ahead[stretches.line] + more
