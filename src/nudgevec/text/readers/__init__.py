"""Readers of document collections. One file per layout; this module recognises the layout."""

from __future__ import annotations

import os
from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.stores import Address, Store, is_store, open_store
from nudgevec.text.collection import Collection, Items

_LAYOUTS = (
    "a BEIR folder (corpus.jsonl, queries.jsonl, qrels), a folder of vectors (documents.*, queries.*, qrels.*), "
    "a Hugging Face dataset folder (corpus/, queries/, default/), or a LlamaIndex EmbeddingQAFinetuneDataset (.json)"
)


def read(path: str | os.PathLike[str]) -> Collection:
    """Read documents, queries and labels.

    Parameters
    ----------
    path : str or path
        A file or folder in a known layout: BEIR, vectors, Hugging Face or LlamaIndex.

    Returns
    -------
    Collection
        Labels are under "train", "validation" and "test" where file names say so, and under "all" otherwise.

    Raises
    ------
    InputError
        If nothing is there, the layout is unknown, or a file is malformed.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> data = {"queries": {"q": "which one?"}, "corpus": {"d": "this one"}, "relevant_docs": {"q": ["d"]}}
    >>> path = Path(tempfile.mkdtemp()) / "pairs.json"
    >>> _ = path.write_text(json.dumps(data))
    >>> collection = read(path)
    >>> collection.documents.ids, collection.qrels
    (['d'], {'all': {'q': {'d': 1.0}}})
    """
    if isinstance(path, str) and is_store(path):
        raise InputError(f"{Address.parse(path)} is a store and has no labels: pass a label log with --labels")
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_file():
        if path.suffix == ".json":
            from nudgevec.text.readers import llama_index

            return llama_index.read(path)
        raise InputError(f"{path} is a single file; expected {_LAYOUTS}")
    if (path / "corpus.jsonl").is_file():
        from nudgevec.text.readers import beir

        return beir.read(path)
    if _has_tables(path, "corpus") and _has_tables(path, "queries"):
        from nudgevec.text.readers import hugging_face

        return hugging_face.read(path)
    if list(path.glob("documents.*")):
        from nudgevec.text.readers import vectors

        return vectors.read(path)
    contents = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
    raise InputError(f"{path} contains {contents}; expected {_LAYOUTS}; a folder of texts needs --labels")


def read_documents(path: str | os.PathLike[str] | Store) -> Items:
    """Read documents without queries and labels.

    Parameters
    ----------
    path : str, path or Store
        A file or folder in a layout that ``read`` knows, where only documents are needed; a folder of text files
        (.txt, .md, .rst, .html); or a vector store or its URL. Vectors of a store are those before the applied patch.

    Returns
    -------
    Items

    Raises
    ------
    InputError
        If nothing is there, or a file is malformed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "reset.txt").write_text("How to reset a password")
    >>> documents = read_documents(folder)
    >>> documents.ids, documents.texts
    (['reset.txt'], ['How to reset a password'])
    """
    if isinstance(path, Store) or (isinstance(path, str) and is_store(path)):
        store = path if isinstance(path, Store) else open_store(path)
        return Items([str(key) for key in store.ids], vectors=store.original(), store=store)
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_file() and path.suffix == ".json":
        from nudgevec.text.readers import llama_index

        return llama_index.read(path).documents
    if (path / "corpus.jsonl").is_file():
        from nudgevec.text.readers import beir

        return beir.read_items(path / "corpus.jsonl")
    if _has_tables(path, "corpus"):
        from nudgevec.text.readers import hugging_face

        return hugging_face.read_items(path, "corpus")
    if path.is_dir() and list(path.glob("documents.*")):
        from nudgevec.text.readers import vectors

        return vectors.read_items(path, "documents")
    from nudgevec.text.readers import text_files

    return text_files.read_items(path)


def _has_tables(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or bool(list(folder.glob(f"{name}*.parquet")))
