"""The binary formats of pgvector: vectors as PostgreSQL sends them, and rows as its COPY reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nudgevec.arrays import Array

NUMBERS = {"vector": ">f4", "halfvec": ">f2"}
"""Numbers of each vector type, big-endian."""
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"


def unpack_vectors(values: Sequence[bytes], kind: str, dim: int) -> Array:
    """Return an array of shape (len(values), dim) from the results of ``vector_send`` or ``halfvec_send``."""
    record = np.dtype([("dim_and_zero", ">u4"), ("vector", NUMBERS[kind], (dim,))])
    vectors = np.frombuffer(b"".join(values), record)["vector"]
    return vectors.astype(vectors.dtype.newbyteorder("="))


def pack_rows(first: int, columns: Sequence[Array], kind: str) -> bytes:
    """Return rows of a number, from ``first`` on, and vectors; each field has its length before it."""
    number, dim = np.dtype(NUMBERS[kind]), columns[0].shape[1]
    fields: list[Any] = [("n_fields", ">i2"), ("number_length", ">i4"), ("number", ">i8")]
    for i in range(len(columns)):
        fields += [(f"length{i}", ">i4"), (f"dim{i}", ">i2"), (f"zero{i}", ">i2"), (f"vector{i}", number, (dim,))]
    rows = np.zeros(len(columns[0]), fields)
    rows["n_fields"], rows["number_length"] = 1 + len(columns), 8
    rows["number"] = np.arange(first, first + len(rows))
    for i, column in enumerate(columns):
        rows[f"length{i}"], rows[f"dim{i}"] = 4 + number.itemsize * dim, dim
        rows[f"vector{i}"] = column
    return rows.tobytes()
