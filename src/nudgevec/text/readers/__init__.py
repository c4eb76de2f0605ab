"""Readers: files and folders as a ``Collection``. One file per layout; this one tells which layout it is."""

from __future__ import annotations

import os
from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.stores import Address, is_store, open_store
from nudgevec.text.collection import Collection, Items


def read(path: str | os.PathLike[str]) -> Collection:
    """The collection at this path, in any of the layouts nudgevec knows."""
    if isinstance(path, str) and is_store(path):
        raise InputError(f"{Address.parse(path)} is a store and has no labels: say with --labels where they are")
    where = Path(path)
    if not where.exists():
        raise InputError(f"there is nothing at {where}")
    if where.is_file():
        if where.suffix == ".json":
            from nudgevec.text.readers import llama_index

            return llama_index.read(where)
        raise InputError(f"{where} is one file; nudgevec takes {_LAYOUTS}")
    if (where / "corpus.jsonl").is_file():
        from nudgevec.text.readers import beir

        return beir.read(where)
    if _folder(where, "corpus") and _folder(where, "queries"):
        from nudgevec.text.readers import hugging_face

        return hugging_face.read(where)
    if list(where.glob("documents.*")):
        from nudgevec.text.readers import vectors

        return vectors.read(where)
    found = ", ".join(sorted(each.name for each in where.iterdir())[:8]) or "nothing"
    raise InputError(f"{where} holds {found}; nudgevec takes {_LAYOUTS}; folders of texts need --labels")


def documents(path: str | os.PathLike[str]) -> Items:
    """The documents alone, in the same layouts, as a folder of text files, or in a store; labels are elsewhere."""
    if isinstance(path, str) and is_store(path):
        store = open_store(path)
        return Items([str(key) for key in store.ids], vectors=store.original(), compared_by=store.similarity)
    where = Path(path)
    if not where.exists():
        raise InputError(f"there is nothing at {where}")
    if where.is_file() and where.suffix == ".json":
        from nudgevec.text.readers import llama_index

        return llama_index.read(where).documents
    if (where / "corpus.jsonl").is_file():
        from nudgevec.text.readers import beir

        return beir.items(where / "corpus.jsonl")
    if _folder(where, "corpus"):
        from nudgevec.text.readers import hugging_face

        return hugging_face.items(where, "corpus")
    if where.is_dir() and list(where.glob("documents.*")):
        from nudgevec.text.readers import vectors

        return vectors.items(where, "documents")
    from nudgevec.text.readers import text_files

    return text_files.items(where)


_LAYOUTS = (
    "a BEIR folder (corpus.jsonl, queries.jsonl, qrels), a folder of vectors (documents.*, queries.*, qrels.*), "
    "a Hugging Face data set folder (corpus/, queries/, default/), or a LlamaIndex EmbeddingQAFinetuneDataset (.json)"
)


def _folder(where: Path, name: str) -> bool:
    return (where / name).is_dir() or bool(list(where.glob(f"{name}*.parquet")))
