"""Documents that are labelled by a label log or a file of events, as a collection."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError, LabelError
from nudgevec.feedback.event_files import read_events
from nudgevec.feedback.log import LabelLog
from nudgevec.stores import Address, Store, is_store
from nudgevec.text.collection import Collection, Items, make_collection
from nudgevec.text.readers import read_documents

_SQLITE = b"SQLite format 3\0"


def read_labelled_documents(data: str | Store, log: Path | LabelLog, **options: Any) -> Collection:
    """Read documents, with queries and labels from a label log or a file of events.

    Parameters
    ----------
    data : str or Store
        Whatever ``nudgevec.text.readers.read_documents`` reads.
    log : Path or LabelLog
        A label log, or a file of events; see ``read_events``.
    **options
        Options of ``LabelLog.labels``.
    """
    with open_labels(log) as opened:
        labels, spellings = opened.labels(**options), opened.spellings()
    ids = list(dict.fromkeys(query for split_qrels in labels.values() for query in split_qrels))
    path = log.path if isinstance(log, LabelLog) else log
    if not ids:
        raise LabelError(f"{path} contains no labels")
    queries = Items(ids, [spellings[query] for query in ids])
    name, source = _name_and_source(data)
    collection = make_collection(name, read_documents(data), queries, labels, source)
    return replace(collection, label_log={"labels": str(path), **options})


@contextmanager
def open_labels(path: Path | LabelLog) -> Iterator[LabelLog]:
    """Open a label log that exists; a file of events is imported into a temporary one, and an open log stays open."""
    if isinstance(path, LabelLog):
        yield path
        return
    if not path.is_file():
        raise InputError(f"no label log at {path}")
    with path.open("rb") as file:
        is_log = file.read(len(_SQLITE)) == _SQLITE
    if is_log:
        with LabelLog(path, read_only=True) as log:
            yield log
        return
    with tempfile.TemporaryDirectory() as folder, LabelLog(Path(folder) / "labels.sqlite") as log:
        log.extend(read_events(path, log.check))
        yield log


def _name_and_source(data: str | Store) -> tuple[str, Path | str]:
    """Return the name of a collection, and where it is without a password."""
    if isinstance(data, str) and not is_store(data):
        path = Path(data)
        return path.resolve().name, path
    address = data.address if isinstance(data, Store) else Address.parse(data)
    return address.collection or Path(address.path).stem, str(address)
