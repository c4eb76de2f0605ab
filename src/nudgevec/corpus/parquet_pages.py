"""Numbers of a list column where they lie in a Parquet file, without decoding.

Writers leave floats as they are (the PLAIN encoding), page by page. A reader of nested columns looks at the nesting
level of every single number, which takes several times as long as copying them. So pages are found by their headers
and copied. Whatever is less simple is left to PyArrow. (That all lists are equally long is taken from the schema.)

The format: https://parquet.apache.org/docs/file-format; headers are in Thrift's compact protocol.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.errors import VectorError

Bytes = npt.NDArray[np.uint8]
Copy = Callable[[int, int, Bytes], None]
"""Copies the numbers from one on, up to another one, into bytes."""

Version = tuple[int, int, int]
"""What changes when another file takes the place of one, or when it is written to."""

# Compression, as Parquet and as PyArrow call it.
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}
# Kinds of pages, and encodings.
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_PLAIN, _RLE = 0, 3
# Longer than any header we know of, with all its statistics.
_HEADER = 1 << 12
# Compressed pages are unpacked as a whole, each by the thread that wants something of it: large ones had better not be.
_LARGEST = 1 << 23


@dataclass(frozen=True)
class Page:
    """So many numbers, as the last bytes of a stretch of the file, which may be compressed."""

    count: int
    offset: int
    packed: int
    size: int
    codec: str | None
    levels: bool
    """Whether nesting levels come first."""

    def holds_all(self, width: int, four_bytes: Callable[[int], bytes]) -> bool:
        """Whether there is a number, of so many bytes, for each that is counted: missing ones (nulls) are counted too.
        Levels come in two lists, with their lengths before them."""
        begin = 0
        for _ in range(2 * self.levels):
            begin += 4 + int.from_bytes(four_bytes(begin), "little")
        return begin + self.count * width == self.size


class Numbers:
    """All numbers of a column in one row group from ``begin`` on. Those before have to be decoded."""

    def __init__(self, path: Path, version: Version, width: int, begin: int, pages: list[Page]) -> None:
        self.path, self.version, self.width, self.begin, self.pages = path, version, width, begin, pages
        self.first = list(accumulate((page.count for page in pages), initial=begin))
        # Single ones are then copied at about the cost of a look into the file.
        self.quick = all(page.codec in (None, "snappy") for page in pages)

    @contextmanager
    def opened(self) -> Iterator[Copy]:
        """To copy some of them, from one thread."""
        with _opened(self.path, self.version) as file:
            yield partial(self._copy, file, lru_cache(maxsize=1)(partial(self._unpacked, file)))

    def _copy(self, file: FileIO, unpacked: Callable[[int], Bytes], begin: int, end: int, into: Bytes) -> None:
        number = bisect_right(self.first, begin) - 1
        while begin < end:
            page, last = self.pages[number], self.first[number + 1]
            at, stop = page.size - (last - begin) * self.width, min(end, last)
            size = (stop - begin) * self.width
            some, into = into[:size], into[size:]
            if page.codec is None:
                self._read(file, page.offset + at, some)
            else:
                some[:] = unpacked(number)[at : at + len(some)]
            number, begin = number + 1, stop

    def _unpacked(self, file: FileIO, number: int) -> Bytes:
        from pyarrow import decompress

        page = self.pages[number]
        packed = np.empty(page.packed, np.uint8)
        self._read(file, page.offset, packed)
        with reading(self.path):
            unpacked = np.frombuffer(decompress(packed, page.size, page.codec), np.uint8)
        if not page.holds_all(self.width, lambda at: unpacked[at : at + 4].tobytes()):
            raise VectorError(f"{self.path} has documents without a vector, or vectors without some of their numbers")
        return unpacked

    def _read(self, file: FileIO, offset: int, into: Bytes) -> None:
        file.seek(offset)
        while len(into):
            count = file.readinto(into.data)
            if not count:
                raise VectorError(f"{self.path} ends in the middle of a page; was it written to meanwhile?")
            into = into[count:]


def version_of(path: Path) -> Version:
    """Of a file as it is now."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What PyArrow says of a file, as an error of ours that names it."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        raise VectorError(f"{path} cannot be read: {error}") from None


@contextmanager
def _opened(path: Path, version: Version) -> Iterator[FileIO]:
    with FileIO(path) as file:
        if version_of(path) != version:
            raise VectorError(f"{path} is not the file any more that it was when the corpus was opened; open it again")
        yield file


def plain_numbers(path: Path, version: Version, column: Any, count: int, width: int) -> Numbers | None:
    """Where the numbers of a list column lie, so many of so many bytes, given PyArrow's metadata of it in a row group.
    None where that cannot be told, or where some of them are missing."""
    counted = column.statistics is not None and column.statistics.has_null_count
    if not counted or column.statistics.null_count or column.compression not in _CODECS:
        return None
    try:
        with _opened(path, version) as file:
            numbers = Numbers(path, version, width, *_pages(file, column, width))
    except (IndexError, KeyError, RecursionError, TypeError, ValueError):
        # A header that is not as we know them.
        return None
    return numbers if numbers.first[-1] == count else None


def _pages(file: FileIO, column: Any, width: int) -> tuple[int, list[Page]]:
    """How many numbers come before the plain ones, and the pages of these, which are the last ones."""

    def bytes_at(offset: int, place: int, count: int = 4) -> bytes:
        file.seek(offset + place)
        return file.read(count)

    begin, pages = 0, list[Page]()
    offset = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    end = offset + column.total_compressed_size
    while offset < end:
        header, length = _struct(bytes_at(offset, 0, _HEADER), 0)
        offset += length
        if header[3] < 0:
            raise ValueError("a page of a negative size")
        if header[1] != _DICTIONARY:
            encoding, page = _page(header, offset, _CODECS[column.compression])
            if encoding != _PLAIN:
                begin, pages = begin + sum(each.count for each in [*pages, page]), []
            elif page.count:
                # Levels that are compressed are looked at when the page is read.
                known = page.codec is None or not page.levels
                if known and not page.holds_all(width, partial(bytes_at, page.offset)):
                    raise ValueError("some numbers are missing")
                if page.codec is not None and page.size > _LARGEST:
                    raise ValueError("too large a page to be unpacked for some of its numbers")
                pages.append(page)
        offset += header[3]
    return begin, pages


def _page(header: dict[int, Any], offset: int, codec: str | None) -> tuple[int, Page]:
    """The encoding of a page, and the page, whose bytes begin there."""
    size, packed = header[2], header[3]
    if header[1] == _DATA:
        about = header[5]
        if (about[3], about[4]) != (_RLE, _RLE):
            raise ValueError("nesting levels are encoded in another way")
        return about[2], Page(about[1], offset, packed, size, codec, levels=True)
    if header[1] == _DATA_2:
        about = header[8]
        # Levels are never compressed here, and the rest need not be.
        levels = about[5] + about[6]
        codec = codec if about.get(7, True) else None
        return about[4], Page(about[1], offset + levels, packed - levels, size - levels, codec, levels=False)
    raise ValueError("no page with numbers")


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """The fields of a structure by their numbers, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, head & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == 12:
        return _struct(data, at)
    raise ValueError(f"kind {kind} is in no header of a page")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
