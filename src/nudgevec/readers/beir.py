"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/{train,dev,test}.tsv`` or one ``qrels.tsv``.

Lines of ``corpus.jsonl`` may name an ``image`` (a file, relative to the folder) instead of having a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nudgevec.collection import Collection, Items, collected
from nudgevec.errors import InputError


def read(folder: Path) -> Collection:
    """A folder in BEIR's layout. A document's text is its title and its text."""
    documents, queries = items(folder / "corpus.jsonl"), items(folder / "queries.jsonl")
    from nudgevec.readers import qrels

    single = sorted(folder.glob("qrels.*"))
    if (folder / "qrels").is_dir():
        sides = qrels.read_folder(folder / "qrels")
    elif single and single[0].is_file():
        sides = {"all": qrels.read_file(single[0])}
    else:
        raise InputError(f"{folder} has no judgements: neither a folder qrels/ nor a file qrels.tsv")
    return collected(folder.resolve().name, documents, queries, sides, folder)


def items(path: Path) -> Items:
    """The documents or queries of a JSON Lines file."""
    ids, texts, images = [], [], []
    for number, line in json_lines(path):
        if "_id" not in line:
            raise InputError(f'{path}, line {number}: there is no "_id"')
        ids.append(str(line["_id"]))
        texts.append(f"{line.get('title') or ''} {line.get('text') or ''}".strip())
        if line.get("image"):
            images.append(path.parent / str(line["image"]))
    if images and len(images) != len(ids):
        raise InputError(f"{path}: {len(images)} of {len(ids)} lines name an image; all of them must, or none")
    return Items(ids, texts, images=images or None)


def numbered(lines: Iterable[str], path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a clear error where they are not UTF-8."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError:
        raise InputError(f"{path}: what follows line {number} is not UTF-8; convert the file first") from None


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file, with their line numbers."""
    if not path.is_file():
        raise InputError(f"{path.parent} has no {path.name}")
    with path.open(encoding="utf-8-sig") as lines:
        for number, text in numbered(lines, path):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number}: not JSON: {error.msg}") from None
            if not isinstance(line, dict):
                raise InputError(f"{path}, line {number}: expected an object, not {text.strip()[:40]!r}")
            yield number, line
