"""Shared set-up: how many problems the property tests generate, and where compiled code is kept.

``full`` (make test) generates the same problems every time, so that a failure is the change's and not the day's;
``quick`` and ``explore`` draw new ones, to find what is not known yet.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# numba notices a change of the file that a function is in, but not of the files of the functions it calls. A cache for
# every state of the core makes sure that the tests run the code as it is.
_ROOT = Path(__file__).parent.parent
_SOURCES = sorted((_ROOT / "src" / "nudgevec" / "core").glob("*.py"))
_STATE = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
os.environ["NUMBA_CACHE_DIR"] = str(_ROOT / ".cache" / "numba" / _STATE)

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("quick", max_examples=300, **_COMMON)
settings.register_profile("full", max_examples=10_000, derandomize=True, **_COMMON)
settings.register_profile("explore", max_examples=50_000, **_COMMON)
settings.load_profile(os.environ.get("NUDGEVEC_PROPERTY_TESTS", "quick"))
