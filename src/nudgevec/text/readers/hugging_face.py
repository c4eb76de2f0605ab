"""Hugging Face data set folders in the layout of the retrieval benchmarks there: ``corpus``, ``queries``, ``default``.

Each part is a folder of Parquet or Arrow files (as downloaded, or as ``save_to_disk`` leaves them), or Parquet files
that begin with its name. Judgements are in ``default`` or ``qrels``, one folder or file per side.
"""

from __future__ import annotations

from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, Qrels, collected
from nudgevec.text.readers import qrels
from nudgevec.text.readers.vectors import read_table

_SIDES = ("train", "dev", "validation", "test")


def read(folder: Path) -> Collection:
    """The collection of such a folder."""
    judged = []
    for part in ("default", "qrels", "data"):
        for path in _files(folder, part):
            side = next((name for name in _SIDES if path.stem.startswith(name) or path.parent.name == name), "all")
            judged.append((qrels.side_of(side), _judgements(path)))
    if not judged:
        raise InputError(f"{folder} has no judgements: no files in default/ or qrels/")
    return collected(
        folder.resolve().name, items(folder, "corpus"), items(folder, "queries"), qrels.joined(judged), folder
    )


def _files(folder: Path, part: str) -> list[Path]:
    inside = [each for each in (folder / part).rglob("*") if each.suffix in (".parquet", ".arrow")]
    return sorted(inside) or sorted(folder.glob(f"{part}*.parquet"))


def items(folder: Path, part: str) -> Items:
    """The documents ("corpus") or queries of such a folder."""
    ids: list[str] = []
    texts: list[str] = []
    for path in _files(folder, part):
        for row in read_table(path).to_pylist():
            key = row.get("_id", row.get("id"))
            if key is None or "text" not in row:
                raise InputError(f"{path}: expected the columns _id and text, found {', '.join(row)}")
            ids.append(str(key))
            texts.append(f"{row.get('title') or ''} {row['text'] or ''}".strip())
    return Items(ids, texts)


def _judgements(path: Path) -> Qrels:
    judged: Qrels = {}
    for row in read_table(path).to_pylist():
        try:
            query, document, grade = row["query-id"], row["corpus-id"], row["score"]
        except KeyError:
            raise InputError(
                f"{path}: expected the columns query-id, corpus-id and score, found {', '.join(row)}"
            ) from None
        judged.setdefault(str(query), {})[str(document)] = float(grade)
    return judged
