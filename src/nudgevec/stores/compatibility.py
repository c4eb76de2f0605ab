"""Which method and which figures are valid for the similarity of a store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from nudgevec.arrays import Array
from nudgevec.core.exact import norms
from nudgevec.corpus import Corpus
from nudgevec.errors import StoreError
from nudgevec.patch import Patch, method_name
from nudgevec.tensors import row_slices

_UNIT_TOLERANCE = 1e-3


class EqualLengths:
    """A corpus whose vectors must have the same length, which is checked as they are read.

    Stores that search by dot or l2 rank such vectors as cosine similarity does, and others in another order.

    Parameters
    ----------
    documents : Corpus
    length : float or None
        The length; that of the first vector if None.
    problem : str
        The message of the StoreError that is raised for another length.
    """

    def __init__(self, documents: Corpus, length: float | None, problem: str) -> None:
        self.ids, self.dim = documents.ids, documents.dim
        self.random_access = getattr(documents, "random_access", False)
        self._documents, self._length, self._problem = documents, length, problem

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Return the vectors of some documents, which ``blocks`` checks."""
        return self._documents.take(ids)

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield the blocks of the corpus, checked."""
        length = self._length
        for ids, vectors in self._documents.blocks():
            lengths = norms(vectors)
            if length is None and len(lengths):
                length = float(lengths[0])
            # Vectors with NaN are reported by those who read the block.
            if length is not None and (np.abs(lengths - length) > _UNIT_TOLERANCE * length).any():
                deviation = np.abs(lengths - length).max()
                raise StoreError(f"{self._problem} (the lengths differ from {length:.4g} by up to {deviation:.2g})")
            yield ids, vectors


def check_cosine(documents: Corpus, url: str, similarity: str | None, method: str) -> Corpus:
    """Return the documents of a store for a method for cosine similarity.

    If the store searches by another similarity, they raise StoreError where they are read and have not unit length.
    """
    if similarity not in ("dot", "l2"):
        return documents
    return EqualLengths(documents, 1.0, _requires_cosine(url, similarity, method))


def check_similarity(patch: Patch, url: str, similarity: str | None) -> None:
    """Refuse a patch that was tuned for another similarity than the store searches by."""
    if patch.similarity == "dot":
        check_dot(url, similarity, patch.method)
    if patch.similarity == "cosine" and similarity != "cosine":
        # On unit vectors dot and l2 rank as cosine does.
        deviation = max(np.abs(norms(part) - 1).max() for part in row_slices(patch.before))
        if deviation > _UNIT_TOLERANCE:
            raise StoreError(
                f"{_requires_cosine(url, similarity, patch.method)} (the lengths here deviate by up to {deviation:.2g})"
            )


def check_dot(url: str, similarity: str | None, method: str) -> None:
    """Refuse a method for inner product if the store searches by another similarity."""
    if similarity != "dot":
        raise StoreError(
            f"{url} {_describe(similarity)}, and {method_name(method)} requires inner product: tune with --method N"
        )


def _requires_cosine(url: str, similarity: str | None, method: str) -> str:
    advice = ", or tune with --method M" if similarity == "dot" else ""
    return (
        f"{url} {_describe(similarity)}, and {method_name(method)} requires cosine similarity or unit vectors: "
        f"normalise the vectors{advice}"
    )


def _describe(similarity: str | None) -> str:
    return f"uses {similarity} similarity" if similarity else "does not state its similarity (set similarity=...)"
