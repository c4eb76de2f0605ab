"""Engines: where the large products are computed.

An engine only filters: of all (query, document) scores it finds those that may exceed a floor, fast and in
low precision, and never misses one. What it lets through is scored again in float64 by the caller, so every
engine gives the same answer.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from nudgevec.engines.base import Engine
from nudgevec.engines.numpy_engine import NumpyEngine
from nudgevec.errors import OptionError

ENGINES = ("auto", "numpy", "torch")


def pick(name: str, work: float) -> Engine:
    """The engine of that name; ``"auto"`` weighs what is installed against the work (in multiplications)."""
    if name not in ENGINES:
        raise OptionError(f"unknown engine {name!r}: use one of {', '.join(ENGINES)}")
    if name == "torch" or (name == "auto" and _torch_pays(work)):
        return _torch_engine()
    return NumpyEngine()


def _torch_engine() -> Engine:
    """PyTorch on the GPU where there is one, else on the CPU."""
    from nudgevec.engines.pytorch import import_torch

    if import_torch().cuda.is_available():
        from nudgevec.engines.device_engine import DeviceEngine

        return DeviceEngine()
    from nudgevec.engines.torch_engine import TorchEngine

    return TorchEngine()


def _torch_pays(work: float) -> bool:
    """PyTorch is several times as fast where there is a GPU and about twice as fast where the CPU multiplies 8 bits. It
    takes seconds to import."""
    if work < (2e10 if "torch" in sys.modules else 2e12) or find_spec("torch") is None:
        return False
    from nudgevec.engines.pytorch import import_torch, multiplies_integers

    return bool(import_torch().cuda.is_available()) or multiplies_integers()
