"""Folders of vectors: ``documents.*`` and ``queries.*`` as .npy, .safetensors, .parquet or .arrow, and ``qrels.*``.

Parquet and Arrow files have the columns "id" and "vector". For ``documents.npy`` and ``documents.safetensors`` (its
only tensor, or the one named "vectors"), ids are in ``documents.ids``, one per line. Without ids, documents are
numbered from 0. Labels (a folder ``qrels/`` or a file) refer to these ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array
from nudgevec.corpus.parquet import pyarrow_errors_named
from nudgevec.errors import InputError, MissingExtraError
from nudgevec.text.collection import Collection, Items, make_collection
from nudgevec.text.readers import qrels


def read(folder: Path) -> Collection:
    """Read a folder of vectors."""
    documents, queries = read_items(folder, "documents"), read_items(folder, "queries")
    if (folder / "qrels").is_dir():
        by_split = qrels.read_folder(folder / "qrels")
    else:
        files = sorted(path for path in folder.glob("qrels*") if path.is_file())
        if not files:
            raise InputError(f"{folder} has no labels: expected a folder qrels/ or a file qrels.tsv")
        by_split = qrels.merge([(_split_of_file(path), qrels.read_file(path)) for path in files])
    return make_collection(folder.resolve().name, documents, queries, by_split, folder)


def read_items(folder: Path, kind: str) -> Items:
    """Read the vectors and ids of the "documents" or "queries" of a folder."""
    readers = {
        ".npy": _read_npy,
        ".safetensors": _read_safetensors,
        ".parquet": _read_columns,
        ".arrow": _read_columns,
        ".feather": _read_columns,
    }
    files = [path for path in sorted(folder.glob(f"{kind}.*")) if path.suffix in readers]
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise InputError(f"{folder}: expected one file of {kind} ({', '.join(readers)}), found {found}")
    ids, vectors = readers[files[0].suffix](files[0])
    if vectors.ndim != 2:
        raise InputError(f"{files[0]} has an array of shape {vectors.shape}, expected (rows, dimensions)")
    id_file = folder / f"{kind}.ids"
    if id_file.is_file():
        ids = id_file.read_text(encoding="utf-8").splitlines()
    if ids is None:
        ids = [str(row) for row in range(len(vectors))]
    if len(ids) != len(vectors):
        raise InputError(f"{files[0]}: {len(ids)} ids do not match {len(vectors)} vectors")
    return Items(ids, None, vectors)


def read_table(path: Path) -> Any:
    """Read a Parquet file, or an Arrow file in either of its two formats."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"reading {path.name}", "parquet") from None
    if path.suffix == ".parquet":
        with pyarrow_errors_named(path):
            return parquet.read_table(path)
    with pyarrow_errors_named(path), pyarrow.memory_map(str(path)) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


def _split_of_file(path: Path) -> str:
    return qrels.split_of_file(path.stem.removeprefix("qrels").strip("-._"))


def read_npy(path: Path) -> Array:
    """Map the array of a .npy file into memory."""
    try:
        # np.load would also read archives and pickles, whatever the name of the file.
        array: Array = np.lib.format.open_memmap(path, "r")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, OverflowError, SyntaxError) as error:
        raise InputError(f"{path} is not a readable .npy file of numbers: {error}") from None
    return array


def _read_npy(path: Path) -> tuple[list[str] | None, Array]:
    return None, read_npy(path)


def _read_safetensors(path: Path) -> tuple[list[str] | None, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from None
    name = "vectors" if "vectors" in tensors else next(iter(tensors), "")
    if name != "vectors" and len(tensors) != 1:
        raise InputError(f'{path} has the tensors {", ".join(tensors)}; name the one with the vectors "vectors"')
    return None, tensors[name]


def _read_columns(path: Path) -> tuple[list[str] | None, Array]:
    table = read_table(path)
    return _id_column(table), _vector_column(table, path)


def _id_column(table: Any) -> list[str] | None:
    for name in ("id", "_id", "ids"):
        if name in table.column_names:
            return [str(key) for key in table[name].to_pylist()]
    return None


def _vector_column(table: Any, path: Path) -> Array:
    names = [name for name in ("vector", "embedding", "vectors", "embeddings") if name in table.column_names]
    if not names:
        raise InputError(f"{path} has no column of vectors (vector, embedding); it has {', '.join(table.column_names)}")
    from pyarrow import compute

    column = table[names[0]].combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False)
    if len(column) == 0:
        raise InputError(f"{path} has no rows")
    sizes = compute.list_value_length(column).to_pylist()
    bad = next((row for row, size in enumerate(sizes) if size is None or size != sizes[0]), None)
    if bad is not None:
        problem = "no vector" if sizes[bad] is None else f"a vector of {sizes[bad]} dimensions, row 0 of {sizes[0]}"
        raise InputError(f"{path}: row {bad} of column {names[0]!r} has {problem}; remove or repair it")
    return np.asarray(values).reshape(len(column), -1)
