"""Turning documents beside a label: whoever is ahead of it somewhere is kept, and most others are not."""

from __future__ import annotations

import numpy as np
import pytest

from nudgevec.cut.beside import ever_ahead
from nudgevec.cut.lines import Curves
from nudgevec.motion import height, peak


def curves(random, count, common, widest):
    score, slope = common + 0.1 * random.standard_normal((2, count))
    return score, slope, random.uniform(1e-3, widest, count)


@pytest.mark.parametrize("widest", [0.3, 1.5, 3.1])
@pytest.mark.parametrize("common", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("rests", [False, True])
def test_whoever_is_ahead_somewhere_is_kept(widest, common, rests):
    random = np.random.default_rng(0)
    count = 4000
    document, label = curves(random, count, common, widest), curves(random, count, common, widest)
    if rests:
        label = label[0], np.zeros(count), np.zeros(count)
    angles = np.linspace(0, np.pi, 1500)[:, None]
    ahead = (height(*document, angles) >= height(*label, angles)).any(axis=0)

    first, last = (height(*document, np.float64(phi)) for phi in (0, np.pi))
    ends = (height(*label, np.float64(phi)) for phi in (0, np.pi))
    slack = np.full(count, 1e-6, np.float32)
    of_label = Curves(*(np.float32(each) for each in (*label, *ends)), slack)
    kept = ever_ahead(first + 1e-6, last + 1e-6, document[2], of_label, np.arange(count))
    assert (kept | ~ahead).all()
    # Only where a label comes below zero is one that never is ahead kept, and where the grid has missed it.
    lowest = height(*label, angles).min(axis=0)
    assert (kept & ~ahead & (lowest > 0)).sum() < 0.01 * count
    assert (~kept).any()


def test_rounding_is_allowed_for():
    one, along = np.ones(1), 0.1 * np.sin(1)
    label = Curves(*(np.float32([each]) for each in (0.5, 0.1, 1.0, 0.5, 0.5 * np.cos(1) + along, 2e-5)))
    for below, kept in ((1.9e-5, True), (2.1e-5, False)):
        score = 0.5 - below
        last = score * np.cos(1) + along - 1e-3
        assert ever_ahead(score * one, last * one, one, label, np.zeros(1, np.int64)).tolist() == [kept]


@pytest.mark.parametrize("widest", [0.3, 1.5, 3.1])
@pytest.mark.parametrize("common", [-0.5, 0.0, 0.5])
def test_differences_stay_between_their_bounds(widest, common):
    """And come up to them, nearly, where the interval is short."""
    random = np.random.default_rng(1)
    lines, count = 300, 40
    documents = [values.reshape(lines, count) for values in curves(random, lines * count, common, widest)]
    label = [values[:, None] for values in curves(random, lines, common, widest)]
    low = random.uniform(0, widest, lines)
    high = low + random.uniform(0, 1, lines) ** 4 * widest
    slack = 1e-6

    def at(phi, these):
        return height(*these, phi[:, None])

    inside = np.linspace(low, high, 400)
    differences = np.stack([at(phi, documents) - at(phi, label) for phi in inside])
    both = (
        Curves(*np.float32([*these, at(low, these), at(high, these), 0 * these[0] + slack]))
        for these in (documents, label)
    )
    lower, upper = next(both).bounds_beside(next(both), low, high)
    assert (differences >= lower).all()
    assert (differences <= upper).all()
    short = high - low < 0.05
    assert short.sum() > 10
    assert (np.ptp(differences, axis=0) + 1e-3 > upper - lower)[short].all()


@pytest.mark.parametrize("stop", [1e-6, 0.999e-3, 1.001e-3, 0.5, 2.0, np.pi - 1e-3, np.pi - 1.1e-6])
def test_the_peak_is_the_highest_point(stop):
    """Never below it, also where the way is as short or as long as there are any."""
    random = np.random.default_rng(0)
    score, slope = random.standard_normal((2, 3000))
    last = height(score, slope, np.full(3000, stop), np.float64(stop))
    top = np.arctan2(slope, score)
    highest = np.maximum(np.maximum(score, last), np.where((top > 0) & (top < stop), np.hypot(score, slope), -np.inf))
    found = peak(score, last, np.full(3000, stop))
    assert (found >= highest).all()
    np.testing.assert_allclose(found, highest, rtol=3e-6)
