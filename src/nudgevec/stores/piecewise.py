"""Stores without transactions over many rows: vectors are written in batches.

Right before a batch is written, its rows are read once more, and rows that others have changed or removed in the
meantime are left as they are. The milliseconds between this read and the write cannot be closed in these stores.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from nudgevec.arrays import Array
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import Change
from nudgevec.stores.lock import lock_file_for, locked

IN_MEMORY = ":memory:"
"""The path of a store in the memory of this process."""


class PiecewiseStore(Store):
    """A collection in a folder, on a server or in memory that is written in batches."""

    batch_size = 500
    default_port: ClassVar[int]

    def __init__(self, client: Any, address: Address, similarity: str | None = None) -> None:
        super().__init__(client, address, similarity)
        self.name = address.require_collection()

    @abstractmethod
    def update(self, ids: Sequence[Any], vectors: Array) -> None:
        """Write new vectors of existing documents."""

    def write(self, change: Change) -> None:
        for ids, old, new in change.batches(self.batch_size, "writing vectors"):
            unchanged = self.positions_unchanged(ids, old)
            if unchanged:
                self.update([ids[position] for position in unchanged], new[unchanged])

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self.take_batches(self.ids, self.batch_size)

    def exclusive(self) -> AbstractContextManager[None]:
        return locked(self._lock_file(), self.url)

    def _lock_file(self) -> Path:
        """Return a file beside a local collection, or one of this machine for a server or a collection in memory."""
        if self.address.path == IN_MEMORY:
            return lock_file_for(f"{self.address} {os.getpid()}")
        if self.address.host:
            return lock_file_for(str(replace(self.address, port=self.address.port or self.default_port)))
        folder = Path(self.address.path).resolve()
        return folder.with_name(f".{folder.name}.{self.name}.lock")
