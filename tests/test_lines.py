"""What straight rays have to come above."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nudgevec.lines import Bars, Levels


@pytest.mark.parametrize("of_torch", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_a_ray_has_to_be_above_both_levels_at_one_angle(of_torch, infinite):
    """Small whole numbers: many rays touch a level where they leave the other one."""
    random = np.random.default_rng(0)
    low, high, *levels = random.integers(-4, 5, (6, 3000)).astype(np.float32)
    if infinite:
        levels[2][::2] = levels[3][::2] = -np.inf
        levels[0][::5] = levels[1][::5] = np.inf
    angles = np.linspace(0, np.pi / 2, 4001)[:, None]
    ends = [(low - at_low, high - at_high) for at_low, at_high in pairs(np.clip(levels, -1e3, 1e3))]
    higher_by = np.min([np.cos(angles) * begin + np.sin(angles) * end for begin, end in ends], axis=0)
    wanted, surely = (higher_by >= 0).any(axis=0), (higher_by < -0.01).all(axis=0)
    kind = torch.from_numpy if of_torch else np.asarray
    labels, stills = (Levels(kind(at_low), kind(at_high)) for at_low, at_high in pairs(levels))
    bars = Bars(labels, np.zeros(3000), np.full(3000, np.pi / 2), labels, stills)
    above = np.asarray(bars.under(kind(low), kind(high)))
    assert above[wanted].all()
    assert not above[surely].any()
    # Some are above each of them somewhere, and never above both.
    assert (surely & np.all([np.maximum(*each) >= 0 for each in ends], axis=0)).any()


def pairs(levels):
    return (levels[0], levels[1]), (levels[2], levels[3])
