"""A folder of Parquet files as a corpus.

Vectors are a FixedSizeList column of float16, float32 or float64, ids any column of strings or whole numbers.
Files are read in the order of their names.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.corpus import rows_among
from nudgevec.errors import MissingExtraError, VectorError
from nudgevec.parallel import everywhere, slices
from nudgevec.parquet_pages import Copy, Numbers, Version, plain_numbers, version_of
from nudgevec.rows import Array, Ints

# Bytes of a block by default, and those that PyArrow reads at a time, instead of a whole row group.
_BLOCK_BYTES = 6 << 20
_READ_BYTES = 1 << 20
# Of a row group with more than this share to decode, all is decoded.
_SMALL_SHARE = 1 / 8
# Stretches of vectors copied at a time, by one thread: at least so many, and so many shares where there are more.
_STRETCHES = 64
_SHARES = 32


class ParquetCorpus:
    """Documents in one Parquet file or a folder of them.

    ``id_column=None`` names documents by their row, counted through all files. ``block_rows`` are read at a time; about
    6 MB by default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        vector_column: str = "vector",
        id_column: str | None = "id",
        block_rows: int | None = None,
    ) -> None:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtraError("reading Parquet files", "parquet") from None
        # Files are opened again later on, by their names.
        where = Path(path).absolute()
        names = sorted(where.glob("*.parquet")) if where.is_dir() else [where]
        if not names or not names[0].is_file():
            raise VectorError(f"there are no Parquet files at {where}")
        versions = [version_of(name) for name in names]
        files = [parquet.ParquetFile(name, pre_buffer=False, buffer_size=_READ_BYTES) for name in names]
        shapes = []
        for file, name in zip(files, names, strict=True):
            for column in filter(None, (vector_column, id_column)):
                if column not in file.schema_arrow.names:
                    raise VectorError(f"{name} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}")
            kind = file.schema_arrow.field(vector_column).type
            if not pyarrow.types.is_fixed_size_list(kind) or not pyarrow.types.is_floating(kind.value_type):
                raise VectorError(
                    f"column {vector_column!r} is {kind} in {name}; vectors must be a FixedSizeList of floats"
                )
            shapes.append((kind.list_size, kind.value_type))
            if shapes[-1] != shapes[0]:
                raise VectorError(f"vectors are {shapes[0][0]} x {shapes[0][1]} in {names[0]}, and in {name} {kind}")
        dim, number_kind = shapes[0]
        self.dim, self.dtype = int(dim), np.dtype(number_kind.to_pandas_dtype())
        self.block_rows = block_rows or max(1, _BLOCK_BYTES // max(1, self.dim * self.dtype.itemsize))
        self.groups = [
            _RowGroup(file, name, version, number, vector_column, self.dim, self.dtype)
            for file, name, version in zip(files, names, versions, strict=True)
            for number in range(file.num_row_groups)
        ]
        self._first_row = list(accumulate((group.rows for group in self.groups), initial=0))
        self.ids: Sequence[Hashable] = range(self._first_row[-1])
        if id_column is not None:
            self.ids = [key for file in files for key in file.read([id_column])[id_column].to_pylist()]
        self._row_of: dict[Hashable, int] | None = None

    @cached_property
    def random_access(self) -> bool:
        """Whether single vectors are quick to get, nearly all of them."""
        slow = sum(group.rows for group in self.groups if group.numbers is None or not group.numbers.quick)
        return slow <= _SMALL_SHARE * len(self.ids)

    def take(self, ids: Sequence[Hashable]) -> Array:
        rows = self._located(ids)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], self._first_row)
        taken = np.empty((len(rows), self.dim), self.dtype)
        for number, group in enumerate(self.groups):
            here = order[bounds[number] : bounds[number + 1]]
            if len(here):
                taken[here] = group.take(rows[here] - self._first_row[number], self.block_rows)
        return taken

    def _located(self, ids: Sequence[Hashable]) -> Ints:
        if isinstance(self.ids, range):
            return rows_among(ids, len(self.ids))
        if self._row_of is None:
            self._row_of = {key: row for row, key in enumerate(self.ids)}
        return np.array([self._row_of[key] for key in ids], dtype=np.int64)

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
        for (_, decoded), some in groupby(self.groups, lambda group: (group.path, group.numbers is None)):
            first, *others = some
            if decoded:
                # All together: blocks need not end where small row groups do.
                yield from first.decoded(self.block_rows, *others)
                continue
            for group in first, *others:
                yield from group.blocks(self.block_rows)


class _RowGroup:
    """The vectors of a row group, copied where they lie in the file as they are, and decoded by PyArrow elsewhere."""

    def __init__(
        self, file: Any, path: Path, version: Version, number: int, column: str, dim: int, dtype: np.dtype[Any]
    ) -> None:
        self.file, self.path, self.version, self.number, self.column = file, path, version, number, column
        self.dim, self.dtype = dim, dtype
        self.rows = int(file.metadata.row_group(number).num_rows)

    @cached_property
    def numbers(self) -> Numbers | None:
        """Where the numbers of nearly all vectors lie; None where there are none such."""
        schema, width = self.file.schema, self.dtype.itemsize
        leaves = [leaf for leaf in range(len(schema)) if schema.column(leaf).path.startswith(f"{self.column}.")]
        if len(leaves) != 1 or not _lists_of(schema.column(leaves[0]), width):
            return None
        column, count = self.file.metadata.row_group(self.number).column(leaves[0]), self.rows * self.dim
        numbers = plain_numbers(self.path, self.version, column, count, width)
        return None if numbers is None or numbers.begin > _SMALL_SHARE * count else numbers

    @property
    def undecoded(self) -> int:
        """From which vector on they can be copied."""
        return self.rows if self.numbers is None else -(-self.numbers.begin // self.dim)

    def blocks(self, size: int) -> Iterator[Array]:
        """All vectors, so many at a time."""
        yield from self._first_ones(size)
        if self.numbers is not None:
            with self.numbers.opened() as copy:
                for part in slices(self.rows, size, self.undecoded):
                    yield self._copied(copy, part.start, part.stop)

    def take(self, rows: Ints, size: int) -> Array:
        """Some vectors, by their rows (sorted), of which so many are decoded at a time."""
        taken, start = np.empty((len(rows), self.dim), self.dtype), 0
        encoded = int(np.searchsorted(rows, self.undecoded))
        for block in self._first_ones(size) if encoded else ():
            here = slice(*np.searchsorted(rows[:encoded], [start, start + len(block)]))
            taken[here] = block[rows[here] - start]
            start += len(block)
            if here.stop == encoded:
                break
        self._copy(rows[encoded:], taken[encoded:])
        return taken

    def decoded(self, size: int, *others: _RowGroup) -> Iterator[Array]:
        """All vectors of this row group and others of the same file, from PyArrow."""
        numbers = [group.number for group in (self, *others)]
        for batch in self.file.iter_batches(size, row_groups=numbers, columns=[self.column]):
            vectors = batch[self.column]
            if vectors.null_count:
                raise VectorError(f"{self.path} has documents without a vector; remove them, or give them one")
            yield vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)

    def _first_ones(self, size: int) -> Iterator[Array]:
        """Those that have to be decoded."""
        left = self.undecoded
        for block in self.decoded(size) if left else ():
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return

    def _copy(self, rows: Ints, into: Array) -> None:
        """Vectors of some rows (sorted), neighbours together."""
        numbers = self.numbers
        if numbers is None or len(rows) == 0:
            return
        first = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        stretches = list(zip(first.tolist(), [*first[1:].tolist(), len(rows)], strict=True))

        def copy_some(part: slice) -> None:
            with numbers.opened() as copy:
                for begin, end in stretches[part]:
                    into[begin:end] = self._copied(copy, int(rows[begin]), int(rows[begin]) + end - begin)

        everywhere(copy_some, len(stretches), max(_STRETCHES, len(stretches) // _SHARES))

    def _copied(self, copy: Copy, begin: int, end: int) -> Array:
        vectors = np.empty((end - begin, self.dim), self.dtype)
        copy(begin * self.dim, end * self.dim, vectors.reshape(-1).view(np.uint8))
        return vectors


def _lists_of(leaf: Any, width: int) -> bool:
    """Whether a column of Parquet's is a list, not a list of lists, of floats with so many bytes."""
    widths = {"FLOAT": 4, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": leaf.length}
    return leaf.max_repetition_level == 1 and widths.get(leaf.physical_type) == width
