"""Folders of text files: every file is a document whose id is its path in the folder."""

from __future__ import annotations

import warnings
from html.parser import HTMLParser
from pathlib import Path

from nudgevec.errors import InputError, NudgeWarning
from nudgevec.text.collection import Items

_SUFFIXES = (".txt", ".md", ".rst", ".html")


def read_items(folder: Path) -> Items:
    """Read all text files of a folder and its subfolders, without links to files elsewhere."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    home = folder.resolve()
    files = [path for path in found if path.resolve().is_relative_to(home)]
    if len(files) < len(found):
        outside = next(path for path in found if not path.resolve().is_relative_to(home))
        message = f"{folder}: links to files outside the folder are not followed: {len(found) - len(files)}"
        warnings.warn(f"{message}, for example {outside.relative_to(folder)}", NudgeWarning, stacklevel=3)
    if not files:
        raise InputError(f"{folder} has no documents: neither a known layout nor text files ({', '.join(_SUFFIXES)})")
    return Items([path.relative_to(folder).as_posix() for path in files], [_read_text(path) for path in files])


def _read_text(path: Path) -> str:
    text = path.read_bytes().decode(errors="replace")
    if "\ufffd" in text:
        warnings.warn(f"{path} is not valid UTF-8; invalid bytes are ignored", NudgeWarning, stacklevel=3)
        text = text.replace("\ufffd", " ")
    if path.suffix.lower() != ".html":
        return text
    parser = _TextParser()
    parser.feed(text)
    return " ".join(" ".join(parser.chunks).split())


class _TextParser(HTMLParser):
    """Collect the text of an HTML page without tags, scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[str] = []
        self._hidden_depth = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden_depth += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden_depth -= tag in ("script", "style") and self._hidden_depth > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden_depth:
            self.chunks.append(data)
