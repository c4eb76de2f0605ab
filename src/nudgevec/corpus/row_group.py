"""The vectors of one Parquet file, row group by row group.

Vectors that lie in the file as they are, as writers leave most floats, are copied from there (``parquet_pages``),
single ones too. PyArrow decodes the others: lists that need not be equally long, numbers in dictionaries and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arithmetic.parallel import everywhere, slices
from nudgevec.arithmetic.rows import Array, Ints
from nudgevec.corpus.parquet_pages import Copy, Numbers, plain_numbers, reading, version_of
from nudgevec.errors import VectorError

# Of a row group with a larger share to decode, all is decoded; and so it is for row groups of a corpus.
SMALL_SHARE = 1 / 8
# Stretches of vectors copied at a time, by one thread: at least so many, and so many shares where there are more.
_STRETCHES = 64
_SHARES = 32


def column_type(file: Any, path: Path, column: str) -> Any:
    """The type of a column, which must be there."""
    names = file.schema_arrow.names
    if column not in names:
        raise VectorError(f"{path} has no column {column!r}; it has {', '.join(names)}")
    return file.schema_arrow.field(column).type


class VectorColumn:
    """A column of vectors in one file, which PyArrow has opened."""

    def __init__(self, file: Any, path: Path, name: str) -> None:
        import pyarrow.types as types

        kind = column_type(file, path, name)
        # Whether the schema says that all lists are equally long.
        self.fixed = types.is_fixed_size_list(kind)
        lists = self.fixed or types.is_list(kind) or types.is_large_list(kind)
        if not lists or not types.is_floating(kind.value_type):
            raise VectorError(f"column {name!r} of {path} is {kind}; vectors are lists of floats")
        self.file, self.path, self.name, self.version = file, path, name, version_of(path)
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype())
        self.dim = int(kind.list_size) if self.fixed else self._first_length()
        sizes = [int(file.metadata.row_group(number).num_rows) for number in range(file.num_row_groups)]
        begins = accumulate(sizes, initial=0)
        self.groups = [RowGroup(self, number, next(begins), rows) for number, rows in enumerate(sizes)]

    def _first_length(self) -> int:
        """How long the first vector is; zero where there is none."""
        first = next(self.file.iter_batches(1, columns=[self.name]), None)
        return 0 if first is None else int(first[self.name].value_lengths()[0].as_py() or 0)

    def decoded(self, groups: list[RowGroup], size: int) -> Iterator[Array]:
        """All vectors of some neighbouring row groups, so many at a time, from PyArrow."""
        row = groups[0].begin
        with reading(self.path):
            for batch in self.file.iter_batches(
                size, row_groups=[group.number for group in groups], columns=[self.name]
            ):
                lists = batch[self.name]
                self._check(lists, row)
                yield lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)
                row += len(lists)

    def _check(self, lists: Any, row: int) -> None:
        """Refuse lists, the first of them in that row, that are no vectors."""
        if lists.null_count:
            row += int(np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False))[0])
            raise VectorError(f"row {row} of {self.path} has no vector in column {self.name!r}; remove or repair it")
        length = None if self.fixed else lists.value_lengths().to_numpy()
        if length is not None and (length != self.dim).any():
            place = int(np.flatnonzero(length != self.dim)[0])
            raise VectorError(
                f"row {row + place} of {self.path} has a vector of {length[place]} dimensions, and the first one has "
                f"{self.dim}; remove or repair it"
            )


class RowGroup:
    """So many vectors, from one row of the file on."""

    def __init__(self, column: VectorColumn, number: int, begin: int, rows: int) -> None:
        self.column, self.number, self.begin, self.rows = column, number, begin, rows
        self.dim, self.dtype = column.dim, column.dtype

    @cached_property
    def numbers(self) -> Numbers | None:
        """Where the numbers of nearly all vectors lie in the file; None where there are none such."""
        column, width, count = self.column, self.dtype.itemsize, self.rows * self.dim
        schema = column.file.schema
        leaves = [leaf for leaf in range(len(schema)) if schema.column(leaf).path.startswith(f"{column.name}.")]
        if not column.fixed or len(leaves) != 1 or not _floats(schema.column(leaves[0]), width):
            return None
        about = column.file.metadata.row_group(self.number).column(leaves[0])
        numbers = plain_numbers(column.path, column.version, about, count, width)
        return None if numbers is None or numbers.begin > SMALL_SHARE * count else numbers

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

    def _first_ones(self, size: int) -> Iterator[Array]:
        """Those that have to be decoded."""
        left = self.undecoded
        for block in self.column.decoded([self], size) if left else ():
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


def _floats(leaf: Any, width: int) -> bool:
    """Whether a column of Parquet's is a list, not a list of lists, of floats with so many bytes."""
    widths = {"FLOAT": 4, "DOUBLE": 8, "FIXED_LEN_BYTE_ARRAY": leaf.length}
    return leaf.max_repetition_level == 1 and widths.get(leaf.physical_type) == width
