"""Arrays of NumPy or of PyTorch: what is decided about pairs is written once, and runs where their scores are."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def functions_for(array: Any) -> Any:
    """The module whose functions work on this array. Only those are used that both have, and that do the same."""
    return np if isinstance(array, (np.ndarray, np.generic)) else sys.modules["torch"]
