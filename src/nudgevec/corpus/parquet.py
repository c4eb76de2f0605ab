"""Parquet files as a corpus."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array, rows_of
from nudgevec.errors import MissingExtraError, VectorError

_BLOCK_BYTES = 8 << 20
# Read so much at a time instead of a whole column of a row group.
_READ_BYTES = 1 << 20


class ParquetCorpus:
    """Documents in a Parquet file, or in the ``*.parquet`` files of a folder.

    Vectors are a column of equally long lists of float16, float32 or float64 (FixedSizeList is read fastest); ids are a
    column of strings or whole numbers. Files are read in the order of their names, ``part-2`` before ``part-10``.

    Parameters
    ----------
    path : path
        A file or a folder.
    vector_column : str
    id_column : str or None
        None names documents by their row, counted through all files.
    block_rows : int, optional
        Rows read at a time; about 8 MB by default.

    Examples
    --------
    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> vectors = pyarrow.array([[0.0, 1.0], [1.0, 0.0]], pyarrow.list_(pyarrow.float32(), 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pyarrow.table({"id": ["a", "b"], "vector": vectors})
    ...     pyarrow.parquet.write_table(table, f"{folder}/part-0.parquet")
    ...     ParquetCorpus(folder).take(["b"])
    array([[1., 0.]], dtype=float32)
    """

    random_access = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        vector_column: str = "vector",
        id_column: str | None = "id",
        block_rows: int | None = None,
    ) -> None:
        # A later change of the working folder must not matter.
        self.path = Path(path).absolute()
        self._column = vector_column
        self.files = [_File(name, vector_column) for name in _names(self.path)]
        first = next((file for file in self.files if file.dim), self.files[0])
        for file in self.files:
            # An empty file need not know the length of its vectors.
            if (file.dim or first.dim, file.dtype) != (first.dim, first.dtype):
                raise VectorError(
                    f"vectors have {first.dim} dimensions ({first.dtype}) in {first.path.name}, but {file.dim} "
                    f"({file.dtype}) in {file.path.name}; all files of {self.path} need the same"
                )
        self.dim, self.dtype = first.dim, first.dtype
        self.block_rows = block_rows or max(1, _BLOCK_BYTES // max(1, self.dim * self.dtype.itemsize))
        self._first_row = list(accumulate((file.rows for file in self.files), initial=0))
        self.ids: Sequence[Hashable] = range(self._first_row[-1])
        if id_column is not None:
            self.ids = [key for file in self.files for key in file.ids(id_column)]
        self._row_of: dict[Hashable, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"ParquetCorpus({len(self)} documents of {self.dim} dimensions, {str(self.path)!r})"

    def take(self, ids: Sequence[Hashable]) -> Array:
        if isinstance(self.ids, range):
            rows = rows_of(ids, len(self))
        else:
            self._row_of = self._row_of or {key: row for row, key in enumerate(self.ids)}
            rows = np.array([self._row_of[key] for key in ids], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], self._first_row)
        taken = np.empty((len(rows), self.dim), self.dtype)
        for number, file in enumerate(self.files):
            here = order[bounds[number] : bounds[number + 1]]
            if len(here):
                taken[here] = file.take(rows[here] - self._first_row[number])
        return taken

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Yield all documents; a thread reads the next block while the last one is worked on."""
        begin = 0
        with ThreadPoolExecutor(1) as ahead:
            blocks = (block for file in self.files for block in file.blocks(self.block_rows))
            coming = ahead.submit(next, blocks, None)
            while (block := coming.result()) is not None:
                coming = ahead.submit(next, blocks, None)
                yield self.ids[begin : begin + len(block)], block
                begin += len(block)


class _File:
    """The vector column of one file."""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column
        with self._open() as file:
            self.rows, self._state = file.metadata.num_rows, _state_of(path)
            import pyarrow

            kind = _column_type(file, path, column)
            nested = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
            nested = nested or pyarrow.types.is_fixed_size_list(kind)
            if not nested or not pyarrow.types.is_floating(kind.value_type):
                raise VectorError(f"column {column!r} of {path} is {kind}; vectors are lists of floats")
            self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
            self.dim = 0
            if pyarrow.types.is_fixed_size_list(kind):
                self.dim = kind.list_size
            elif self.rows:
                batch = next(file.iter_batches(1, columns=[column]))
                self.dim = len(batch.column(0)[0].as_py() or [])

    def ids(self, column: str) -> list[Hashable]:
        """Return the id column."""
        import pyarrow

        with self._open() as file:
            kind = _column_type(file, self.path, column)
            if pyarrow.types.is_nested(kind):
                raise VectorError(f"column {column!r} of {self.path} is {kind}; ids are strings or whole numbers")
            ids: list[Hashable] = file.read([column])[column].to_pylist()
        if None in ids:
            raise VectorError(f"row {ids.index(None)} of {self.path} has no id in column {column!r}")
        return ids

    def blocks(self, block_rows: int) -> Iterator[Array]:
        """Yield the vectors in blocks."""
        first = 0
        with self._open() as file:
            for batch in file.iter_batches(block_rows, columns=[self.column]):
                yield self._vectors(batch.column(0), first)
                first += len(batch)

    def take(self, rows: Any) -> Array:
        """Return the vectors of some rows, reading the row groups that hold them."""
        taken = np.empty((len(rows), self.dim), self.dtype)
        with self._open() as file:
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            first = np.append(0, np.cumsum(groups))
            group_of = np.searchsorted(first, rows, side="right") - 1
            for group in np.unique(group_of):
                here = np.flatnonzero(group_of == group)
                begin = int(first[group])
                for batch in file.iter_batches(row_groups=[int(group)], columns=[self.column]):
                    inside = here[(rows[here] >= begin) & (rows[here] < begin + len(batch))]
                    if len(inside):
                        taken[inside] = self._vectors(batch.column(0), begin)[rows[inside] - begin]
                    begin += len(batch)
        return taken

    def _vectors(self, column: Any, first: int) -> Array:
        """Return a column of lists as a matrix; ``first`` is the row of the first one."""
        import pyarrow

        missing = np.flatnonzero(np.asarray(column.is_null()))
        if len(missing):
            raise VectorError(f"row {first + missing[0]} of {self.path} has no vector in column {self.column!r}")
        if not pyarrow.types.is_fixed_size_list(column.type):
            lengths = np.diff(np.asarray(column.offsets))
            odd = np.flatnonzero(lengths != self.dim)
            if len(odd):
                raise VectorError(
                    f"row {first + odd[0]} of {self.path} has a vector of {lengths[odd[0]]} dimensions, "
                    f"and the first one has {self.dim}"
                )
        # Missing numbers become NaN, which is refused like any other.
        numbers: Array = column.flatten().to_numpy(zero_copy_only=False)
        return numbers.astype(self.dtype, copy=False).reshape(len(column), self.dim)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError("reading Parquet files", "parquet") from None
        if hasattr(self, "_state") and _state_of(self.path) != self._state:
            raise VectorError(f"{self.path} changed since it was opened: open it again")
        with reading(self.path), parquet.ParquetFile(self.path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise what PyArrow finds wrong with a file as an error that names it."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise VectorError(f"{path} cannot be read: {error}") from None


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written to."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _column_type(file: Any, path: Path, column: str) -> Any:
    names = file.schema_arrow.names
    if column not in names:
        raise VectorError(f"{path} has no column {column!r}; it has {', '.join(names)}")
    return file.schema_arrow.field(column).type


def _names(path: Path) -> list[Path]:
    """Return the file, or the files of a folder; those of other programs begin with a dot or underscore."""
    names = [path]
    if path.is_dir():
        names = [name for name in path.glob("*.parquet") if not name.name.startswith((".", "_"))]
        if not names:
            raise VectorError(f"there are no Parquet files in {path}: they are looked for as *.parquet, right there")
    if not names[0].is_file():
        raise VectorError(f"there is no file or folder {path}")
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in _DIGITS.split(name.name)])


_DIGITS = re.compile(r"([0-9]+)")
