"""The label log: what people did with search results, appended as it happens, folded into labels when tuning.

The log is one SQLite file: part of Python, safe for many processes at once, and small appends are what it is good at
(a columnar table would write a new version per event). An event is on its way to the disk when ``add`` returns: the
death of the process loses nothing, a power cut at most the last moments.

Folding turns events into weights. An event weighs what its signal does (a table the user can edit) times its value,
divided by its propensity (how likely the document was to be seen at its position), and halves with every half-life.
Spellings of one query are one query, votes for and against are added up, and no source can give a document more than
the cap.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Self

from nudgevec.errors import LabelError, OptionError
from nudgevec.text.collection import Qrels
from nudgevec.text.splits import SIDES, TEST, normalised, side

SIGNALS = {
    "judgement": 1.0,
    "click": 0.3,
    "purchase": 2.0,
    "thumbs_up": 1.0,
    "thumbs_down": -1.0,
    "synthetic": 0.5,
}
SYNTHETIC = "synthetic"
# One event counts at most this many times over because it was unlikely to be seen.
_LEAST_PROPENSITY = 0.05
_TOMORROW = 86400.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    query TEXT NOT NULL, document TEXT NOT NULL, signal TEXT NOT NULL, value REAL NOT NULL,
    propensity REAL NOT NULL, time REAL NOT NULL, source TEXT NOT NULL,
    UNIQUE (query, document, signal, value, time, source) ON CONFLICT IGNORE
);
CREATE TABLE IF NOT EXISTS done (mark TEXT, document TEXT, PRIMARY KEY (mark, document)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signals (name TEXT PRIMARY KEY, weight REAL NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Event:
    """One thing somebody did: for this query, this document got this signal."""

    query: str
    document: str
    signal: str = "judgement"
    value: float = 1.0
    propensity: float = 1.0
    time: float = 0.0
    source: str = ""


class LabelLog:
    """An append-only log of events in one file.

    >>> import tempfile
    >>> log = LabelLog(tempfile.mkdtemp() + "/labels.sqlite")
    >>> log.add("reset my password", "faq-7", "click", source="web")
    >>> log.add("Reset  my PASSWORD", "faq-7", "thumbs_up", source="web")
    >>> [len(part) for part in log.labels().values()]
    [1, 0, 0]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.lock = threading.RLock()
            self.file = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            self.file.execute("PRAGMA journal_mode = WAL")
            self.file.execute("PRAGMA synchronous = NORMAL")
            self.file.executescript(_SCHEMA)
            with self._at_once():
                if not self.file.execute("SELECT 1 FROM signals LIMIT 1").fetchone():
                    self.file.executemany("INSERT OR IGNORE INTO signals VALUES (?, ?)", SIGNALS.items())
        except sqlite3.Error as error:
            raise LabelError(f"{self.path} cannot be opened as a label log: {error}") from None
        self._signals = self.signals

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.file.execute("SELECT COUNT(*) FROM events").fetchone()[0])

    def add(
        self,
        query: str,
        document: str,
        signal: str = "judgement",
        value: float = 1.0,
        *,
        propensity: float = 1.0,
        time: float | None = None,
        source: str = "",
    ) -> None:
        """Append one event. When this returns, the event outlives the process."""
        event = Event(query, document, signal, value, propensity, clock.time() if time is None else time, source)
        self.check(event)
        with self.lock:
            self.file.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", _row(event))

    def extend(self, events: Iterable[Event], done: tuple[str, Iterable[str]] | None = None) -> int:
        """Append many events, all or none of them; returns how many were new.

        ``done`` notes in the same breath that some task (a mark) is done with these documents.
        """
        new = 0
        with self._at_once():
            for event in events:
                self.check(event)
                new += self.file.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", _row(event)).rowcount
            if done is not None:
                noted = ((done[0], document) for document in done[1])
                self.file.executemany("INSERT OR IGNORE INTO done VALUES (?, ?)", noted)
        return new

    def done(self, mark: str) -> set[str]:
        """The documents that a task is done with."""
        return {row[0] for row in self.file.execute("SELECT document FROM done WHERE mark = ?", (mark,))}

    def __iter__(self) -> Iterator[Event]:
        columns = "query, document, signal, value, propensity, time, source"
        return (Event(*row) for row in self.file.execute(f"SELECT {columns} FROM events ORDER BY rowid"))

    @property
    def signals(self) -> dict[str, float]:
        """What each signal weighs."""
        return dict(self.file.execute("SELECT name, weight FROM signals ORDER BY name"))

    def weigh(self, signals: Mapping[str, float]) -> None:
        """Set what signals weigh. Nothing that was logged changes, only what it counts for."""
        for name, weight in signals.items():
            if not isfinite(weight):
                raise OptionError(f"the weight of {name!r} must be a number, not {weight!r}")
        with self._at_once():
            self.file.executemany("INSERT OR REPLACE INTO signals VALUES (?, ?)", signals.items())

    def labels(
        self, *, half_life: float | None = None, cap: float | None = None, now: float | None = None, seed: int = 0
    ) -> dict[str, Qrels]:
        """The events as labels by side: normalised query -> document -> weight.

        half_life : days after which an event counts half; for ever by default, and where its time is not known.
        cap : the most that one source can give to one document on one side, for or against; no limit by default.
        now : seconds since 1970, for the half-life; the time of the last event by default, so that the same log gives
            the same labels tomorrow.

        The side of a query follows from its text alone (``split.side``). Synthetic events never reach the test side.
        """
        if (half_life is not None and not half_life > 0) or (cap is not None and not cap > 0):
            raise OptionError("half_life and cap must be above 0")
        weighed: dict[str, list[tuple[str, Event, float]]] = {name: [] for name in SIDES}
        known: dict[str, tuple[str, str]] = {}
        for event, weight in self._weighed(half_life, now):
            if event.query not in known:
                key = normalised(event.query)
                known[event.query] = key, side(key, seed)
            key, where = known[event.query]
            if where != TEST or SYNTHETIC not in (event.signal, event.source):
                weighed[where].append((key, event, weight))
        parts: dict[str, Qrels] = {name: {} for name in SIDES}
        for name, events in weighed.items():
            for key, event, weight in events if cap is None else _capped(events, cap):
                grades = parts[name].setdefault(key, {})
                grades[event.document] = grades.get(event.document, 0.0) + weight
        return {
            name: {
                query: kept
                for query, grades in part.items()
                if (kept := {key: round(weight, 12) for key, weight in grades.items() if abs(weight) > 1e-9})
            }
            for name, part in parts.items()
        }

    def spellings(self) -> dict[str, str]:
        """The latest spelling of every query, by its normalised form."""
        return {normalised(event.query): event.query for event in sorted(self, key=lambda event: event.time)}

    def _weighed(self, half_life: float | None, now: float | None) -> Iterator[tuple[Event, float]]:
        table = self.signals
        if now is None:
            now = self.file.execute("SELECT MAX(time) FROM events").fetchone()[0] or 0.0
        for event in self:
            weight = table[event.signal] * event.value / max(event.propensity, _LEAST_PROPENSITY)
            if half_life is not None and event.time >= 1:
                weight *= 0.5 ** (max(0.0, now - event.time) / (86400 * half_life))
            yield event, weight

    def check(self, event: Event) -> None:
        """Refuse an event that makes no sense."""
        if not isinstance(event.query, str) or not normalised(event.query):
            raise LabelError("an event needs the text of its query")
        if not isinstance(event.document, str) or not event.document:
            raise LabelError(f"the event of query {event.query!r} needs the id of a document")
        if event.signal not in self._signals:
            self._signals = self.signals  # somebody may have added one
        if event.signal not in self._signals:
            raise LabelError(
                f"unknown signal {event.signal!r}: use one of {', '.join(self._signals)}, or give it a weight first "
                "(nudgevec labels signals LOG --set NAME=WEIGHT)"
            )
        numbers = event.value, event.propensity, event.time
        if not all(isinstance(number, (int, float)) and isfinite(number) for number in numbers):
            raise LabelError(f"value, propensity and time must be numbers: {event}")
        if event.time > clock.time() + _TOMORROW:
            raise LabelError(f"the time {event.time} is in the future: times are in seconds since 1970")
        if not 0 < event.propensity <= 1:
            raise LabelError(f"a propensity is a probability above 0 and at most 1, not {event.propensity}")

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        with self.lock:
            self.file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.file.execute("ROLLBACK")
                raise
            self.file.execute("COMMIT")


def _row(event: Event) -> tuple[Any, ...]:
    return (
        event.query,
        event.document,
        event.signal,
        float(event.value),
        float(event.propensity),
        float(event.time),
        event.source,
    )


def _capped(events: list[tuple[str, Event, float]], cap: float) -> Iterator[tuple[str, Event, float]]:
    """Scale down what a source gives to a document where it is more than the cap."""
    given: dict[tuple[str, str], float] = {}
    for _, event, weight in events:
        pair = event.source, event.document
        given[pair] = given.get(pair, 0.0) + abs(weight)
    for key, event, weight in events:
        total = given[event.source, event.document]
        yield key, event, weight * min(1.0, cap / total) if total > 0 else weight
