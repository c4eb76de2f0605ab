"""The choice of a step: the highest plateau, in the middle of its widest gap, as the slow obvious version finds it."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from nudgevec.sweep import curve
from nudgevec.sweep.curve import RESOLUTION, _safest


def slowly(values, angles, crossings, motion):
    """All gaps of all plateaus, one by one."""
    borders = sorted({*angles[:-1], *(each for each in crossings if each < motion.end)})
    borders.append(motion.span if motion.span > borders[-1] + RESOLUTION else motion.end)
    gaps = []
    for begin, end in pairwise(borders):
        plateau = max(place for place, left in enumerate(angles[:-1]) if left <= begin)
        gaps.append((end - begin, plateau, (begin + end) / 2))
    enough = min(RESOLUTION, max(gaps)[0]) * (1 - 1e-9)
    best = max(values[plateau] for width, plateau, _ in gaps if width > enough)
    _, plateau, middle = max((gap for gap in gaps if values[gap[1]] == best), key=lambda gap: gap[0])
    return plateau, middle


@pytest.mark.parametrize("some", [1, 3, 4096])
@pytest.mark.parametrize("widest", [1.0, 20 * RESOLUTION, 0.01 * RESOLUTION])
@pytest.mark.parametrize("seed", range(20))
def test_the_safest_place(seed, widest, some, monkeypatch):
    monkeypatch.setattr(curve, "_SOME", some)
    random = np.random.default_rng(seed)
    edges = np.append(0.0, np.sort(widest * random.random(random.integers(0, 30))))
    values = random.integers(0, 6, len(edges)) / 6
    crossings = np.sort(np.concatenate([random.choice(edges, 5), widest * random.random(random.integers(0, 60))]))
    end = widest * random.choice([1.0, 1.5])
    motion = SimpleNamespace(end=end, span=random.choice([0.9, 1.0]) * end)
    edges = edges[edges < end]
    arguments = values[: len(edges)], np.append(edges, end), np.unique(crossings), motion
    assert _safest(*arguments) == slowly(*arguments)
