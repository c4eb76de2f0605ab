"""A folder of text files: each is a document, named by its path inside the folder."""

from __future__ import annotations

import warnings
from html.parser import HTMLParser
from pathlib import Path

from nudgevec.errors import InputError, NudgeWarning
from nudgevec.text.collection import Items

_KINDS = (".txt", ".md", ".rst", ".html")


def items(folder: Path) -> Items:
    """All text files below a folder."""
    files = sorted(each for each in folder.rglob("*") if each.suffix.lower() in _KINDS and each.is_file())
    if not files:
        raise InputError(f"{folder} holds no documents: neither a layout that nudgevec knows nor text files")
    texts = [_text(each) for each in files]
    return Items([each.relative_to(folder).as_posix() for each in files], texts)


def _text(path: Path) -> str:
    text = path.read_bytes().decode(errors="replace")
    if "\ufffd" in text:
        warnings.warn(f"{path} is not all UTF-8; what cannot be read is left out", NudgeWarning, stacklevel=3)
        text = text.replace("\ufffd", " ")
    if path.suffix.lower() != ".html":
        return text
    page = _Page()
    page.feed(text)
    return " ".join(" ".join(page.words).split())


class _Page(HTMLParser):
    """The words of a page, without its tags, scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style") and self.hidden > 0

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)
