"""A label log over documents from elsewhere, as a collection; and files of events to put into a log."""

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
from nudgevec.text import readers
from nudgevec.text.collection import Collection, Items, collected
from nudgevec.text.readers import beir, qrels
from nudgevec.text.readers.files import json_lines, numbered


def read(data: str, log: Path, **folding: Any) -> Collection:
    """The documents of ``data`` with the labels of a log; ``folding`` goes to ``LabelLog.labels``."""
    if not log.is_file():
        raise InputError(f"there is no label log at {log}")
    with _opened(log) as found:
        sides, spellings = found.labels(**folding), found.spellings()
    queries = list(dict.fromkeys(query for part in sides.values() for query in part))
    if not queries:
        raise LabelError(f"{log} holds no labels")
    asked = Items(queries, [spellings[query] for query in queries])
    where = Address.parse(data) if is_store(data) else Path(data)
    name = where.collection or Path(where.path).stem if isinstance(where, Address) else where.resolve().name
    kept = where if isinstance(where, Path) else str(where)
    made = collected(name, readers.documents(data), asked, sides, kept)
    return replace(made, labels={"labels": str(log), **folding})


@contextmanager
def _opened(path: Path) -> Iterator[LabelLog]:
    """A label log; a file of events is one for the moment."""
    if path.suffix not in (".jsonl", ".csv"):
        with LabelLog(path) as log:
            yield log
        return
    with tempfile.TemporaryDirectory() as folder, LabelLog(Path(folder) / "labels.sqlite") as log:
        log.extend(events(path, log.check))
        yield log


_FIELDS = {
    "query": ("query",),
    "document": ("document", "document_id", "doc_id", "doc"),
    "signal": ("signal",),
    "value": ("value", "grade"),
    "propensity": ("propensity",),
    "time": ("time", "timestamp", "ts"),
    "source": ("source",),
}
# Later than any date in seconds: these are milliseconds.
_MILLISECONDS = 1e11


def events(
    path: Path,
    check: Callable[[Event], None],
    *,
    source: str | None = None,
    signal: str = "judgement",
    queries: Path | None = None,
) -> Iterator[Event]:
    """The events of a file: JSON Lines or CSV with the columns query, document and, if there is more to say, signal,
    value, propensity, time, source; or qrels, whose query ids are looked up in a ``queries.jsonl``.

    ``signal`` is for lines without one, ``source`` for all lines. Lines without a time that are the same are told
    apart by their number, so that importing a file twice changes nothing and a click that came twice counts twice.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix in (".tsv", ".txt", ".qrels", ".trec"):
        yield from _judgements(path, source or path.name, queries)
        return
    seen: Counter[Event] = Counter()
    unknown: set[str] = set()
    for number, fields in json_lines(path) if path.suffix == ".jsonl" else _csv(path):
        try:
            event = _event(fields, source, signal, unknown)
            if event.time == 0.0:
                seen[event] += 1
                event = replace(event, time=(seen[event] - 1) * 1e-6)
            check(event)
        except (LabelError, ValueError) as error:
            raise LabelError(f"{path}, line {number}: {error}") from None
        yield event
    if unknown:
        message = f"{path}: not understood and left out: {', '.join(sorted(unknown))}; known are {', '.join(_FIELDS)}"
        warnings.warn(message, NudgeWarning, stacklevel=2)


def _event(fields: dict[str, Any], source: str | None, signal: str, unknown: set[str]) -> Event:
    known: dict[str, Any] = {}
    for name, names in _FIELDS.items():
        values = [fields[each] for each in names if fields.get(each) not in (None, "")]
        known[name] = values[0] if values else None
    unknown |= set(fields) - {each for names in _FIELDS.values() for each in names}
    for name in ("query", "document"):
        if known[name] is None:
            raise ValueError(f"there is no {name!r} in {', '.join(map(str, fields))}")
    return Event(
        query=str(known["query"]),
        document=str(known["document"]),
        signal=str(known["signal"] or signal),
        value=1.0 if known["value"] is None else float(known["value"]),
        propensity=1.0 if known["propensity"] is None else float(known["propensity"]),
        time=_seconds(known["time"]),
        source=source or str(known["source"] or ""),
    )


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader((line for _, line in numbered(file, path)), strict=True)
        try:
            for fields in lines:
                if None in fields or None in fields.values():
                    raise LabelError(f"{path}, line {lines.line_num}: expected {len(lines.fieldnames or ())} columns")
                yield lines.line_num, fields
        except csv.Error as error:
            raise LabelError(f"{path}, line {lines.line_num}: {error}") from None


def _judgements(path: Path, source: str, queries: Path | None) -> Iterator[Event]:
    if queries is None:
        raise InputError(f"{path} names queries by id: pass --queries queries.jsonl, so that their texts are known")
    found = beir.items(queries)
    texts = dict(zip(found.ids, found.texts or (), strict=True))
    judged = qrels.read_file(path)
    unknown = {query: None for query in judged if query not in texts}
    if unknown:
        message = (
            f"{path}: {len(unknown)} queries are not in {queries} and are left out, for example {next(iter(unknown))!r}"
        )
        warnings.warn(message, NudgeWarning, stacklevel=2)
    for query, grades in judged.items():
        if query in unknown:
            continue
        for document, grade in grades.items():
            yield Event(texts[query], document, value=grade, source=source)


def _seconds(time: Any) -> float:
    """Seconds since 1970, from a number or an ISO date (in UTC, if it does not say otherwise)."""
    if time is None:
        return 0.0
    try:
        seconds = float(time)
    except ValueError:
        moment = datetime.fromisoformat(str(time))
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if seconds > _MILLISECONDS:
        raise ValueError(f"the time {time} is too late: times are in seconds since 1970, not in milliseconds")
    return seconds
