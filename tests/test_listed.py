"""Still documents that may be taken for ahead: whether a label is in the top k stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from nudgevec.cut.known import Known
from nudgevec.cut.lines import Bars, Curves, Levels
from nudgevec.cut.listed import Begun, as_good_as_ahead


def begun(line, score, slack, labels, lines):
    """Still documents of some lines; what else there is does not matter here."""
    nothing = np.zeros(len(line), np.float32)
    level = Levels(np.zeros(lines, np.float32), np.zeros(lines, np.float32))
    return Begun(
        group=slice(0, lines),
        known=Known(*(np.empty(0, np.int64) for _ in range(3)), *(np.empty(0) for _ in range(3))),
        bars=Bars(level, np.zeros(lines), np.ones(lines), level, level),
        label=np.zeros((lines, 1), np.int64),
        labelled=Curves(*(np.zeros((lines, 1), np.float32) for _ in range(6))),
        alive=np.ones((lines, 1), np.bool_),
        line=line,
        place=np.arange(len(line)),
        rests=Curves(score, nothing, nothing, score, score, slack),
        is_label=labels,
    )


@pytest.mark.parametrize("off", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("seed", range(10))
def test_labels_are_in_the_top_k_where_they_were(seed, k, off):
    random = np.random.default_rng(seed)
    lines = 5
    line = np.sort(random.integers(0, lines, 60))
    score = np.round(random.random(60), 1 + seed % 3).astype(np.float32)
    slack = (off * random.random(60)).astype(np.float32)
    labels = random.random(60) < 0.1
    exact = score + slack * random.uniform(-1, 1, 60)
    others = np.bincount(line[labels], minlength=lines) + random.integers(1, 4, lines)
    taken = as_good_as_ahead(begun(line, score, slack, labels, lines), others, k)
    assert not (taken & labels).any()
    for number in range(lines):
        here = (line == number) & ~labels
        for label in [*np.unique(exact[here]), 2.0]:
            ahead = here & (exact >= label)
            for more in range(others[number]):
                inside = ahead.sum() + more < k
                assert inside == ((ahead & ~taken).sum() + (here & taken).sum() + more < k)


def test_as_many_as_there_can_be_are_taken():
    score = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)
    documents = begun(np.zeros(5, np.int64), score, np.zeros(5, np.float32), np.zeros(5, np.bool_), 1)
    for others, taken in [(1, 3), (2, 2), (3, 1), (4, 0), (9, 0)]:
        assert as_good_as_ahead(documents, np.array([others]), 4).sum() == taken
    # All of them where there are no more.
    assert as_good_as_ahead(documents, np.array([1]), 10).all()
