"""Folders of vectors: ``documents.*`` and ``queries.*`` as .npy, .safetensors, .parquet or .arrow, and ``qrels.*``.

Parquet and Arrow carry ids and vectors as columns ("id", "vector"). Beside ``documents.npy`` or
``documents.safetensors`` (its only tensor, or the one called "vectors") there may be ``documents.ids``, one id per
line; without it, and without an id column, rows are counted from 0. Judgements (a folder ``qrels/`` or a file) name
those ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array
from nudgevec.corpus.parquet import reading
from nudgevec.errors import InputError, MissingExtraError
from nudgevec.text.collection import Collection, Items, collected
from nudgevec.text.readers import qrels


def read(folder: Path) -> Collection:
    """The collection of a folder of vectors."""
    documents, queries = items(folder, "documents"), items(folder, "queries")
    if (folder / "qrels").is_dir():
        sides = qrels.read_folder(folder / "qrels")
    else:
        files = sorted(each for each in folder.glob("qrels*") if each.is_file())
        if not files:
            raise InputError(f"{folder} has no judgements: neither a folder qrels/ nor a file qrels.tsv")
        sides = qrels.joined([(_side(each), qrels.read_file(each)) for each in files])
    return collected(folder.resolve().name, documents, queries, sides, folder)


def _side(path: Path) -> str:
    return qrels.side_of(path.stem.removeprefix("qrels").strip("-._"))


def items(folder: Path, what: str) -> Items:
    """The "documents" or "queries" of such a folder."""
    kinds = {".npy": _npy, ".safetensors": _safetensors, ".parquet": _table, ".arrow": _table, ".feather": _table}
    files = [each for each in sorted(folder.glob(f"{what}.*")) if each.suffix in kinds]
    if len(files) != 1:
        seen = ", ".join(each.name for each in files) or "none"
        raise InputError(f"{folder}: expected one file of {what} ({', '.join(kinds)}), found {seen}")
    ids, vectors = kinds[files[0].suffix](files[0])
    listed = folder / f"{what}.ids"
    if listed.is_file():
        ids = listed.read_text(encoding="utf-8").splitlines()
    if ids is None:
        ids = [str(row) for row in range(len(vectors))]
    if len(ids) != len(vectors):
        raise InputError(f"{files[0]}: {len(ids)} ids do not match {len(vectors)} vectors")
    return Items(ids, None, vectors)


def _npy(path: Path) -> tuple[list[str] | None, Array]:
    try:
        return None, np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{path} is not a readable .npy file of numbers") from error


def _safetensors(path: Path) -> tuple[list[str] | None, Array]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable safetensors file: {error}") from None
    name = "vectors" if "vectors" in tensors else next(iter(tensors), "")
    if name != "vectors" and len(tensors) != 1:
        raise InputError(f'{path} has the tensors {", ".join(tensors)}; call the one with the vectors "vectors"')
    return None, tensors[name]


def _table(path: Path) -> tuple[list[str] | None, Array]:
    table = read_table(path)
    return column_of_ids(table), column_of_vectors(table, path)


def read_table(path: Path) -> Any:
    """A Parquet file, or an Arrow file in either of its two formats."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtraError(f"reading {path.name}", "parquet") from None
    if path.suffix == ".parquet":
        with reading(path):
            return parquet.read_table(path)
    with reading(path), pyarrow.memory_map(str(path)) as source:
        try:
            return pyarrow.ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).read_all()


def column_of_ids(table: Any) -> list[str] | None:
    """The ids of a table, if it has any."""
    for name in ("id", "_id", "ids"):
        if name in table.column_names:
            return [str(key) for key in table[name].to_pylist()]
    return None


def column_of_vectors(table: Any, path: Path) -> Array:
    """The vectors of a table, from a list column."""
    from pyarrow import compute

    for name in ("vector", "embedding", "vectors", "embeddings"):
        if name in table.column_names:
            column = table[name].combine_chunks()
            rows = len(column)
            flat = column.flatten().to_numpy(zero_copy_only=False)
            if rows == 0:
                raise InputError(f"{path} has no rows")
            sizes = compute.list_value_length(column).to_pylist()
            odd = next((row for row, size in enumerate(sizes) if size is None or size != sizes[0]), None)
            if odd is not None:
                found = (
                    "no vector" if sizes[odd] is None else f"a vector of {sizes[odd]} dimensions, row 0 of {sizes[0]}"
                )
                raise InputError(f"{path}: row {odd} of column {name!r} has {found}; remove or repair it")
            return np.asarray(flat).reshape(rows, -1)
    raise InputError(f"{path} has no column of vectors (vector, embedding); it has {', '.join(table.column_names)}")
