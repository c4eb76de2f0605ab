"""Hugging Face dataset folders in the layout of retrieval benchmarks: ``corpus``, ``queries`` and ``default``.

Each of them is a folder of Parquet or Arrow files (as downloaded, or as ``save_to_disk`` writes them), or a group of
Parquet files whose names begin with it. Labels are in ``default`` or ``qrels``, one folder or file per split.
"""

from __future__ import annotations

from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, Qrels, make_collection
from nudgevec.text.readers import qrels
from nudgevec.text.readers.vectors import read_table

_SPLIT_PREFIXES = ("train", "dev", "validation", "test")


def read(folder: Path) -> Collection:
    """Read a Hugging Face dataset folder."""
    labels = []
    for name in ("default", "qrels", "data"):
        for path in _files(folder, name):
            labels.append((_split_of_file(path), _read_labels(path)))
    if not labels:
        raise InputError(f"{folder} has no labels: expected files in default/ or qrels/")
    documents, queries = read_items(folder, "corpus"), read_items(folder, "queries")
    return make_collection(folder.resolve().name, documents, queries, qrels.merge(labels), folder)


def read_items(folder: Path, name: str) -> Items:
    """Read the documents (``name`` "corpus") or queries ("queries") of such a folder."""
    ids: list[str] = []
    texts: list[str] = []
    for path in _files(folder, name):
        for row in read_table(path).to_pylist():
            key = row.get("_id", row.get("id"))
            if key is None or "text" not in row:
                raise InputError(f"{path}: expected the columns _id and text, found {', '.join(row)}")
            ids.append(str(key))
            texts.append(f"{row.get('title') or ''} {row['text'] or ''}".strip())
    return Items(ids, texts)


def _files(folder: Path, name: str) -> list[Path]:
    files = [path for path in (folder / name).rglob("*") if path.suffix in (".parquet", ".arrow")]
    return sorted(files) or sorted(folder.glob(f"{name}*.parquet"))


def _split_of_file(path: Path) -> str:
    for prefix in _SPLIT_PREFIXES:
        if path.stem.startswith(prefix) or path.parent.name == prefix:
            return qrels.split_of_file(prefix)
    return "all"


def _read_labels(path: Path) -> Qrels:
    labels: Qrels = {}
    for row in read_table(path).to_pylist():
        try:
            query, document, grade = row["query-id"], row["corpus-id"], row["score"]
        except KeyError:
            raise InputError(
                f"{path}: expected the columns query-id, corpus-id and score, found {', '.join(row)}"
            ) from None
        labels.setdefault(str(query), {})[str(document)] = float(grade)
    return labels
