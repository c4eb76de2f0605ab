"""Stores that cannot change many rows at once: vectors are written piece by piece.

Right before a piece is written it is looked at once more, so that rows somebody else has changed or removed in the
meantime are left alone. Between that look and the write remains a gap of milliseconds, which these stores cannot close.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array, slices
from nudgevec.errors import OptionError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store
from nudgevec.stores.lock import lock_for, locked


class PiecewiseStore(Store):
    """A store that is written in pieces, in a folder or on a server."""

    piece = 500
    """Rows read or written at a time."""
    lock: Path

    def guard(self, address: Address, key: str) -> None:
        """Lock by a file beside a local collection, or by one of this machine for a server, whose key is elsewhere."""
        if address.host and (address.user or address.password):
            raise OptionError(f"{address}: put the key into {key}, not into the url")
        local = Path(address.path)
        self.lock = lock_for(self.url) if address.host else local.with_name(f".{local.name}.{address.collection}.lock")

    def alone(self) -> AbstractContextManager[None]:
        return locked(self.lock, self.url)

    @abstractmethod
    def put(self, ids: Sequence[Any], vectors: Array) -> None:
        """Give these documents new vectors."""

    def write(self, ids: Sequence[Any], old: Array, new: Array) -> None:
        with progress.bar("writing vectors", len(ids)) as bar:
            for part in slices(len(ids), self.piece):
                now = self.found(ids[part])
                here = [place for place in range(part.start, part.stop) if ids[place] in now]
                if here:
                    alike = self.same(np.stack([now[ids[place]] for place in here]), old[here])
                    here = [place for place, unchanged in zip(here, alike.tolist(), strict=True) if unchanged]
                if here:
                    self.put([ids[place] for place in here], new[here])
                bar.update(part.stop - part.start)

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        yield from self.taken(self.ids, self.piece)
