"""What is known of labels before any other document is looked at."""

from __future__ import annotations

from math import pi

import numpy as np

from nudgevec.cut.known import Known


def test_the_window_is_where_labels_are_above_a_document_at_rest():
    """Neither narrower nor, but for rounding, wider. Labels that are never above it are not asked about."""
    random = np.random.default_rng(0)
    query = random.integers(0, 300, 900)
    score, slope = random.uniform(-1, 1, (2, len(query)))
    heights = random.uniform(-1, 1, 300)
    heights[::10] = -np.inf
    angles = np.linspace(0, pi / 2, 20001)[:, None]

    def above(which):
        at_zero = score[which] - np.maximum(heights[query[which]], -1e3)
        return at_zero * np.cos(angles) + slope[which] * np.sin(angles) >= 0

    hopeful = np.flatnonzero(above(np.arange(len(query))).any(axis=0))
    asked = np.unique(query[hopeful])
    ours = [hopeful[query[hopeful] == each] for each in asked]
    label = np.concatenate(ours)
    line = np.searchsorted(asked, query[label])
    known = Known(line, label, label, score[label], slope[label], np.full(len(label), pi / 2))
    low, high = known.window(heights[asked], pi / 2)

    seen = [np.flatnonzero(above(which).any(axis=1)) for which in ours]
    first, last = (angles[[each[end] for each in seen], 0] for end in (0, -1))
    assert (low <= first).all()
    assert (high >= last).all()
    np.testing.assert_allclose(low, first, atol=1e-3)
    np.testing.assert_allclose(high, last, atol=1e-3)
    assert (low > 0.1).sum() > 10
    assert (high < 1.4).sum() > 10
