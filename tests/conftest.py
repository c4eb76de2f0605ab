"""Shared set-up: how many problems the property tests generate."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
settings.register_profile("quick", max_examples=300, **_COMMON)
settings.register_profile("full", max_examples=10_000, **_COMMON)
settings.load_profile(os.environ.get("NUDGEVEC_PROPERTY_TESTS", "quick"))
