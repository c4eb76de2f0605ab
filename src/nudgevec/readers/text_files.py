"""A folder of text files: each is a document, named by its path inside the folder."""

from __future__ import annotations

from pathlib import Path

from nudgevec.collection import Items
from nudgevec.errors import InputError

_KINDS = (".txt", ".md", ".rst", ".html")


def items(folder: Path) -> Items:
    """All text files below a folder."""
    files = sorted(each for each in folder.rglob("*") if each.suffix.lower() in _KINDS and each.is_file())
    if not files:
        raise InputError(f"{folder} holds no documents: neither a layout that nudgevec knows nor text files")
    texts = [each.read_text(encoding="utf-8", errors="replace") for each in files]
    return Items([each.relative_to(folder).as_posix() for each in files], texts)
