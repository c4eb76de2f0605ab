"""What the library needs of documents, whatever holds them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from nudgevec.arrays import Array


@runtime_checkable
class Corpus(Protocol):
    """A collection of documents with ids.

    Any object with these four members can be tuned and evaluated. If single vectors are quick to read, an attribute
    ``random_access = True`` says so; otherwise all documents are streamed once.
    """

    @property
    def ids(self) -> Sequence[Hashable]:
        """The id of every document, in the order of ``blocks``."""

    @property
    def dim(self) -> int:
        """The number of dimensions of every vector."""

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Return the vectors of these documents, one row each, in the order of ``ids``."""

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield all documents once, as (ids, vectors) in blocks of any size."""
