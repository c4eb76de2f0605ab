"""Shared set-up: how many problems the property tests generate, and where compiled code is kept.

``full`` (make test) generates the same problems every time, so that a failure is the change's and not the day's;
``quick`` and ``explore`` draw new ones, to find what is not known yet.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Tests with a cache folder of their own share the compiled code.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "numba"))

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("quick", max_examples=300, **_COMMON)
settings.register_profile("full", max_examples=10_000, derandomize=True, **_COMMON)
settings.register_profile("explore", max_examples=50_000, **_COMMON)
settings.load_profile(os.environ.get("NUDGEVEC_PROPERTY_TESTS", "quick"))


@pytest.fixture(scope="session", autouse=True)
def _compiled():
    """Compile before the first test: the message about it would be in the output that a test looks at."""
    from nudgevec import NudgeM, NudgeN

    for method in (NudgeN, NudgeM):
        for kind in (np.float32, np.float64):
            documents = np.eye(4, dtype=kind)
            queries, labels = documents[:2] + documents[1:3] / 2, [[1], [2]]
            others = queries + documents[3:] / 4
            method(guard=0).fit(documents, (queries, labels), (others, labels), (others, labels))
