"""A folder of Parquet files as a corpus.

Vectors are a column of lists, equally long, of float16, float32 or float64; ids any column of strings or whole
numbers. Lists of a fixed size (FixedSizeList) are read fastest: see ``row_group``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arithmetic.rows import Array, Ints
from nudgevec.corpus.base import rows_among
from nudgevec.corpus.parquet_pages import reading
from nudgevec.corpus.row_group import SMALL_SHARE, VectorColumn, column_type
from nudgevec.errors import MissingExtraError, VectorError

# Bytes of a block by default, and those that PyArrow reads at a time, instead of a whole row group.
_BLOCK_BYTES = 6 << 20
_READ_BYTES = 1 << 20


class ParquetCorpus:
    """Documents in one Parquet file, or in those of a folder (``*.parquet``), by the order of their names: ``part-2``
    comes before ``part-10``.

    ``id_column=None`` names documents by their row, counted through all files. ``block_rows`` are read at a time; about
    6 MB by default.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> vectors = pyarrow.array([[0.0, 1.0], [1.0, 0.0]], pyarrow.list_(pyarrow.float32(), 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pyarrow.table({"id": ["a", "b"], "vector": vectors})
    ...     pyarrow.parquet.write_table(table, f"{folder}/part-0.parquet")
    ...     ParquetCorpus(folder).take(["b"])
    array([[1., 0.]], dtype=float32)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        vector_column: str = "vector",
        id_column: str | None = "id",
        block_rows: int | None = None,
    ) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError("reading Parquet files", "parquet") from None
        # Files are opened again later on, by their names.
        self.path = Path(path).absolute()
        self.columns: list[VectorColumn] = []
        ids: list[Hashable] = []
        for name in _files(self.path):
            with reading(name):
                file = parquet.ParquetFile(name, pre_buffer=False, buffer_size=_READ_BYTES)
                self.columns.append(VectorColumn(file, name, vector_column))
                if id_column is not None:
                    ids += _ids(file, name, id_column)
        first = next((column for column in self.columns if column.dim), self.columns[0])
        for column in self.columns:
            # A file without rows need not tell how long they would be.
            if (column.dim or first.dim, column.dtype) != (first.dim, first.dtype):
                raise VectorError(
                    f"vectors have {first.dim} dimensions ({first.dtype}) in {first.path.name}, but {column.dim} "
                    f"({column.dtype}) in {column.path.name}; all files of {self.path} need the same"
                )
        self.dim, self.dtype = first.dim, first.dtype
        self.block_rows = block_rows or max(1, _BLOCK_BYTES // max(1, self.dim * self.dtype.itemsize))
        self.groups = [group for column in self.columns for group in column.groups]
        self._first_row = list(accumulate((group.rows for group in self.groups), initial=0))
        self.ids: Sequence[Hashable] = range(self._first_row[-1]) if id_column is None else ids
        self._row_of: dict[Hashable, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"ParquetCorpus({len(self)} documents of {self.dim} dimensions, {str(self.path)!r})"

    @cached_property
    def random_access(self) -> bool:
        """Whether single vectors are quick to get, nearly all of them."""
        slow = sum(group.rows for group in self.groups if group.numbers is None or not group.numbers.quick)
        return slow <= SMALL_SHARE * len(self)

    def take(self, ids: Sequence[Hashable]) -> Array:
        if isinstance(self.ids, range):
            return self.take_rows(rows_among(ids, len(self)))
        if self._row_of is None:
            self._row_of = {key: row for row, key in enumerate(self.ids)}
        return self.take_rows(np.array([self._row_of[key] for key in ids], dtype=np.int64))

    def take_rows(self, rows: Ints) -> Array:
        """The vectors of these rows."""
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], self._first_row)
        taken = np.empty((len(rows), self.dim), self.dtype)
        for number, group in enumerate(self.groups):
            here = order[bounds[number] : bounds[number + 1]]
            if len(here):
                taken[here] = group.take(rows[here] - self._first_row[number], self.block_rows)
        return taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """All documents; the next block is read while the last one is worked on."""
        start = 0
        with ThreadPoolExecutor(1) as reader:
            blocks = self._blocks()
            coming = reader.submit(next, blocks, None)
            while (block := coming.result()) is not None:
                coming = reader.submit(next, blocks, None)
                yield self.ids[start : start + len(block)], block
                start += len(block)

    def _blocks(self) -> Iterator[Array]:
        for column in self.columns:
            for decoded, some in groupby(column.groups, lambda group: group.numbers is None):
                groups = list(some)
                if decoded:
                    # All together: blocks need not end where small row groups do.
                    yield from column.decoded(groups, self.block_rows)
                    continue
                for group in groups:
                    yield from group.blocks(self.block_rows)


def _files(path: Path) -> list[Path]:
    """One file, or those of a folder. Other programs leave files there that begin with a dot or an underscore."""
    names = [path]
    if path.is_dir():
        names = [each for each in path.glob("*.parquet") if not each.name.startswith((".", "_"))]
        if not names:
            raise VectorError(f"there are no Parquet files in {path}: they are looked for as *.parquet, right there")
    if not names[0].is_file():
        raise VectorError(f"there is no file or folder {path}")
    return sorted(names, key=lambda each: [int(part) if part.isdigit() else part for part in _NUMBERS.split(each.name)])


_NUMBERS = re.compile(r"([0-9]+)")


def _ids(file: Any, path: Path, column: str) -> list[Hashable]:
    """All ids of a file."""
    import pyarrow

    kind = column_type(file, path, column)
    if pyarrow.types.is_nested(kind):
        raise VectorError(f"column {column!r} of {path} is {kind}; ids are strings or whole numbers")
    ids: list[Hashable] = file.read([column])[column].to_pylist()
    if None in ids:
        raise VectorError(f"row {ids.index(None)} of {path} has no id in column {column!r}")
    return ids
