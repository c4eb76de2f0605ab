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
        """Return the vectors of some documents.

        Parameters
        ----------
        ids : sequence
            Ids of the corpus, in any order.

        Returns
        -------
        array of shape (len(ids), d)
            One vector per id, in the order of ``ids``.
        """

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield all documents once, in blocks of any size.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block. The blocks together have the order of the attribute ``ids``.
        vectors : array of shape (rows, d)
            Their vectors: float16, float32 or float64.
        """
