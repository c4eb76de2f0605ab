"""FAISS: an index in one file. It is rewritten beside its place and moved there; the ledger is a file beside it.

Documents are named by the ids of the index, or by their row numbers. Flat, IVF-Flat and HNSW-Flat keep float32 exactly.
Nothing can be taken out of an HNSW graph, so it is built again. Other kinds keep codes instead of vectors.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from nudgevec.corpus import Array
from nudgevec.errors import MissingExtraError, OptionError, StoreError
from nudgevec.stores.address import Address
from nudgevec.stores.base import Ledger, Store
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
        self.path, self.url = Path(address.host + address.path), str(address)
        self._asked_metric = metric
        self.refresh()

    def refresh(self) -> None:
        # Vectors stay in the file until they are looked at.
        self.index = self._open(self.faiss.IO_FLAG_MMAP_IFC)
        self.dim = int(self.index.whole.d)
        metrics = {self.faiss.METRIC_INNER_PRODUCT: "dot", self.faiss.METRIC_L2: "l2"}
        if self.index.whole.metric_type not in metrics:
            raise StoreError(f"{self.url} compares neither by inner product nor by l2")
        self.metric = self._asked_metric or metrics[self.index.whole.metric_type]
        self.ids = self.index.ids.tolist()
        self._row = {key: row for row, key in enumerate(self.ids)}

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
        for start in range(0, len(self.ids), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(self.ids)))
            yield self.ids[start : start + _BATCH], self.index.read(rows)

    def fetch(self, ids: Sequence[Any]) -> Iterator[tuple[Sequence[Hashable], Array]]:
        there = [key for key in ids if key in self._row]
        if there:
            yield there, self.index.read(np.array([self._row[key] for key in there]))

    def search(self, query: Array, count: int) -> list[Hashable]:
        _, found = self.index.whole.search(query[None], count)
        return [key for key in found[0].tolist() if key >= 0]

    def write(self, ids: Sequence[Any], vectors: Array) -> None:
        with self._written():
            index = self._open()
            row = {key: row for row, key in enumerate(index.ids.tolist())}
            index.write(np.array([row[key] for key in ids]), vectors.astype(np.float32))
            self._replace(self.path, lambda draft: self.faiss.write_index(index.whole, draft))

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Programs of ours that write the file wait for each other; others can join in by the same lock."""
        with open(f"{self.path}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _replace(self, path: Path, save: Callable[[str], object]) -> None:
        draft = path.with_name(f".{path.name}.draft")
        save(str(draft))
        with open(draft, "rb+") as file:
            os.fsync(file)
        os.replace(draft, path)

    def alone(self) -> AbstractContextManager[None]:
        return locked(self.path.with_name(f".{self.path.name}.nudgevec-lock"), self.url)

    def settle(self) -> None:
        """An index file is always settled."""

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
        self._replace(self._ledger, lambda draft: save_file(rows, draft, {"facts": json.dumps(ledger.facts)}))

    def drop_ledger(self) -> None:
        self._ledger.unlink(missing_ok=True)


class _Index:
    """An index as rows: their ids, their vectors, and how to change them."""

    def __init__(self, faiss: Any, index: Any) -> None:
        # The casts below own nothing.
        self.faiss, self._owner = faiss, index
        self.whole = faiss.downcast_index(index)
        named = isinstance(self.whole, faiss.IndexIDMap)
        self.rows = faiss.downcast_index(self.whole.index) if named else self.whole
        if not isinstance(self.rows, (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexHNSWFlat)):
            raise StoreError(
                f"is an {type(self.rows).__name__}, which does not keep vectors as they are: patch the vectors it was "
                "made from and build it again"
            )
        self.inverted = isinstance(self.rows, faiss.IndexIVFFlat)
        self._own = self._listed() if self.inverted else np.arange(self.rows.ntotal)
        self.ids = faiss.vector_to_array(self.whole.id_map)[self._own] if named else self._own
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
        graph = isinstance(self.rows, self.faiss.IndexHNSWFlat)
        flat = self.faiss.downcast_index(self.rows.storage) if graph else self.rows
        stored = self.faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
        stored[rows] = vectors
        if graph:
            everything = stored.copy()
            self.rows.reset()
            self.rows.add(everything)
