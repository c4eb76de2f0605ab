"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/{train,dev,test}.tsv`` or one ``qrels.tsv``.

Lines of ``corpus.jsonl`` may name an ``image`` (a file, relative to the folder) instead of having a text.
"""

from __future__ import annotations

from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, collected
from nudgevec.text.readers import qrels
from nudgevec.text.readers.files import json_lines


def read(folder: Path) -> Collection:
    """A folder in BEIR's layout. A document's text is its title and its text."""
    documents, queries = items(folder / "corpus.jsonl"), items(folder / "queries.jsonl")
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
