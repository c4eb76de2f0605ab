"""A corpus stored in Parquet files, read in blocks."""

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
# Size of one read; without it PyArrow reads the whole column of a row group.
_READ_BYTES = 1 << 20


class ParquetCorpus:
    """Documents in a Parquet file, or in the ``*.parquet`` files of a folder.

    Files are read in the natural order of their names: ``part-2`` before ``part-10``.

    Parameters
    ----------
    path : path
        A file or a folder. Subfolders and files whose names start with a dot or an underscore are ignored.
    vector_column : str, default "vector"
        Column of vectors: lists of float16, float32 or float64, all of the same length. FixedSizeList is the fastest.
    id_column : str or None, default "id"
        Column of ids: strings or integers. With None, the id of a document is its row number across all files.
    block_rows : int, optional
        Rows per block; about 8 MB by default.

    Attributes
    ----------
    ids : sequence
        Ids of all documents, in the order of the files.
    dim : int
        Number of dimensions.
    dtype : dtype
        Data type of the vectors.

    Raises
    ------
    VectorError
        If there are no Parquet files, or a column is missing or has the wrong type.
    MissingExtraError
        If PyArrow is not installed.

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
        # Stay valid when the working directory changes.
        self.path = Path(path).absolute()
        self._column = vector_column
        self.files = [_File(name, vector_column) for name in _parquet_files(self.path)]
        reference = next((file for file in self.files if file.dim), self.files[0])
        for file in self.files:
            # The dimension of an empty file is 0 unless its schema states one.
            if (file.dim or reference.dim, file.dtype) != (reference.dim, reference.dtype):
                raise VectorError(
                    f"vectors have {reference.dim} dimensions ({reference.dtype}) in {reference.path.name}, "
                    f"but {file.dim} ({file.dtype}) in {file.path.name}; all files of {self.path} must agree"
                )
        self.dim, self.dtype = reference.dim, reference.dtype
        self.block_rows = block_rows or max(1, _BLOCK_BYTES // max(1, self.dim * self.dtype.itemsize))
        self._file_starts = list(accumulate((file.rows for file in self.files), initial=0))
        self.ids: Sequence[Hashable] = range(self._file_starts[-1])
        if id_column is not None:
            self.ids = [key for file in self.files for key in file.ids(id_column)]
        self._row_of: dict[Hashable, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"ParquetCorpus({len(self)} documents of {self.dim} dimensions, {str(self.path)!r})"

    def take(self, ids: Sequence[Hashable]) -> Array:
        """Read the vectors of given documents.

        Parameters
        ----------
        ids : sequence
            Document ids, in any order, with or without repetitions.

        Returns
        -------
        array of shape (len(ids), d)
            One vector per id, in the order of ``ids``.

        Raises
        ------
        KeyError, IndexError
            If there is no document with one of the ids (without an id column: no such row).
        VectorError
            If a file has changed since it was opened, or is damaged.
        """
        if isinstance(self.ids, range):
            rows = rows_of(ids, len(self))
        else:
            self._row_of = self._row_of or {key: row for row, key in enumerate(self.ids)}
            rows = np.array([self._row_of[key] for key in ids], dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], self._file_starts)
        vectors = np.empty((len(rows), self.dim), self.dtype)
        for index, file in enumerate(self.files):
            positions = order[bounds[index] : bounds[index + 1]]
            if len(positions):
                vectors[positions] = file.take(rows[positions] - self._file_starts[index])
        return vectors

    def blocks(self) -> Iterator[tuple[Sequence[Hashable], Array]]:
        """Iterate over all documents in blocks.

        A background thread reads one block ahead.

        Yields
        ------
        ids : sequence
            Ids of the documents of a block.
        vectors : array of shape (rows, d)
            Their vectors.

        Raises
        ------
        VectorError
            If a file has changed since it was opened, or is damaged.
        """
        begin = 0
        with ThreadPoolExecutor(1) as reader:
            blocks = (block for file in self.files for block in file.blocks(self.block_rows))
            next_block = reader.submit(next, blocks, None)
            while (block := next_block.result()) is not None:
                next_block = reader.submit(next, blocks, None)
                yield self.ids[begin : begin + len(block)], block
                begin += len(block)


class _File:
    """One Parquet file and its vector column."""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column
        with self._open() as file:
            self.rows, self._state = file.metadata.num_rows, _state_of(path)
            import pyarrow

            kind = _column_type(file, path, column)
            nested = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
            nested = nested or pyarrow.types.is_fixed_size_list(kind)
            if not nested or not pyarrow.types.is_floating(kind.value_type):
                raise VectorError(f"column {column!r} of {path} is {kind}; expected lists of floats")
            self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
            self.dim = 0
            if pyarrow.types.is_fixed_size_list(kind):
                self.dim = kind.list_size
            elif self.rows:
                batch = next(file.iter_batches(1, columns=[column]))
                self.dim = len(batch.column(0)[0].as_py() or [])

    def ids(self, column: str) -> list[Hashable]:
        """Read the id column."""
        import pyarrow

        with self._open() as file:
            kind = _column_type(file, self.path, column)
            if pyarrow.types.is_nested(kind):
                raise VectorError(f"column {column!r} of {self.path} is {kind}; expected strings or integers")
            ids: list[Hashable] = file.read([column])[column].to_pylist()
        if None in ids:
            raise VectorError(f"row {ids.index(None)} of {self.path} has no id in column {column!r}")
        return ids

    def blocks(self, block_rows: int) -> Iterator[Array]:
        """Iterate over the vectors in blocks of ``block_rows``."""
        first_row = 0
        with self._open() as file:
            for batch in file.iter_batches(block_rows, columns=[self.column]):
                yield self._vectors(batch.column(0), first_row)
                first_row += len(batch)

    def take(self, rows: Any) -> Array:
        """Read the vectors of given rows; only their row groups are read."""
        vectors = np.empty((len(rows), self.dim), self.dtype)
        with self._open() as file:
            group_sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            group_starts = np.append(0, np.cumsum(group_sizes))
            group_of_row = np.searchsorted(group_starts, rows, side="right") - 1
            for group in np.unique(group_of_row):
                positions = np.flatnonzero(group_of_row == group)
                begin = int(group_starts[group])
                for batch in file.iter_batches(row_groups=[int(group)], columns=[self.column]):
                    in_batch = positions[(rows[positions] >= begin) & (rows[positions] < begin + len(batch))]
                    if len(in_batch):
                        vectors[in_batch] = self._vectors(batch.column(0), begin)[rows[in_batch] - begin]
                    begin += len(batch)
        return vectors

    def _vectors(self, column: Any, first_row: int) -> Array:
        """Convert a column of lists, which starts at ``first_row`` of the file, to a matrix."""
        import pyarrow

        missing = np.flatnonzero(np.asarray(column.is_null()))
        if len(missing):
            raise VectorError(f"row {first_row + missing[0]} of {self.path} has no vector in column {self.column!r}")
        if not pyarrow.types.is_fixed_size_list(column.type):
            lengths = np.diff(np.asarray(column.offsets))
            odd = np.flatnonzero(lengths != self.dim)
            if len(odd):
                raise VectorError(
                    f"row {first_row + odd[0]} of {self.path} has a vector of {lengths[odd[0]]} dimensions, "
                    f"and the first one has {self.dim}"
                )
        # Null elements become NaN, which the validation of vectors rejects.
        numbers: Array = column.flatten().to_numpy(zero_copy_only=False)
        return numbers.astype(self.dtype, copy=False).reshape(len(column), self.dim)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the file after checking that it is unchanged."""
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError("reading Parquet files", "parquet") from None
        if hasattr(self, "_state") and _state_of(self.path) != self._state:
            raise VectorError(f"{self.path} changed since it was opened: open it again")
        with (
            pyarrow_errors_named(self.path),
            parquet.ParquetFile(self.path, buffer_size=_READ_BYTES, pre_buffer=False) as file,
        ):
            yield file


@contextmanager
def pyarrow_errors_named(path: Path) -> Iterator[None]:
    """Re-raise PyArrow and system errors as a ``VectorError`` that names the file.

    Parameters
    ----------
    path : Path
        The file that is read inside the ``with`` block.

    Raises
    ------
    VectorError
        If PyArrow or the operating system cannot read the file.
    """
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise VectorError(f"{path} cannot be read: {error}") from None


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Return inode, size and modification time, or None for a file that does not exist."""
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


def _parquet_files(path: Path) -> list[Path]:
    """List the Parquet files at a path in natural order, without hidden files and metadata files."""
    files = [path]
    if path.is_dir():
        files = [file for file in path.glob("*.parquet") if not file.name.startswith((".", "_"))]
        if not files:
            raise VectorError(f"no *.parquet files in {path} (subfolders are not searched)")
    if not files[0].is_file():
        raise VectorError(f"no such file or folder: {path}")
    return sorted(files, key=_natural_order)


def _natural_order(file: Path) -> list[int | str]:
    """Sort key that compares the numbers in a file name by value."""
    return [int(part) if part.isdigit() else part for part in _DIGITS.split(file.name)]


_DIGITS = re.compile(r"([0-9]+)")
