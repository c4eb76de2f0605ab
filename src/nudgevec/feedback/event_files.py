"""Files of events: JSON Lines, JSON arrays and tables with any separator, recognised by their content."""

from __future__ import annotations

import csv
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError, LabelError, NudgeWarning, OptionError
from nudgevec.feedback.event import Event
from nudgevec.text.readers import beir, qrels
from nudgevec.text.readers.files import STDIN, display_name, json_objects, numbered_lines, open_text, parse_json

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
_SEPARATORS = ",;\t|"
# Larger than any date in seconds, smaller than today's in milliseconds.
_MAX_SECONDS = 1e11

NumberedLines = Iterable[tuple[int, str]]


def read_events(
    path: Path,
    check: Callable[[Event], None],
    *,
    source: str | None = None,
    signal: str = "judgement",
    queries: Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Event]:
    """Read the events of a file.

    Equal lines are distinguished by their count, which is added to their time in microseconds, so that two equal clicks
    count twice while a file that is imported twice changes nothing.

    Parameters
    ----------
    path : Path
        JSON Lines, a JSON array or a table (with commas, semicolons, tabs or bars), compressed by gzip or not, with the
        columns query and document, and optionally signal, value, propensity, time and source; or a label file (qrels),
        whose query ids are looked up in ``queries``. The path ``-`` is standard input.
    check : callable
        Raises LabelError for an invalid event.
    source : str, optional
        Source of all events, in place of their own.
    signal : str
        Signal of lines that have none.
    queries : Path, optional
        A ``queries.jsonl`` with the texts of the queries of a label file.
    columns : dict of str to str, optional
        Columns of the file by the names above, where they are called otherwise.
    """
    if path != STDIN and not path.is_file():
        raise InputError(f"{path} is not a file")
    name, n_events = display_name(path), 0
    with open_text(path) as file:
        lines = ((number, line) for number, line in numbered_lines(file, path) if number > 1 or line.strip())
        number, first = next(lines, (0, ""))
        everything = chain([(number, first)] if first else [], lines)
        if queries is not None or _is_label_file(first):
            events = _read_qrels(everything, path, source or path.name, queries)
        else:
            events = _events_of_rows(_rows(first, everything, path), name, _Columns(columns or {}), source, signal)
        counts: Counter[Event] = Counter()
        for where, event in events:
            counts[event] += 1
            event = replace(event, time=event.time + (counts[event] - 1) * 1e-6)
            try:
                check(event)
            except LabelError as error:
                raise LabelError(f"{where}: {error}") from None
            n_events += 1
            yield event
    if n_events == 0:
        raise LabelError(f"{name} has no events")


class _Columns:
    """The columns of a file: which of them hold the parts of an event, and which were seen."""

    def __init__(self, names: Mapping[str, str]) -> None:
        unknown = [name for name in names if name not in _COLUMNS]
        if unknown:
            raise OptionError(f"unknown column {unknown[0]!r}: events have {', '.join(_COLUMNS)}")
        self.names = {name: (_folded(names[name]),) if name in names else known for name, known in _COLUMNS.items()}
        self.mapped = {_folded(column): f"{name}={column}" for name, column in names.items()}
        self.seen: set[str] = set()

    def values(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of an event in a line, None for those that are missing or empty."""
        by_name = {_folded(column): value for column, value in fields.items()}
        self.seen |= set(by_name)
        values: dict[str, Any] = {}
        for name, columns in self.names.items():
            present = [by_name[column] for column in columns if by_name.get(column) not in (None, "")]
            values[name] = present[0] if present else None
        for name in ("query", "document"):
            if values[name] is None:
                empty = [column for column in self.names[name] if column in by_name]
                if empty:
                    raise ValueError(f"column {empty[0]!r} is empty")
                found = ", ".join(map(str, fields))
                raise ValueError(f"missing column {name!r} in {found}; --map {name}=COLUMN names another one")
            if isinstance(values[name], bool) or not isinstance(values[name], (str, int, float)):
                raise ValueError(f"the {name} is {values[name]!r:.40}, not a text or a number")
        return values

    def check(self, name: str) -> None:
        """Raise if a mapped column does not exist, and warn about columns that are not read."""
        missing = [text for column, text in self.mapped.items() if column not in self.seen]
        if self.seen and missing:
            raise LabelError(f"{name}: no column for {missing[0]} (--map); it has {', '.join(sorted(self.seen))}")
        unknown = self.seen - {column for columns in self.names.values() for column in columns}
        if unknown:
            known = ", ".join(columns[0] for columns in self.names.values())
            message = f"{name}: unknown columns are ignored: {', '.join(sorted(unknown))}; known are {known}"
            warnings.warn(message, NudgeWarning, stacklevel=4)


def _folded(column: object) -> str:
    return str(column).strip().lower()


def _events_of_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], name: str, columns: _Columns, source: str | None, signal: str
) -> Iterator[tuple[str, Event]]:
    """Yield the events of lines, with the file and line for messages."""
    for number, fields in rows:
        where = f"{name}, line {number}"
        try:
            event = _make_event(columns.values(fields), source, signal)
        except (TypeError, ValueError, OverflowError) as error:
            raise LabelError(f"{where}: {error}") from None
        yield where, event
    columns.check(name)


def _make_event(values: dict[str, Any], source: str | None, signal: str) -> Event:
    return Event(
        query=str(values["query"]),
        document=str(values["document"]),
        signal=str(values["signal"] or signal),
        value=1.0 if values["value"] is None else float(values["value"]),
        propensity=1.0 if values["propensity"] is None else float(values["propensity"]),
        time=_seconds(values["time"]),
        source=source or str(values["source"] or ""),
    )


def _rows(first: str, lines: NumberedLines, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, fields) of a file whose first line says how it is written."""
    start = first.lstrip()[:1]
    if start == "[":
        name = display_name(path)
        entries = parse_json("".join(line for _, line in lines), name)
        for number, entry in enumerate(entries, 1):
            if not isinstance(entry, dict):
                raise InputError(f"{name}: element {number} of the array is not a JSON object: {str(entry)[:40]!r}")
            yield number, entry
    elif start == "{":
        yield from json_objects(lines, path)
    elif start:
        yield from _table_rows(first, lines, path)


def _table_rows(first: str, lines: NumberedLines, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    name = display_name(path)
    separator = max(_SEPARATORS, key=first.count)
    if separator not in first:
        raise InputError(
            f"{name}, line 1: {first.strip()[:80]!r} is neither JSON nor a line of columns, which are separated by a "
            "comma, semicolon, tab or bar"
        )
    rows = csv.reader((line for _, line in lines), delimiter=separator, strict=True)
    try:
        columns = next(rows)
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(columns):
                raise LabelError(
                    f"{name}, line {rows.line_num}: expected {len(columns)} columns separated by {separator!r}, found "
                    f"{len(cells)}"
                )
            yield rows.line_num, dict(zip(columns, cells, strict=True))
    except csv.Error as error:
        raise LabelError(f"{name}, line {rows.line_num}: {error}") from None


def _is_label_file(first: str) -> bool:
    """Whether a file begins like a label file: with the header of BEIR, or with three or four columns and a grade."""
    fields = first.split("\t") if "\t" in first else first.split()
    if [field.strip() for field in fields[:2]] == ["query-id", "corpus-id"]:
        return True
    return len(fields) in (3, 4) and first.lstrip()[:1] not in "[{" and qrels.is_grade(fields[-1])


def _read_qrels(lines: NumberedLines, path: Path, source: str, queries: Path | None) -> Iterator[tuple[str, Event]]:
    name = display_name(path)
    if queries is None:
        raise InputError(f"{name} refers to queries by id: pass their texts with --queries queries.jsonl")
    items = beir.read_items(queries)
    texts = dict(zip(items.ids, items.texts or (), strict=True))
    labels = qrels.parse(lines, path)
    unknown = [query for query in labels if query not in texts]
    if unknown:
        message = f"{name}: queries that are not in {queries} are ignored: {len(unknown)}, for example {unknown[0]!r}"
        warnings.warn(message, NudgeWarning, stacklevel=3)
    for query, grades in labels.items():
        if query in texts:
            for document, grade in grades.items():
                yield f"{name}, query {query}", Event(texts[query], document, value=grade, source=source)


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
