"""The curve equals brute force everywhere, for both methods and every metric."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from nudgevec import NudgeM, NudgeN, columns, cutting
from problems import METRICS, problems

# A tie is a difference below 1e-12. Where two curves touch without crossing, they are that close within
# sqrt(2e-12) = 1.4e-6 radians of the edge, and brute force sees a tie that the curve places at the edge.
RESOLUTION = 3e-6
# Where to look inside a plateau. Not its middle: in problems made of small whole numbers two documents
# may well be tied exactly there.
INSIDE = 0.4372193


def angle(method, gamma):
    if method is NudgeN:
        return 2 * math.asin(math.sqrt(gamma) / 2)
    return math.pi / 2 if math.isinf(gamma) else math.atan(gamma)


def gamma_at(method, phi):
    return 4 * math.sin(phi / 2) ** 2 if method is NudgeN else math.tan(phi)


METHODS = pytest.mark.parametrize(("method", "move"), [(NudgeN, oracle.move_n), (NudgeM, oracle.move_m)])
SOMEWHERE = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@METHODS
@given(problem=problems(), metric=st.sampled_from(METRICS), where=SOMEWHERE)
def test_curve_equals_brute_force(method, move, problem, metric, where):
    check(method, move, problem, f"{metric}@{problem.k}", where)


@METHODS
@settings(max_examples=max(30, settings().max_examples // 5))
@given(problem=problems(most=60), metric=st.sampled_from(METRICS), where=SOMEWHERE)
def test_curve_equals_brute_force_however_finely_cut(method, move, problem, metric, where):
    """Larger problems, with every interval cut as often as it can be."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columns, "_FEW", 0)
        patched.setattr(cutting, "_CELL_PAIRS", 0)
        patched.setattr(cutting, "_CELL_SPARE", -1000)
        patched.setattr(cutting, "_CELL_DEPTH", 6)
        patched.setattr(cutting, "_IN_VAIN", -1)
        check(method, move, problem, f"{metric}@{problem.k}", where)


def check(method, move, problem, metric, where):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems repeat queries on purpose
        tuner = method(metric, guard=0).fit(problem.documents, problem.train, problem.validation)
    curve = tuner.curve_
    assert curve.edges[0] == 0
    assert len(curve.edges) == len(curve.values) + 1
    assert (np.diff(curve.edges) > 0).all()

    def brute(gamma):
        moved = move(problem.documents, *problem.train, gamma)
        # Long rays make large scores; a tie is relative to them.
        return oracle.value(moved, *problem.validation, metric, tie=oracle.TIE * max(1.0, gamma))

    assert curve.at_zero == pytest.approx(brute(0.0), abs=1e-9)

    angles = [angle(method, gamma) for gamma in curve.edges]
    for low, high, value in zip(angles, angles[1:], curve.values, strict=False):
        if high - low > RESOLUTION:
            assert value == pytest.approx(brute(gamma_at(method, low + INSIDE * (high - low))), abs=1e-9)
    for part in where:
        phi = part * angles[-1] * (1 - 1e-3)
        if phi > RESOLUTION and min(abs(phi - edge) for edge in angles) > RESOLUTION:
            gamma = gamma_at(method, phi)
            assert curve(gamma) == pytest.approx(brute(gamma), abs=1e-9)

    wide = np.diff(angles) > RESOLUTION
    best = max(curve.at_zero, curve.values[wide].max())
    if best > curve.at_zero:
        assert curve(tuner.gamma_) >= best
        assert curve(tuner.gamma_) == pytest.approx(brute(tuner.gamma_), abs=1e-9)
    elif curve.best == curve.at_zero:
        assert tuner.gamma_ == 0
        assert len(tuner.patch_) == 0
    assert np.isfinite(tuner.transform(problem.documents)).all()
