"""Array types, and the forms in which vectors and ids are accepted."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.errors import VectorError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def as_matrix(vectors: Any, what: str) -> Array:
    """Return vectors as a two-dimensional float array, without a copy where they are one already.

    Parameters
    ----------
    vectors : array_like of shape (n, d)
        A NumPy array, nested lists, a PyTorch tensor on any device, a pandas or polars data frame of numbers, or a
        column of equally long lists, in a data frame of its own or not.
    what : str
        What to call them in an error message.

    Raises
    ------
    VectorError
        If they are texts, not of equal length, or not numbers.
    """
    try:
        matrix = only_column(from_torch(vectors) if hasattr(vectors, "detach") else np.asarray(vectors))
        if matrix.dtype == object and matrix.ndim == 1 and len(matrix) and not isinstance(matrix[0], (str, bytes)):
            matrix = np.stack([np.asarray(vector) for vector in matrix])
    except (ValueError, TypeError) as error:
        raise VectorError(f"{what} must be rows of equal length: {error}") from None
    if matrix.dtype.kind in "US" or (matrix.dtype == object and matrix.ndim == 1) or isinstance(vectors, os.PathLike):
        raise VectorError(
            f"{what} must be vectors, not texts or a path: embed the texts, np.load the file, "
            "or open Parquet files with nudgevec.ParquetCorpus, first"
        )
    if matrix.ndim != 2:
        raise VectorError(
            f"{what} must be a two-dimensional array (rows, dimensions), not {matrix.ndim}-dimensional "
            f"({type(vectors).__name__})"
        )
    if matrix.dtype.kind in "iu" and isinstance(vectors, (list, tuple)):
        matrix = matrix.astype(np.float64)
    if matrix.dtype.kind != "f" or matrix.dtype.itemsize not in (2, 4, 8):
        raise VectorError(f"{what} must be float16, float32 or float64, not {matrix.dtype}")
    return matrix if matrix.dtype.isnative else matrix.astype(matrix.dtype.newbyteorder("="))


def as_list(values: Any) -> list[Any]:
    """Return the entries of a list, array, tensor, column, or frame with one column, as plain Python objects."""
    # A data frame has none of these methods, except that of PyArrow, which makes a dict of every row.
    if len(getattr(values, "shape", ())) == 2 and not hasattr(values, "tolist"):
        values = np.asarray(values)
        values = values[:, 0] if values.shape[1] == 1 else values
    for name in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, name):
            plain = getattr(values, name)()
            return plain if isinstance(plain, list) else [plain]
    return list(values)


def as_plain(value: Any) -> Any:
    """Return a number or text of NumPy, PyTorch or PyArrow as a plain Python object, and anything else as it is."""
    for name in ("item", "as_py"):
        if hasattr(value, name):
            try:
                return getattr(value, name)()
            except (TypeError, ValueError, RuntimeError):
                # An array of several numbers.
                return value
    return value


def only_column(table: Array) -> Array:
    """Return the column of a table with a single column of objects, such as lists, and any other array as it is."""
    return table[:, 0] if table.dtype == object and table.ndim == 2 and table.shape[1] == 1 else table


def from_torch(tensor: Any) -> Array:
    """Return a PyTorch tensor on any device as an array."""
    tensor = tensor.detach().cpu()
    # NumPy has no bfloat16.
    array: Array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return array


def as_ids(ids: Any) -> Sequence[Hashable]:
    """Return ids as a list, by position; a range stays one."""
    return ids if isinstance(ids, range) else as_list(ids)


def rows_of(ids: Sequence[Hashable], n_rows: int) -> Ints:
    """Return the rows of documents whose ids are their rows."""
    rows = np.asarray(ids, dtype=np.int64)
    odd = rows[(rows < 0) | (rows >= n_rows)]
    if len(odd):
        raise IndexError(f"there is no row {odd[0]}: the rows of these documents are 0 to {n_rows - 1}")
    return rows


def slices(size: int, step: int) -> Iterator[slice]:
    """Divide ``range(size)`` into slices of at most ``step``."""
    for begin in range(0, size, step):
        yield slice(begin, min(begin + step, size))
