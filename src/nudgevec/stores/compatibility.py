"""Which NUDGE method is valid for the similarity of a store."""

from __future__ import annotations

import numpy as np

from nudgevec.core.exact import norms
from nudgevec.errors import StoreError
from nudgevec.patch import Patch
from nudgevec.tensors import row_slices

_UNIT_TOLERANCE = 1e-3


def check_similarity(patch: Patch, url: str, similarity: str | None) -> None:
    """Refuse a patch that was tuned for another similarity than the store searches by."""
    if patch.similarity == "dot":
        check_dot(url, similarity, patch.method)
    if patch.similarity == "cosine" and similarity != "cosine":
        # On unit vectors dot and l2 rank as cosine does.
        deviation = max(np.abs(norms(part) - 1).max() for part in row_slices(patch.before))
        if deviation > _UNIT_TOLERANCE:
            raise StoreError(
                f"{url} {_describe(similarity)}, and NUDGE-{patch.method} requires cosine similarity or unit vectors "
                f"(the lengths here deviate by up to {deviation:.2g}): normalise the vectors, or tune with --method M "
                "for dot"
            )


def check_dot(url: str, similarity: str | None, method: str) -> None:
    """Refuse a method for inner product if the store searches by another similarity."""
    if similarity != "dot":
        raise StoreError(
            f"{url} {_describe(similarity)}, and NUDGE-{method} requires inner product: tune with --method N"
        )


def _describe(similarity: str | None) -> str:
    return f"uses {similarity} similarity" if similarity else "does not state its similarity (set similarity=...)"
