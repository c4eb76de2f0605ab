"""Judgement files: BEIR's tab-separated files with a header, and TREC's four columns without one."""

from __future__ import annotations

import warnings
from math import isfinite
from pathlib import Path

from nudgevec.errors import LabelError, NudgeWarning
from nudgevec.text.collection import Qrels
from nudgevec.text.readers.files import numbered
from nudgevec.text.splits import TEST, TRAIN, VALIDATION

_SIDE_OF = {
    "train": TRAIN,
    "dev": VALIDATION,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
}


def read_folder(folder: Path) -> dict[str, Qrels]:
    """The files of a folder by side; files that are not named like a side are for all."""
    files = sorted(each for each in folder.iterdir() if each.suffix in (".tsv", ".txt", ".qrels", ".trec"))
    if not files:
        raise LabelError(f"{folder}: there are no judgements (.tsv, .txt)")
    return joined([(side_of(each.stem), read_file(each)) for each in files])


def side_of(name: str) -> str:
    """The side a file or folder of that name is for."""
    return _SIDE_OF.get(name.lower(), "all")


def joined(parts: list[tuple[str, Qrels]]) -> dict[str, Qrels]:
    """Judgements by side, from several files each."""
    sides: dict[str, Qrels] = {}
    for side, qrels in parts:
        into = sides.setdefault(side, {})
        for query, grades in qrels.items():
            into.setdefault(query, {}).update(grades)
    return sides


def read_file(path: Path) -> Qrels:
    """One file in either format."""
    qrels: Qrels = {}
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in numbered(lines, path):
            fields = line.rstrip("\n").split("\t") if "\t" in line else line.split()
            if not any(fields) or (number == 1 and _is_header(fields)):
                continue
            try:
                query, document, text = (fields[0], fields[2], fields[3]) if len(fields) == 4 else fields
                grade = float(text)
                if not isfinite(grade):
                    raise ValueError
                grades, document = qrels.setdefault(query.strip(), {}), document.strip()
                if grades.get(document, grade) != grade:
                    message = f"{path}, line {number}: {query} judges {document} once more, and this one counts"
                    warnings.warn(message, NudgeWarning, stacklevel=2)
                grades[document] = grade
            except ValueError:
                raise LabelError(
                    f"{path}, line {number}: expected query, document and grade (or TREC's four columns), "
                    f"not {line.strip()!r}"
                ) from None
    return qrels


def _is_header(fields: list[str]) -> bool:
    try:
        float(fields[-1])
    except ValueError:
        return True
    return False
