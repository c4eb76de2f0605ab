"""Which method suits what a store compares by."""

from __future__ import annotations

import numpy as np

from nudgevec.core.exact import norms
from nudgevec.errors import StoreError
from nudgevec.patch import Patch

# Vectors are of unit length when they are so close to it.
_UNIT = 1e-3


def check_suits(patch: Patch, where: str, metric: str | None) -> None:
    """Refuse a patch that was tuned for something else than the store compares by."""
    if patch.similarity == "dot":
        check_dot(where, metric, patch.method)
    if patch.similarity == "cosine" and metric != "cosine":
        far = np.abs(norms(patch.before) - 1).max()
        if far > _UNIT:
            raise StoreError(
                f"{where} {_compares(metric)}, and NUDGE-{patch.method} is right for cosine, or for unit vectors "
                f"(these are off by up to {far:.2g}): normalise them, or tune with --method M for dot"
            )


def check_dot(where: str, metric: str | None, method: str) -> None:
    """Refuse a method for inner product where something else is compared by."""
    if metric != "dot":
        raise StoreError(
            f"{where} {_compares(metric)}, and NUDGE-{method} is right for inner product only: tune with --method N"
        )


def _compares(metric: str | None) -> str:
    return f"compares by {metric}" if metric else "does not say how it is searched (say it: ?metric=...)"
