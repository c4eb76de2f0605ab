"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl``, and ``qrels/{train,dev,test}.tsv`` or one ``qrels.tsv``.

Lines of ``corpus.jsonl`` may have an ``image`` (a file, relative to the folder) in place of a text.
"""

from __future__ import annotations

from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.text.collection import Collection, Items, make_collection
from nudgevec.text.readers import qrels
from nudgevec.text.readers.files import json_lines


def read(folder: Path) -> Collection:
    """Read a BEIR folder. The text of a document is its title followed by its text."""
    documents, queries = read_items(folder / "corpus.jsonl"), read_items(folder / "queries.jsonl")
    files = sorted(folder.glob("qrels.*"))
    if (folder / "qrels").is_dir():
        by_split = qrels.read_folder(folder / "qrels")
    elif files and files[0].is_file():
        by_split = {"all": qrels.read_file(files[0])}
    else:
        raise InputError(f"{folder} has no labels: expected a folder qrels/ or a file qrels.tsv")
    return make_collection(folder.resolve().name, documents, queries, by_split, folder)


def read_items(path: Path) -> Items:
    """Read the documents or queries of a JSON Lines file."""
    ids, texts, images = [], [], []
    for number, fields in json_lines(path):
        if "_id" not in fields:
            raise InputError(f'{path}, line {number}: missing field "_id"')
        ids.append(str(fields["_id"]))
        texts.append(f"{fields.get('title') or ''} {fields.get('text') or ''}".strip())
        if fields.get("image"):
            images.append(path.parent / str(fields["image"]))
    if images and len(images) != len(ids):
        raise InputError(f"{path}: {len(images)} of {len(ids)} lines have an image; expected all of them, or none")
    return Items(ids, texts, images=images or None)
