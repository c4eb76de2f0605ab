"""Label files: BEIR's tab-separated files with a header, and TREC's four columns without one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from math import isfinite
from pathlib import Path

from nudgevec.errors import LabelError, NudgeWarning
from nudgevec.text.collection import Qrels
from nudgevec.text.readers.files import display_name, numbered_lines
from nudgevec.text.splits import TEST, TRAIN, VALIDATION

SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")
_SPLIT_OF_NAME = {
    "train": TRAIN,
    "dev": VALIDATION,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
}


def read_folder(folder: Path) -> dict[str, Qrels]:
    """Read the label files of a folder, by split."""
    files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not files:
        raise LabelError(f"{folder}: no label files found (.tsv, .txt)")
    return merge([(split_of_file(path.stem), read_file(path)) for path in files])


def split_of_file(name: str) -> str:
    """Return the split that a file or folder name stands for; "all" if it stands for none."""
    return _SPLIT_OF_NAME.get(name.lower(), "all")


def merge(labels: list[tuple[str, Qrels]]) -> dict[str, Qrels]:
    """Merge the labels of several files by split; later grades replace earlier ones."""
    merged: dict[str, Qrels] = {}
    for split, qrels in labels:
        target = merged.setdefault(split, {})
        for query, grades in qrels.items():
            target.setdefault(query, {}).update(grades)
    return merged


def read_file(path: Path) -> Qrels:
    """Read a label file in either format."""
    with path.open(encoding="utf-8-sig") as file:
        return parse(numbered_lines(file, path), path)


def parse(lines: Iterable[tuple[int, str]], path: Path) -> Qrels:
    """Parse the numbered lines of a label file."""
    qrels: Qrels = {}
    for number, line in lines:
        fields = line.rstrip("\n").split("\t") if "\t" in line else line.split()
        if not any(fields) or (number == 1 and not is_grade(fields[-1])):
            continue
        try:
            query, document, text = (fields[0], fields[2], fields[3]) if len(fields) == 4 else fields
            grade = float(text)
            if not isfinite(grade):
                raise ValueError
        except ValueError:
            raise LabelError(
                f"{display_name(path)}, line {number}: expected query, document and grade (or TREC's four columns), "
                f"not {line.strip()[:200]!r}"
            ) from None
        grades, document = qrels.setdefault(query.strip(), {}), document.strip()
        if grades.get(document, grade) != grade:
            message = (
                f"{display_name(path)}, line {number}: another grade of document {document} for query {query}; "
                "the last one is used"
            )
            warnings.warn(message, NudgeWarning, stacklevel=2)
        grades[document] = grade
    return qrels


def is_grade(text: str) -> bool:
    """Whether a text is a number, and not the heading of a column."""
    try:
        float(text)
    except ValueError:
        return False
    return True
