"""Sorted lists come out as those of ``np.unique`` and of a stable sort."""

from __future__ import annotations

import numpy as np
import pytest

from nudgevec.arithmetic.sorting import begins, distinct, numbered, sorted_places, sorted_values, sorted_within

LISTS = {
    "none": np.empty(0, np.int64),
    "one": np.array([7]),
    "small": np.random.default_rng(0).integers(0, 50, 1000),
    "at the edge of 16 bits": np.array([1 << 16, 0, (1 << 16) - 1, 1 << 16, 3]),
    "large": np.random.default_rng(1).integers(0, 1 << 40, 1000).repeat(2),
}
OTHERS = {
    "angles": np.random.default_rng(2).random(500).repeat(2),
    "unsigned": np.array([2**64 - 1, 0, 2**63, 0], np.uint64),
}


@pytest.mark.parametrize("numbers", LISTS.values(), ids=LISTS.keys())
def test_sorted_places(numbers):
    assert np.array_equal(sorted_places(numbers), np.argsort(numbers, kind="stable"))


VALUES = {
    "none": np.empty(0),
    "one": np.array([-7.0]),
    "all the same": np.full(9, 0.3),
    "with repetitions": np.random.default_rng(3).standard_normal(300).repeat(2)[::-1],
    "far apart": np.array([1e150, -1e150, 1e-300, 0.0, -0.0, 1e-300, 3.0, 2.0, 3.0]),
    "close together": 1 + np.random.default_rng(4).integers(0, 100, 500) * 2.0**-52,
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_sorted_values(values):
    assert np.array_equal(sorted_values(values), np.argsort(values, kind="stable"))
    group = np.random.default_rng(5).integers(0, 7, len(values))
    assert np.array_equal(sorted_within(group, values), np.lexsort((values, group)))


@pytest.mark.parametrize("numbers", [*LISTS.values(), *OTHERS.values()], ids=[*LISTS, *OTHERS])
def test_each_number_once(numbers):
    once, which = np.unique(numbers, return_inverse=True)
    assert np.array_equal(distinct(numbers), once)
    assert np.array_equal(np.sort(numbers)[begins(np.sort(numbers))], once)
    ours, ours_which = numbered(numbers)
    assert np.array_equal(ours, once)
    assert np.array_equal(ours_which, which)
