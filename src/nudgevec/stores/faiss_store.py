"""FAISS: an index in one file. It is rewritten beside its place and moved there; the ledger is a file beside it.

Documents are named by the ids of the index, or by their row numbers. Flat, IVF-Flat and HNSW-Flat keep float32 exactly.
Nothing can be taken out of an HNSW graph, so it is built again. Other kinds keep codes instead of vectors.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from safetensors import safe_open
from safetensors.numpy import save_file

from nudgevec.arrays import Array, slices
from nudgevec.errors import MissingExtraError, OptionError, StoreError
from nudgevec.files import write_file_atomically
from nudgevec.stores.address import Address
from nudgevec.stores.base import Store
from nudgevec.stores.ledger import Ledger
from nudgevec.stores.lock import locked

_BATCH = 65536


class FaissStore(Store):
    """An index file."""

    def __init__(self, address: Address, metric: str | None = None) -> None:
        try:
            import faiss
        except ImportError:
            raise MissingExtraError("FAISS", "faiss") from None
        if address.collection:
            raise OptionError(f"{address}: an index file holds one collection, leave #{address.collection} out")
        self.faiss: Any = faiss
        self.path, self.url = Path(address.host + address.path).resolve(), str(address)
        self._asked_metric = metric
        self.refresh()

    def look(self) -> None:
        # Vectors stay in the file until they are looked at.
        self.index = self._open(self.faiss.IO_FLAG_MMAP_IFC)
        self.dim = int(self.index.whole.d)
        metrics = {self.faiss.METRIC_INNER_PRODUCT: "dot", self.faiss.METRIC_L2: "l2"}
        own = metrics.get(self.index.whole.metric_type)
        if own is None:
            raise StoreError(f"{self.url} compares neither by inner product nor by l2")
        self.metric = self.agreed_metric(self._asked_metric, own)
        self.place = {"ids": "given" if self.index.stable else "row numbers"}
        self._row = {key: row for row, key in enumerate(self.index.ids.tolist())}

    def read_ids(self) -> list[Hashable]:
        ids: list[Hashable] = self.index.ids.tolist()
        return ids

    def check_ledger(self, ledger: Ledger) -> None:
        super().check_ledger(ledger)
        if not self.index.stable and len(self.ids) < ledger.facts["documents"]:
            raise StoreError(
                f"{self.url}: rows were removed since the patch was put on, and row numbers have shifted: which is "
                f"which cannot be told any more. The old vectors are in {self._ledger}"
            )

    def _open(self, flags: int = 0) -> _Index:
        if not self.path.is_file():
            raise StoreError(f"there is no index file at {self.path}")
        try:
            return _Index(self.faiss, self.faiss.read_index(str(self.path), flags))
        except RuntimeError as error:
            raise StoreError(f"{self.url} is not an index file: {str(error).splitlines()[-1]}") from None
        except StoreError as error:
            raise StoreError(f"{self.url} {error}") from None

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        for part in slices(len(self.ids), _BATCH):
            yield self.ids[part], self.index.read(np.arange(part.start, part.stop))

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        there = [key for key in ids if key in self._row]
        if there:
            yield there, self.index.read(np.array([self._row[key] for key in there]))

    def search(self, query: Array, count: int) -> list[Hashable]:
        _, found = self.index.whole.search(query[None], count)
        return [key for key in found[0].tolist() if key >= 0]

    def write(self, ids: Sequence[Any], old: Array, new: Array) -> None:
        with self._written():
            # As it is now, while no other writer is at it.
            index = self._open()
            row = {key: row for row, key in enumerate(index.ids.tolist())}
            places = np.array([place for place, key in enumerate(ids) if key in row], np.int64)
            rows = np.array([row[ids[place]] for place in places.tolist()], np.int64)
            if len(rows):
                still = self.same(index.read(rows), old[places])
                places, rows = places[still], rows[still]
            if len(rows):
                index.write(rows, new[places].astype(np.float32))
                with write_file_atomically(self.path) as draft:
                    self.faiss.write_index(index.whole, str(draft))

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Programs of ours that write the file wait for each other; others can join in by the same lock."""
        with FileLock(f"{self.path}.lock"):
            yield

    def alone(self) -> AbstractContextManager[None]:
        return locked(self.path.with_name(f".{self.path.name}.nudgevec-lock"), self.url)

    @property
    def _ledger(self) -> Path:
        return Path(f"{self.path}.nudgevec")

    def read_ledger(self) -> Ledger | None:
        if not self._ledger.exists():
            return None
        with safe_open(self._ledger, "numpy") as file:
            rows = {name: file.get_tensor(name) for name in ("ids", "before", "after")}
            return Ledger(json.loads(file.metadata()["facts"]), rows["ids"].tolist(), rows["before"], rows["after"])

    def make_ledger(self, ledger: Ledger) -> None:
        rows = {"ids": np.array(ledger.ids, np.int64), "before": ledger.before, "after": ledger.after}
        with write_file_atomically(self._ledger) as draft:
            save_file(rows, draft, {"facts": json.dumps(ledger.facts)})

    def drop_ledger(self) -> None:
        self._ledger.unlink(missing_ok=True)


class _Index:
    """An index as rows: their ids, their vectors, and how to change them."""

    def __init__(self, faiss: Any, index: Any) -> None:
        # The casts below own nothing.
        self.faiss, self._owner = faiss, index
        self.whole = faiss.downcast_index(index)
        self.named = type(self.whole) in (faiss.IndexIDMap, faiss.IndexIDMap2)
        self.rows = faiss.downcast_index(self.whole.index) if self.named else self.whole
        graph = type(self.rows) is faiss.IndexHNSWFlat
        kept = faiss.downcast_index(self.rows.storage) if graph else self.rows
        # Their relatives keep codes, or vectors in another order.
        if type(kept) not in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2, faiss.IndexIVFFlat):
            raise StoreError(
                f"is an {type(self.rows).__name__}, which does not keep vectors as they are: patch the vectors it was "
                "made from and build it again"
            )
        self.inverted = type(self.rows) is faiss.IndexIVFFlat
        self.stable = self.named or self.inverted
        self._own = self._listed() if self.inverted else np.arange(self.rows.ntotal)
        self.ids = faiss.vector_to_array(self.whole.id_map)[self._own] if self.named else self._own
        if self.inverted:
            self._map = self.rows.direct_map.type
            self.rows.set_direct_map_type(faiss.DirectMap.Hashtable)

    def _listed(self) -> Any:
        """The ids in the inverted lists."""
        lists = self.rows.invlists
        parts = [
            self.faiss.rev_swig_ptr(lists.get_ids(number), size).copy()
            for number in range(self.rows.nlist)
            if (size := lists.list_size(number))
        ]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def read(self, rows: Any) -> Array:
        vectors: Array = self.rows.reconstruct_batch(self._own[rows])
        return vectors

    def write(self, rows: Any, vectors: Array) -> None:
        if self.inverted:
            # A vector that moved may belong to another list.
            self.rows.set_direct_map_type(self.faiss.DirectMap.NoMap)
            self.rows.remove_ids(self._own[rows])
            self.rows.add_with_ids(vectors, self._own[rows])
            self.rows.set_direct_map_type(self._map)
            return
        graph = type(self.rows) is self.faiss.IndexHNSWFlat
        flat = self.faiss.downcast_index(self.rows.storage) if graph else self.rows
        stored = self.faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
        stored[rows] = vectors
        if graph:
            everything = stored.copy()
            self.rows.reset()
            self.rows.add(everything)
