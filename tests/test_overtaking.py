"""Rays beside a single label: none that matters is left out, and hardly any that does not is listed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nudgevec.cut.lines import Curves
from nudgevec.cut.overtaking import Lone, Rays, overtaking

# Ahead all the way, in the only line.
NOBODY = np.zeros(1, np.int64)


def ahead_of_label(low, high, part):
    """Which documents are ahead after some part of the way."""
    return (1 - part) * low + part * high > 0


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("k", [1, 3, 10])
def test_ranks_in_the_top_k_are_right(seed, k):
    random = np.random.default_rng(seed)
    lines, count = 6, random.integers(0, 150)
    low, high = random.standard_normal((2, count)) - random.choice([0, 0.5, 2], (2, 1))
    low[random.random(count) < 0.1] = high[random.random(count) < 0.1] = 0.0
    high = np.where(random.random(count) < 0.1, low, high)
    # The label of each line is among its documents.
    line = np.concatenate([np.arange(lines), random.integers(0, lines, count)])
    low, high = (np.concatenate([np.zeros(lines), each]) for each in (low, high))
    off = random.choice([0.0, 1e-6, 0.05], len(line))
    known = random.integers(0, 3, lines)
    kept, ahead = overtaking(
        Rays(line, *(each + off * random.uniform(-1, 1, len(line)) for each in (low, high)), off), known, k
    )
    answered = np.isin(np.arange(lines), kept)
    for part in [0.0, 1.0, *random.random(200)]:
        there = ahead_of_label(low, high, part)
        rank = 1 + known + np.bincount(line[there], minlength=lines)
        told = 1 + ahead + np.bincount(line[kept][there[kept]], minlength=lines)
        assert (rank[~answered] > k).all()
        assert (np.minimum(told, k + 1) == np.minimum(rank, k + 1))[answered].all()


@pytest.mark.parametrize("turned", [False, True])
def test_those_it_meets_outside_the_top_k_are_left_out(turned):
    """The label begins with about 1,400 documents ahead of it and ends on top, or the other way round."""
    low, high = np.random.default_rng(0).standard_normal((2, 2000)) + np.array([[0.5], [-4.5]])
    before = np.array([ahead_of_label(low, high, part - 1e-12).sum() for part in low / (low - high)])
    meets = (low > 0) != (high > 0)
    if turned:
        low, high = high, low
    kept, ahead = overtaking(Rays(np.zeros(2000, np.int64), low, high, np.zeros(2000)), NOBODY, 5)
    assert set(kept) == set(np.flatnonzero(meets & (before <= 5)))
    assert ahead == 0


def test_a_label_that_is_never_in_the_top_k_has_no_documents():
    """Twenty leave after half of the way, twenty have come by then."""
    low, high = np.repeat([[1.0, -0.9], [-0.9, 1.0]], 20, axis=1)
    kept, _ = overtaking(Rays(np.zeros(40, np.int64), low, high, np.zeros(40)), NOBODY, 10)
    assert len(kept) == 0
    kept, _ = overtaking(Rays(np.zeros(40, np.int64), low, high, np.zeros(40)), NOBODY, 21)
    assert len(kept) == 40


def test_a_tie_counts_as_ahead():
    low, high = np.full(2, -5e-13), np.array([-5e-13, -1.0])
    kept, _ = overtaking(Rays(np.zeros(2, np.int64), low, high, np.zeros(2)), NOBODY, 1)
    assert kept.tolist() == [0, 1]


def test_nothing_is_listed_where_k_are_ahead_all_the_way():
    low, high = np.array([1.0, 1.0, 1.0, -1.0, 1.0]), np.array([1.0, 1.0, -1.0, 1.0, -1.0])
    line = np.array([0, 0, 0, 0, 1])
    kept, ahead = overtaking(Rays(line, low, high, np.zeros(5)), np.zeros(2, np.int64), 2)
    assert kept.tolist() == [4]
    assert ahead.tolist() == [2, 0]


def test_nobody_matters_where_there_is_nobody():
    kept, ahead = overtaking(Rays(np.empty(0, np.int64), *np.empty((3, 0))), np.array([0, 2]), 2)
    assert len(kept) == 0
    assert ahead.tolist() == [0, 2]


def worth_scoring(lone, rays, k, kind, handful):
    """Which rays are, told from arrays of NumPy or PyTorch, so many at a time."""
    if kind == "torch":
        lone, rays = lone.sent(torch.from_numpy), Rays(*map(torch.from_numpy, rays))
    count = len(rays.line)
    handfuls = [rays.some(slice(start, start + handful)) for start in range(0, count, handful)]
    return np.asarray(lone.worth_scoring(handfuls, count, k))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("k", [1, 3, 10])
def test_who_is_not_worth_scoring_changes_no_rank_in_the_top_k(seed, k, kind):
    """Of two lines with one label and two with several; documents move or rest."""
    random = np.random.default_rng(seed)
    lines, count = 4, random.integers(1, 300)
    line = random.integers(0, lines, count)
    ends = random.standard_normal((2, lines))
    label = Curves(*np.zeros((3, lines), np.float32), *ends.astype(np.float32), np.full(lines, 1e-6, np.float32))
    above = random.standard_normal((2, count)) - random.choice([0, 0.5, 2], (2, 1))
    off = random.choice([1e-6, 0.05], count)
    low, high = (above + ends[:, line] + off * random.uniform(-1, 1, (2, count))).astype(np.float32)
    off = (off + 1e-6).astype(np.float32)
    rests = random.random(count) < 0.3
    still = Curves(*np.zeros((3, int(rests.sum())), np.float32), low[rests], high[rests], off[rests])
    alone = np.array([True, False, True, False])
    lone = Lone.joined(
        Lone.of(alone[part], label.some(part), line[rests & here] - part.start, still.some(here[rests]))
        for part in (slice(0, 2), slice(2, 4))
        for here in [(line >= part.start) & (line < part.stop)]
    )
    rays = Rays(line[~rests], low[~rests], high[~rests], off[~rests])
    kept = rests.copy()
    kept[~rests] = worth_scoring(lone, rays, k, kind, handful=37)
    assert kept[~alone[line]].all()
    for part in [0.0, 1.0, *random.random(100)]:
        there = ahead_of_label(*above, part)
        rank, told = (1 + np.bincount(line[some], minlength=lines) for some in (there, there & kept))
        assert (np.minimum(told, k + 1) == np.minimum(rank, k + 1)).all()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_few_are_worth_scoring(kind):
    """The label begins with about 1,400 documents ahead of it and ends on top."""
    ends = (np.random.default_rng(0).standard_normal((2, 2000)) + np.array([[0.5], [-4.5]])).astype(np.float32)
    label, nothing = (Curves(*np.zeros((6, count), np.float32)) for count in (1, 0))
    lone = Lone.of(np.ones(1, np.bool_), label, np.empty(0, np.int64), nothing)
    rays = Rays(np.zeros(2000, np.int64), *ends, np.full(2000, 1e-3, np.float32))
    assert 5 <= worth_scoring(lone, rays, 5, kind, handful=512).sum() <= 30
