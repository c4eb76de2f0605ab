"""FAISS: an index file. A new file is written beside it and renamed; the ledger is a file beside it.

Documents are identified by the ids of the index, or by their row numbers. Flat, IVF-Flat and HNSW-Flat keep float32
exactly. An HNSW graph cannot be updated and is rebuilt. Other indexes keep codes instead of vectors and are refused.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from nudgevec.arrays import Array, Ints, slices
from nudgevec.errors import OptionError, StoreError
from nudgevec.files import write_file_atomically
from nudgevec.stores.address import Address
from nudgevec.stores.backend import import_client
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import LEDGER_KEYS, Change, Ledger
from nudgevec.stores.lock import locked
from nudgevec.tensors import Tensor, map_tensors, write_tensors


class FaissStore(Store):
    """An index file. Its client is the path."""

    client_package = "faiss"

    def __init__(self, client: Path, address: Address, similarity: str | None = None) -> None:
        super().__init__(client, address, similarity)
        self.faiss = _library()
        self.path, self._ledger_path = client, Path(f"{client}.nudgevec")

    @classmethod
    def connect(cls, address: Address) -> Path:
        _library()
        if address.collection:
            raise OptionError(f"{address}: an index file holds one collection, leave out #{address.collection}")
        return Path(address.local_path).resolve()

    @staticmethod
    def disconnect(client: Path) -> None:
        """Nothing to close: the file is opened for each read and write."""

    @classmethod
    def adopt_client(cls, client: Any, collection: str | None) -> tuple[Any, Address]:
        raise OptionError(
            "a FAISS index in memory cannot be patched, because its ledger is a file: save it with "
            "faiss.write_index(index, path), and open the url faiss:PATH"
        )

    def read_metadata(self) -> None:
        # Vectors are read from the file when they are used.
        self.index = self._read_index(self.faiss.IO_FLAG_MMAP_IFC)
        self.dim = int(self.index.whole.d)
        similarities = {self.faiss.METRIC_INNER_PRODUCT: "dot", self.faiss.METRIC_L2: "l2"}
        own = similarities.get(self.index.whole.metric_type)
        if own is None:
            raise StoreError(f"{self.url} uses neither inner product nor l2")
        self.similarity = self.resolve_similarity(own)
        # These values are kept in ledgers.
        self.columns = {"ids": "given" if self.index.has_stable_ids else "row numbers"}
        self._row_of = self.index.row_of()

    def _read_index(self, flags: int = 0) -> _Index:
        if not self.path.is_file():
            raise StoreError(f"there is no index file at {self.path}")
        try:
            return _Index(self.faiss, self.faiss.read_index(str(self.path), flags))
        except RuntimeError as error:
            raise StoreError(f"{self.url} is not an index file: {str(error).splitlines()[-1]}") from None
        except StoreError as error:
            raise StoreError(f"{self.url} {error}") from None

    def read_ids(self) -> list[Hashable]:
        ids: list[Hashable] = self.index.ids.tolist()
        return ids

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for block in slices(len(self.ids), self.batch_size):
            yield self.ids[block], self.index.read(np.arange(block.start, block.stop))

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        known = [key for key in ids if key in self._row_of]
        for batch in slices(len(known), self.batch_size):
            yield known[batch], self.index.read(np.array([self._row_of[key] for key in known[batch]]))

    def search(self, query: Array, k: int) -> list[Hashable]:
        _, ids = self.index.whole.search(query[None], k)
        return [key for key in ids[0].tolist() if key >= 0]

    def write(self, change: Change) -> None:
        # Other writers of the file can take the same lock. The index is read again under it.
        with FileLock(f"{self.path}.lock"):
            index = self._read_index()
            row_of = index.row_of()
            unchanged = self._positions_unchanged(index, row_of, change)
            if len(unchanged):
                batches = change.subset(unchanged).batches(self.batch_size, "writing vectors")
                index.write((np.array([row_of[key] for key in ids]), new) for ids, _, new in batches)
                with write_file_atomically(self.path) as draft:
                    self.faiss.write_index(index.whole, str(draft))

    def _positions_unchanged(self, index: _Index, row_of: dict[Hashable, int], change: Change) -> Ints:
        """Return the positions of documents that have their old vectors in this index."""
        unchanged = []
        for ids, old, _ in change.batches(self.batch_size, "comparing vectors"):
            rows = np.array([row_of.get(key, -1) for key in ids])
            is_old = rows >= 0
            is_old[is_old] = self.equal_rows(index.read(rows[is_old]), old[is_old])
            unchanged.append(is_old)
        return np.flatnonzero(np.concatenate(unchanged))

    def exclusive(self) -> AbstractContextManager[None]:
        return locked(self.path.with_name(f".{self.path.name}.nudgevec-lock"), self.url)

    def check_ledger(self, ledger: Ledger) -> None:
        super().check_ledger(ledger)
        if not self.index.has_stable_ids and len(self.ids) < ledger.n_documents:
            raise StoreError(
                f"{self.url}: rows were removed after the patch was applied, and row numbers have shifted, so the rows "
                f"of the patch are unknown. Their original vectors are in {self._ledger_path}"
            )

    def read_ledger(self) -> Ledger | None:
        if not self._ledger_path.exists():
            return None
        try:
            texts, tensors = map_tensors(self._ledger_path)
            ids, before, after = (tensors[name] for name in ("ids", "before", "after"))
            metadata = json.loads(texts["facts"])
            is_whole = ids.ndim == 1 and before.shape == after.shape == (len(ids), self.dim)
            is_whole = is_whole and isinstance(metadata, dict) and metadata.keys() >= LEDGER_KEYS
        except (KeyError, TypeError, ValueError, RecursionError):
            is_whole = False
        if not is_whole:
            raise StoreError(
                f"{self.url}: its ledger {self._ledger_path} is damaged or belongs to another index. The run or patch "
                "that was applied has the original vectors too: remove this file, and revert that run or patch"
            )
        return Ledger(metadata, Change.from_arrays(ids.tolist(), before, after))

    def create_ledger(self, ledger: Ledger) -> None:
        def column(number: int) -> Tensor:
            batches = (np.arange(batch.start, batch.stop) for batch in slices(len(ledger.ids), self.batch_size))
            parts = (ledger.change.read(positions)[number].astype(np.float32) for positions in batches)
            return Tensor(np.dtype(np.float32), (len(ledger.ids), self.dim), parts)

        tensors = {"ids": Tensor.of(np.array(ledger.ids, np.int64)), "before": column(0), "after": column(1)}
        with write_file_atomically(self._ledger_path) as draft:
            write_tensors(draft, tensors, {"facts": json.dumps(ledger.metadata)}, "writing the ledger")

    def drop_ledger(self) -> None:
        self._ledger_path.unlink(missing_ok=True)


class _Index:
    """The rows of a FAISS index: their ids and vectors."""

    def __init__(self, faiss: Any, index: Any) -> None:
        # Casts do not keep the index alive.
        self.faiss, self._owner = faiss, index
        self.whole = faiss.downcast_index(index)
        self.has_id_map = type(self.whole) in (faiss.IndexIDMap, faiss.IndexIDMap2)
        self.rows = faiss.downcast_index(self.whole.index) if self.has_id_map else self.whole
        self.is_graph = type(self.rows) is faiss.IndexHNSWFlat
        self.is_inverted = type(self.rows) is faiss.IndexIVFFlat
        self.storage = faiss.downcast_index(self.rows.storage) if self.is_graph else self.rows
        # Subclasses of these keep codes, or vectors in another order.
        if type(self.storage) not in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2, faiss.IndexIVFFlat):
            raise StoreError(
                f"is an {type(self.rows).__name__}, which does not keep the exact vectors: patch the vectors it was "
                "made from, and build it again"
            )
        self.has_stable_ids = self.has_id_map or self.is_inverted
        self._inner_ids = self._listed_ids() if self.is_inverted else np.arange(self.rows.ntotal)
        self.ids = faiss.vector_to_array(self.whole.id_map)[self._inner_ids] if self.has_id_map else self._inner_ids
        if self.is_inverted:
            self._map_type = self.rows.direct_map.type
            self.rows.set_direct_map_type(faiss.DirectMap.Hashtable)

    def row_of(self) -> dict[Hashable, int]:
        """Return the row of each id."""
        return {key: row for row, key in enumerate(self.ids.tolist())}

    def _listed_ids(self) -> Any:
        """Return the ids in the inverted lists."""
        lists = self.rows.invlists
        parts = [
            self.faiss.rev_swig_ptr(lists.get_ids(number), size).copy()
            for number in range(self.rows.nlist)
            if (size := lists.list_size(number))
        ]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def read(self, rows: Ints) -> Array:
        """Return the vectors of some rows."""
        vectors: Array = self.rows.reconstruct_batch(self._inner_ids[rows])
        return vectors

    def write(self, batches: Iterable[tuple[Ints, Array]]) -> None:
        """Replace the vectors of some rows."""
        if self.is_inverted:
            self.rows.set_direct_map_type(self.faiss.DirectMap.NoMap)
            for rows, vectors in batches:
                # The nearest list of a vector may be another one now.
                self.rows.remove_ids(self._inner_ids[rows])
                self.rows.add_with_ids(vectors.astype(np.float32), self._inner_ids[rows])
            self.rows.set_direct_map_type(self._map_type)
            return
        shape = self.storage.ntotal, self.storage.d
        stored = self.faiss.rev_swig_ptr(self.storage.get_xb(), shape[0] * shape[1]).reshape(shape)
        for rows, vectors in batches:
            stored[rows] = vectors
        if self.is_graph:
            vectors = stored.copy()
            self.rows.reset()
            self.rows.add(vectors)


def _library() -> Any:
    return import_client("faiss", "FAISS", "faiss")
