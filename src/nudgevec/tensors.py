"""Safetensors files of any size: written in slices, and memory-mapped when they are read."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array, slices

_SLICE_BYTES = 8 << 20
_HEADER_LENGTH = struct.Struct("<Q")
# The library refuses files with a longer header.
_MAX_HEADER_BYTES = 100_000_000
_TYPES = {
    name: np.dtype(code)
    for name, code in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "|i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "|u1",
        "BOOL": "|b1",
    }.items()
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


@dataclass(frozen=True)
class Tensor:
    """An array that is about to be written: its type and shape, and its rows in parts."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Iterable[Array]

    @classmethod
    def of(cls, array: Array) -> Tensor:
        """Return an array as a tensor."""
        return cls(array.dtype, array.shape, row_slices(array))

    @property
    def nbytes(self) -> int:
        """The size of all parts."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], task: str) -> None:
    """Write a safetensors file.

    Parameters
    ----------
    path : Path
        The file; its contents are replaced.
    tensors : mapping
        Tensors by name.
    metadata : mapping
        Texts by name.
    task : str
        What the progress bar shows.

    Raises
    ------
    ValueError
        If the metadata is too long.
    """
    # Larger numbers come first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError(f"{len(text):,} bytes of metadata are too long for a safetensors file")
    with open(path, "wb") as file, progress.bar(task, end) as bar:
        file.write(_HEADER_LENGTH.pack(len(text)) + text)
        for name in names:
            for part in tensors[name].parts:
                bar.update(file.write(as_bytes(part).data))


def map_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Array]]:
    """Return the metadata of a safetensors file, and its arrays, memory-mapped and read-only.

    The arrays stay as they are if the file is replaced or removed.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    ValueError
        If it is not a safetensors file.
    """
    with open(path, "rb") as file:
        whole = np.memmap(file, np.uint8, "r")
    if len(whole) < _HEADER_LENGTH.size:
        raise ValueError("the header is incomplete")
    (length,) = _HEADER_LENGTH.unpack(whole[: _HEADER_LENGTH.size].tobytes())
    data = whole[_HEADER_LENGTH.size + length :]
    if length > min(_MAX_HEADER_BYTES, len(whole) - _HEADER_LENGTH.size):
        raise ValueError("the header is incomplete")
    try:
        header = json.loads(whole[_HEADER_LENGTH.size :][:length].tobytes())
        metadata = dict(header.pop("__metadata__", None) or {})
        return metadata, {name: _mapped(data, **entry) for name, entry in header.items()}
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the header is malformed ({type(error).__name__})") from None


def _mapped(data: Array, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    """Return one array of a file."""
    (begin, end), kind = data_offsets, _TYPES[dtype]
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError("a shape or offset is not a whole number")
    if end > len(data) or end - begin != math.prod(shape) * kind.itemsize:
        raise ValueError("the file is incomplete, or an array does not have its size")
    # Files that are not aligned are copied.
    array: Array = np.require(np.asarray(data[begin:end].view(kind).reshape(shape)), requirements="A")
    return array


def row_slices(array: Array) -> Iterator[Array]:
    """Yield contiguous slices of a few megabytes; pages of a memory-mapped array are released after each of them."""
    array = np.atleast_1d(array)
    row_bytes = max(1, array[:1].nbytes)
    for part in slices(len(array), max(1, _SLICE_BYTES // row_bytes)):
        yield np.ascontiguousarray(array[part])
        release_pages(array)


def as_bytes(array: Array) -> Array:
    """Return the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def release_pages(array: Array) -> None:
    """Stop counting the pages of a memory-mapped file as ours; they stay in the file cache of the system."""
    mapping = mapping_of(array)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def mapping_of(array: Array) -> mmap.mmap | None:
    """Return the file mapping behind a memory-mapped array, if dropping its pages loses nothing."""
    base: Any = array
    while base is not None:
        if isinstance(base, np.memmap) and isinstance(base.base, mmap.mmap):
            # Copy-on-write pages (mode "c") exist nowhere else.
            return base.base if base.mode in ("r", "r+") else None
        base = getattr(base, "base", None)
    return None
