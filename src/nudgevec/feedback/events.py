"""Files of events, and documents labelled by a label log as a collection."""

from __future__ import annotations

import csv
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError, LabelError, NudgeWarning
from nudgevec.feedback.log import Event, LabelLog
from nudgevec.stores import Address, is_store
from nudgevec.text.collection import Collection, Items, make_collection
from nudgevec.text.readers import beir, qrels, read_documents
from nudgevec.text.readers.files import json_lines, numbered_lines

# Names of the columns of an event file.
_COLUMNS = {
    "query": ("query",),
    "document": ("document", "document_id", "doc_id", "doc"),
    "signal": ("signal",),
    "value": ("value", "grade"),
    "propensity": ("propensity",),
    "time": ("time", "timestamp", "ts"),
    "source": ("source",),
}
# Larger than any date in seconds, smaller than today's in milliseconds.
_MAX_SECONDS = 1e11


def read_labelled_documents(data: str, log: Path, **options: Any) -> Collection:
    """Read documents, with queries and labels from a label log or a file of events.

    Parameters
    ----------
    data : str
        Whatever ``nudgevec.text.readers.read_documents`` reads.
    log : Path
        A label log, or a file of events (.jsonl or .csv).
    **options
        Options of ``LabelLog.labels``.
    """
    if not log.is_file():
        raise InputError(f"no label log at {log}")
    with _open_log(log) as opened:
        labels, spellings = opened.labels(**options), opened.spellings()
    ids = list(dict.fromkeys(query for split_qrels in labels.values() for query in split_qrels))
    if not ids:
        raise LabelError(f"{log} contains no labels")
    queries = Items(ids, [spellings[query] for query in ids])
    name, source = _name_and_source(data)
    collection = make_collection(name, read_documents(data), queries, labels, source)
    return replace(collection, label_log={"labels": str(log), **options})


def read_events(
    path: Path,
    check: Callable[[Event], None],
    *,
    source: str | None = None,
    signal: str = "judgement",
    queries: Path | None = None,
) -> Iterator[Event]:
    """Read the events of a file.

    Equal lines without a time are told apart by their count, so that two equal clicks count twice while a file that is
    imported twice changes nothing.

    Parameters
    ----------
    path : Path
        JSON Lines or CSV with the columns query and document, and optionally signal, value, propensity, time and
        source; or a label file (qrels), whose query ids are looked up in ``queries``.
    check : callable
        Raises LabelError for an invalid event.
    source : str, optional
        Source of all events, in place of their own.
    signal : str
        Signal of lines that have none.
    queries : Path, optional
        A ``queries.jsonl`` with the texts of the queries of a label file.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    if path.suffix in qrels.SUFFIXES:
        yield from _read_qrels(path, source or path.name, queries)
        return
    counts: Counter[Event] = Counter()
    unknown: set[str] = set()
    for number, fields in json_lines(path) if path.suffix == ".jsonl" else _csv_rows(path):
        try:
            event = _make_event(fields, source, signal, unknown)
            if event.time == 0.0:
                counts[event] += 1
                event = replace(event, time=(counts[event] - 1) * 1e-6)
            check(event)
        except (LabelError, ValueError, TypeError, OverflowError) as error:
            raise LabelError(f"{path}, line {number}: {error}") from None
        yield event
    if unknown:
        message = f"{path}: unknown columns are ignored: {', '.join(sorted(unknown))}; known are {', '.join(_COLUMNS)}"
        warnings.warn(message, NudgeWarning, stacklevel=2)


@contextmanager
def _open_log(path: Path) -> Iterator[LabelLog]:
    """Open a label log; a file of events is imported into a temporary one."""
    if path.suffix not in (".jsonl", ".csv"):
        with LabelLog(path, read_only=True) as log:
            yield log
        return
    with tempfile.TemporaryDirectory() as folder, LabelLog(Path(folder) / "labels.sqlite") as log:
        log.extend(read_events(path, log.check))
        yield log


def _name_and_source(data: str) -> tuple[str, Path | str]:
    """Return the name of a collection, and where it is without a password."""
    if not is_store(data):
        path = Path(data)
        return path.resolve().name, path
    address = Address.parse(data)
    return address.collection or Path(address.path).stem, str(address)


def _make_event(fields: dict[str, Any], source: str | None, signal: str, unknown: set[str]) -> Event:
    """Make the event of a line; column names that are not known are added to ``unknown``."""
    values: dict[str, Any] = {}
    for name, columns in _COLUMNS.items():
        present = [fields[column] for column in columns if fields.get(column) not in (None, "")]
        values[name] = present[0] if present else None
    unknown |= set(fields) - {column for columns in _COLUMNS.values() for column in columns}
    for name in ("query", "document"):
        if values[name] is None:
            raise ValueError(f"missing column {name!r} in {', '.join(map(str, fields))}")
    return Event(
        query=str(values["query"]),
        document=str(values["document"]),
        signal=str(values["signal"] or signal),
        value=1.0 if values["value"] is None else float(values["value"]),
        propensity=1.0 if values["propensity"] is None else float(values["propensity"]),
        time=_seconds(values["time"]),
        source=source or str(values["source"] or ""),
    )


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader((line for _, line in numbered_lines(file, path)), strict=True)
        try:
            for fields in rows:
                if None in fields or None in fields.values():
                    raise LabelError(f"{path}, line {rows.line_num}: expected {len(rows.fieldnames or ())} columns")
                yield rows.line_num, fields
        except csv.Error as error:
            raise LabelError(f"{path}, line {rows.line_num}: {error}") from None


def _read_qrels(path: Path, source: str, queries: Path | None) -> Iterator[Event]:
    if queries is None:
        raise InputError(f"{path} refers to queries by id: pass their texts with --queries queries.jsonl")
    items = beir.read_items(queries)
    texts = dict(zip(items.ids, items.texts or (), strict=True))
    labels = qrels.read_file(path)
    unknown = [query for query in labels if query not in texts]
    if unknown:
        message = f"{path}: queries that are not in {queries} are ignored: {len(unknown)}, for example {unknown[0]!r}"
        warnings.warn(message, NudgeWarning, stacklevel=2)
    for query, grades in labels.items():
        if query in texts:
            for document, grade in grades.items():
                yield Event(texts[query], document, value=grade, source=source)


def _seconds(time: Any) -> float:
    """Convert a number or an ISO date (in UTC unless it has a time zone) to seconds since 1970; None is 0."""
    if time is None:
        return 0.0
    try:
        seconds = float(time)
    except ValueError:
        moment = datetime.fromisoformat(str(time))
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if seconds > _MAX_SECONDS:
        raise ValueError(f"time {time} is too large: times are in seconds since 1970, not in milliseconds")
    return seconds
