"""Where a label gets into the top k and out of it, for metrics that ask no more, and what matters there."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from nudgevec.cut.cells import Cells
from nudgevec.cut.crossing import crossing
from nudgevec.cut.cutting import Node, cut
from nudgevec.cut.lines import Curves
from nudgevec.cut.overtaking import Rays
from nudgevec.sweep.ranks import rank_events


def told_at(found, rays, part, lines, k):
    """Whether each label is in the top k after some part of the way, as the stretches have it, and how many of these
    speak of it."""
    there = (1 - part) * rays.low + part * rays.high > 0
    inside, spoken = np.zeros(lines, bool), np.zeros(lines, int)
    for line, begin, end in zip(*found.inside, strict=True):
        if begin < part < end:
            inside[line], spoken[line] = True, spoken[line] + 1
    for number, (line, begin, end) in enumerate(zip(*found.open, strict=True)):
        if begin < part < end:
            rank = 1 + found.ahead[number] + there[found.document[found.number == number]].sum()
            inside[line], spoken[line] = rank <= k, spoken[line] + 1
    return inside, spoken


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("k", [1, 3, 10])
def test_who_is_in_the_top_k_is_right(seed, k):
    random = np.random.default_rng(seed)
    lines, count = 5, random.integers(0, 120)
    low, high = random.standard_normal((2, count)) - random.choice([0, 0.5, 1], (2, 1))
    low[random.random(count) < 0.1] = high[random.random(count) < 0.1] = 0.0
    high = np.where(random.random(count) < 0.1, low, high)
    if seed % 4 == 0:
        # Many change places at the very same angle.
        low, high = np.round(low), np.round(high)
    line = np.sort(random.integers(0, lines, count))
    off = random.choice([0.0, 1e-6, 0.05], count)
    ahead = random.integers(0, 3, lines)
    truth = Rays(line, low, high, off)
    seen = Rays(line, *(each + off * random.uniform(-1, 1, count) for each in (low, high)), off)
    found = crossing(seen, ahead, np.arange(lines), k)
    for part in random.random(200):
        rank = 1 + ahead + np.bincount(line[(1 - part) * low + part * high > 0], minlength=lines)
        inside, spoken = told_at(found, truth, part, lines, k)
        assert (spoken <= 1).all()
        assert (inside == (rank <= k)).all()


def test_few_documents_matter():
    """A label that begins behind some 700 documents and ends on top gets in once; all but a few meet it elsewhere."""
    low, high = np.random.default_rng(0).standard_normal((2, 1000)) + np.array([[0.5], [-4.5]])
    rays = Rays(np.zeros(1000, np.int64), low, high, np.full(1000, 1e-6))
    found = crossing(rays, np.array([0]), np.array([0]), 100)
    assert len(found.inside.line) == len(found.open.line) == len(found.document) == 1
    assert found.ahead.tolist() == [99]
    assert found.inside.begin == found.open.end
    assert found.inside.end == 1
    part = low[found.document] / (low - high)[found.document]
    assert found.open.begin < part < found.open.end


def test_stretches_meet():
    """What is told of one line leaves nothing out but where the label is surely behind k others."""
    random = np.random.default_rng(1)
    low, high = random.standard_normal((2, 60))
    rays = Rays(np.zeros(60, np.int64), low, high, np.full(60, 1e-3))
    found = crossing(rays, np.array([0]), np.array([0]), 30)
    stretches = sorted([*zip(*found.inside[1:], strict=True), *zip(*found.open[1:], strict=True)])
    gaps = [(end, begin) for (_, end), (begin, _) in pairwise([(0, 0), *stretches, (1, 1)]) if end != begin]
    assert 0 < len(gaps) < len(stretches)
    for end, begin in gaps:
        middle = (end + begin) / 2
        assert ((1 - middle) * low + middle * high > 0).sum() >= 30


def test_a_label_alone_is_inside_all_the_way():
    nothing = np.empty(0)
    found = crossing(Rays(np.empty(0, np.int64), nothing, nothing, nothing), np.array([0, 2]), np.array([0, 1]), 2)
    assert [each.tolist() for each in found.inside] == [[0], [0.0], [1.0]]
    assert len(found.open.line) == 0


def test_a_tie_is_open():
    """A document that scores the same at both ends counts as ahead, and nobody can tell from float32."""
    found = crossing(Rays(*np.zeros((1, 1), np.int64), *np.zeros((3, 1))), np.array([0]), np.array([0]), 1)
    assert found.document.tolist() == [0]
    assert [each.tolist() for each in found.open] == [[0], [0.0], [1.0]]


def test_what_is_too_short_is_one_stretch():
    """One document leaves and another comes a moment later: in between the label is in the top k."""
    moment = 5e-9
    low, high = np.array([1.0, -1.0 - 2 * moment]), np.array([-1.0, 1.0 - 2 * moment])
    found = crossing(Rays(np.zeros(2, np.int64), low, high, np.zeros(2)), np.array([0]), np.array([0]), 1)
    assert len(found.inside.line) == 0
    assert len(found.open.line) == 1
    assert sorted(found.document) == [0, 1]


def test_a_change_too_short_for_float64_is_open():
    far = np.full(1, 1e9)
    found = crossing(Rays(np.zeros(1, np.int64), -far, far, np.zeros(1)), np.array([0]), np.array([0]), 1)
    assert found.document.tolist() == [0]
    assert found.open.begin < 0.5 < found.open.end


@pytest.mark.parametrize(("listed", "ahead"), [(7, 0), (5, 2)])
def test_a_turning_label_is_inside_where_it_is_listed_and_too_few_are_ahead(listed, ahead):
    """Of two documents and a label, or another document in its place."""

    def resting(*scores):
        score = np.array([scores], np.float32)
        nothing = np.zeros_like(score)
        return Curves(score, nothing, nothing, score, score, nothing + np.float32(1e-6))

    one, angles = np.zeros(1, np.int64), (np.zeros(1), np.ones(1))
    documents, label = resting(0.9, 0.8, 0.5), resting(0.5)
    node = Node(0, one, *angles, one, np.array([[3, 4, listed]]), documents, np.array([[7]]), label, None)
    (leaf,) = cut([node], SimpleNamespace(turns=True, span=2.0), 3, flat=True)
    assert leaf.column.tolist() == [listed]
    assert leaf.ahead.tolist() == [ahead]


@pytest.mark.parametrize(("k", "flat", "touched"), [(1, True, 1), (2, True, 0), (2, False, 1)])
def test_a_tie_for_an_instant_matters_where_it_takes_the_last_place(k, flat, touched):
    """A document turns up to the height of a label at rest, and down again."""
    one = np.zeros(1, np.int64)
    top = 0.7
    cells = Cells(
        query=one,
        low=np.zeros(1),
        high=np.full(1, 1.5),
        ahead=one,
        start=np.array([0, 2]),
        score=np.array([1.0, np.cos(top)]),
        slope=np.array([0.0, np.sin(top)]),
        stop=np.array([0.0, 1.5]),
        label=np.array([0, -1]),
    )
    _, ranks = rank_events(cells, k, flat=flat)
    assert ranks.touches == pytest.approx([top] * touched)
    assert len(ranks.phi) == 0
