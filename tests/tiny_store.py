"""A store as another package would add it: a NumPy file, and a ledger file beside it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from nudgevec.files import write_file_atomically
from nudgevec.stores import Change, Ledger, Store


class TinyStore(Store):
    """``tiny:path.npy``; documents are identified by their rows, and the client is the path."""

    @classmethod
    def connect(cls, address, suffix=""):
        return Path(address.local_path + suffix)

    @staticmethod
    def disconnect(client):
        pass

    def read_metadata(self):
        self.vectors = np.load(self.client)
        self.dim = self.vectors.shape[1]
        self.similarity = self.resolve_similarity(None)

    def read_ids(self):
        return list(range(len(self.vectors)))

    def blocks(self):
        yield self.ids, self.vectors

    def fetch(self, ids):
        known = [row for row in ids if row < len(self.vectors)]
        yield known, self.vectors[known]

    def search(self, query, k):
        return np.argsort(-(self.vectors @ query))[:k].tolist()

    def write(self, change):
        vectors = self.vectors.copy()
        for ids, old, new in change.batches(self.batch_size, "writing vectors"):
            unchanged = self.positions_unchanged(ids, old)
            vectors[np.array(ids)[unchanged]] = new[unchanged]
        self._save(self.client, vectors)

    @property
    def _ledger(self):
        return Path(f"{self.client}.ledger")

    def read_ledger(self):
        if not self._ledger.exists():
            return None
        with np.load(self._ledger) as file:
            change = Change.from_arrays(file["ids"].tolist(), file["before"], file["after"])
            return Ledger(json.loads(str(file["metadata"])), change)

    def create_ledger(self, ledger):
        with write_file_atomically(self._ledger) as draft, draft.open("wb") as file:
            before, after = ledger.change.read(np.arange(len(ledger.ids)))
            np.savez(file, metadata=json.dumps(ledger.metadata), ids=ledger.ids, before=before, after=after)

    def drop_ledger(self):
        self._ledger.unlink()

    def exclusive(self):
        return nullcontext()

    def _save(self, path, vectors):
        with write_file_atomically(path) as draft, draft.open("wb") as file:
            np.save(file, vectors)
