"""A folder of Parquet files as a corpus, streamed row group by row group.

Vectors are a FixedSizeList column of float16, float32 or float64, ids any column of strings or whole numbers.
Files are read in the order of their names.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.errors import MissingExtraError, VectorError
from nudgevec.rows import Array


class ParquetCorpus:
    """Documents in one Parquet file or a folder of them.

    ``id_column=None`` names documents by their row, counted through all files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        vector_column: str = "vector",
        id_column: str | None = "id",
        block_rows: int = 4096,
    ) -> None:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError("reading Parquet files", "parquet") from None
        where = Path(path)
        names = sorted(where.glob("*.parquet")) if where.is_dir() else [where]
        if not names or not names[0].is_file():
            raise VectorError(f"there are no Parquet files at {where}")
        self.vector_column, self.id_column, self.block_rows = vector_column, id_column, block_rows
        self.files = [parquet.ParquetFile(name, pre_buffer=False) for name in names]
        for file, name in zip(self.files, names, strict=True):
            for column in filter(None, (vector_column, id_column)):
                if column not in file.schema_arrow.names:
                    raise VectorError(f"{name} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}")
        kind = self.files[0].schema_arrow.field(vector_column).type
        if not pyarrow.types.is_fixed_size_list(kind) or not pyarrow.types.is_floating(kind.value_type):
            raise VectorError(f"column {vector_column!r} is {kind}; vectors must be a FixedSizeList of floats")
        self.dim = int(kind.list_size)
        self._first_row = list(accumulate((file.metadata.num_rows for file in self.files), initial=0))
        self.ids: Sequence[Hashable] = range(self._first_row[-1])
        if id_column is not None:
            self.ids = [key for file in self.files for key in file.read([id_column])[id_column].to_pylist()]
        self._row_of: dict[Hashable, int] | None = None

    def take(self, ids: Sequence[Hashable]) -> Array:
        if self.id_column is not None and self._row_of is None:
            self._row_of = {key: row for row, key in enumerate(self.ids)}
        rows = np.array([key if self._row_of is None else self._row_of[key] for key in ids], dtype=np.int64)
        taken: Array | None = None
        order = np.argsort(rows, kind="stable")
        for number, file in enumerate(self.files):
            low, high = np.searchsorted(rows[order], self._first_row[number : number + 2])
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            bounds = np.concatenate([[0], np.cumsum(sizes)])
            wanted = rows[order[low:high]] - self._first_row[number]
            groups = np.searchsorted(bounds, wanted, side="right") - 1
            for group in np.unique(groups).tolist():
                vectors = self._vectors(file.read_row_group(group, [self.vector_column]), number)
                here = np.flatnonzero(groups == group)
                if taken is None:
                    taken = np.empty((len(rows), self.dim), vectors.dtype)
                taken[order[low:high][here]] = vectors[wanted[here] - bounds[group]]
        return np.empty((0, self.dim), np.float32) if taken is None else taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """All documents; the next block is decoded while the last one is worked on."""
        with ThreadPoolExecutor(1) as reader:
            blocks = self._decoded()
            coming = reader.submit(next, blocks, None)
            while (block := coming.result()) is not None:
                coming = reader.submit(next, blocks, None)
                yield block

    def _decoded(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        start = 0
        for number, file in enumerate(self.files):
            for batch in file.iter_batches(self.block_rows, columns=[self.vector_column]):
                yield self.ids[start : start + len(batch)], self._vectors(batch, number)
                start += len(batch)

    def _vectors(self, table: Any, number: int) -> Array:
        column = table[self.vector_column]
        chunks = column.chunks if hasattr(column, "chunks") else [column]
        if any(chunk.null_count for chunk in chunks):
            raise VectorError(f"file {number} of the corpus has documents without a vector")
        flat = [chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim) for chunk in chunks]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)
