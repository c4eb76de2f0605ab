"""The label log: user feedback on search results, stored as events and aggregated into labels for tuning.

The log is one SQLite file. SQLite is part of Python, many processes can write at once, and appending one event is
cheap. ``add`` returns when the event is in the file: killing the process loses nothing, a power failure at most the
last moments.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time as clock
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from nudgevec.errors import LabelError, NudgeWarning, OptionError
from nudgevec.feedback import log_file
from nudgevec.feedback.event import MAX_VALUE, Event, check_event, is_bounded, is_usable
from nudgevec.text.collection import Qrels
from nudgevec.text.splits import SPLITS, TEST, normalise, split_of

DEFAULT_WEIGHTS = {
    "judgement": 1.0,
    "click": 0.3,
    "purchase": 2.0,
    "thumbs_up": 1.0,
    "thumbs_down": -1.0,
    "synthetic": 0.5,
}
SYNTHETIC = "synthetic"
"""Signal and source of generated queries. They never become test queries."""

# Bounds the weight of an event whose document was very unlikely to be seen.
_MIN_PROPENSITY = 0.05
_DAY = 86400.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    query TEXT NOT NULL, document TEXT NOT NULL, signal TEXT NOT NULL, value REAL NOT NULL,
    propensity REAL NOT NULL, time REAL NOT NULL, source TEXT NOT NULL,
    UNIQUE (query, document, signal, value, time, source) ON CONFLICT IGNORE
);
CREATE TABLE IF NOT EXISTS done (mark TEXT, document TEXT, PRIMARY KEY (mark, document)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS signals (name TEXT PRIMARY KEY, weight REAL NOT NULL) WITHOUT ROWID;
"""
_INSERT = "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
# Clocks with a resolution of a second give equal events equal times; a microsecond tells them apart.
_INSERT_LATER = """
INSERT INTO events SELECT ?1, ?2, ?3, ?4, ?5, MAX(time) + 1e-6, ?7 FROM events
WHERE query = ?1 AND document = ?2 AND signal = ?3 AND value = ?4 AND source = ?7 AND time BETWEEN ?6 AND ?6 + 1
"""


class LabelLog:
    """An append-only log of events in one SQLite file.

    ``add`` counts every call. ``extend`` skips events that are in the log already, whatever their propensity, so that a
    file can be imported twice.

    Parameters
    ----------
    path : str or path
        The file; it is created if it does not exist.
    read_only : bool
        Neither create nor change the file, which may be on a read-only disk.

    Raises
    ------
    LabelError
        If the file exists and is not a label log, or does not exist and is opened for reading.

    Examples
    --------
    >>> import tempfile
    >>> log = LabelLog(tempfile.mkdtemp() + "/labels.sqlite")
    >>> log.add("reset my password", "faq-7", "click", source="web")
    >>> log.add("Reset  my PASSWORD", "faq-7", "thumbs_up", source="web")
    >>> len(log), [len(labels) for labels in log.labels().values()]
    (2, [1, 0, 0])
    >>> log.close()
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        try:
            self._connection = log_file.connect(self.path, read_only=read_only)
            if not read_only:
                self._create_tables()
            self._known_weights = self.weights
        except (sqlite3.Error, OSError) as error:
            raise LabelError(f"{self.path} cannot be opened as a label log: {error}") from None

    def _create_tables(self) -> None:
        log_file.write_ahead(self._connection)
        with self._transaction():
            for statement in _SCHEMA.split(";"):
                self._connection.execute(statement)
            if not self._connection.execute("SELECT 1 FROM signals LIMIT 1").fetchone():
                self._connection.executemany("INSERT OR IGNORE INTO signals VALUES (?, ?)", DEFAULT_WEIGHTS.items())

    def close(self) -> None:
        """Close the file. A ``with`` block does so at its end.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.add("reset my password", "faq-7")
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._sqlite_errors():
            return int(self._connection.execute("SELECT COUNT(*) FROM events").fetchone()[0])

    def __iter__(self) -> Iterator[Event]:
        columns = "query, document, signal, value, propensity, time, source"
        with self._sqlite_errors():
            for row in self._connection.execute(f"SELECT {columns} FROM events ORDER BY rowid"):
                yield Event(*row)

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
        """Append one event. It outlives the process once this method returns.

        Parameters
        ----------
        query, document, signal, value, propensity, source
            See ``Event``.
        time : float, optional
            Seconds since 1970; now by default. An equal event of the same time gets a slightly later one.

        Raises
        ------
        LabelError
            If the event is invalid (see ``check``), or the file cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.add("reset my password", "faq-7", "thumbs_up", source="web")
        ...     [event.document for event in log]
        ['faq-7']
        """
        event = Event(query, document, signal, value, propensity, clock.time() if time is None else time, source)
        self.check(event)
        with self._lock, self._sqlite_errors():
            if not self._connection.execute(_INSERT, _row(event)).rowcount:
                self._connection.execute(_INSERT_LATER, _row(event))

    def extend(self, events: Iterable[Event], completed: tuple[str, Iterable[str]] | None = None) -> int:
        """Append many events in one transaction: all of them, or none if one is invalid.

        Parameters
        ----------
        events : iterable of Event
        completed : (str, iterable of str), optional
            A task and documents to mark as completed in the same transaction.

        Returns
        -------
        int
            Number of events that were not in the log before.

        Raises
        ------
        LabelError
            If an event is invalid; see ``check``.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.extend([Event("reset my password", "faq-7")]), log.extend([Event("reset my password", "faq-7")])
        (1, 0)
        """
        n_new = 0
        with self._transaction():
            for event in events:
                self.check(event)
                n_new += self._connection.execute(_INSERT, _row(event)).rowcount
            if completed is not None:
                rows = ((completed[0], document) for document in completed[1])
                self._connection.executemany("INSERT OR IGNORE INTO done VALUES (?, ?)", rows)
        return n_new

    def completed(self, task: str) -> set[str]:
        """Return the documents that are marked as completed for a task.

        Parameters
        ----------
        task : str
            The name of the task, as it was passed to ``extend``.

        Returns
        -------
        set of str
            Document ids.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     _ = log.extend([], completed=("generate queries", ["faq-7"]))
        ...     log.completed("generate queries")
        {'faq-7'}
        """
        with self._sqlite_errors():
            return {row[0] for row in self._connection.execute("SELECT document FROM done WHERE mark = ?", (task,))}

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each signal."""
        with self._sqlite_errors():
            return dict(self._connection.execute("SELECT name, weight FROM signals ORDER BY name"))

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Set the weights of signals, known or new. Events that are in the log already count with the new weights.

        Parameters
        ----------
        weights : dict of str to float
            Weight by signal; signals that are not named keep theirs.

        Raises
        ------
        OptionError
            If a weight is not a number from -1e6 to 1e6.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.set_weights({"click": 0.2, "hover": 0.1})
        ...     log.weights["hover"]
        0.1
        """
        for name, weight in weights.items():
            if not is_bounded(weight, MAX_VALUE):
                raise OptionError(f"the weight of {name!r} must be a number from -1e6 to 1e6, not {weight!r}")
        with self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO signals VALUES (?, ?)", weights.items())

    def labels(
        self, *, half_life: float | None = None, cap: float | None = None, now: float | None = None, seed: int = 0
    ) -> dict[str, Qrels]:
        """Aggregate the events into labels.

        The weight of an event is the weight of its signal times its value, divided by its propensity (at least 0.05).
        Weights of events with the same query and document add up. Queries that differ in case, white space or Unicode
        form are one query.

        Parameters
        ----------
        half_life : float, optional
            Days after which the weight of an event halves. Events without a time keep their weight.
        cap : float, optional
            Largest total weight, positive and negative, that one source can give to one document within a split.
        now : float, optional
            Time for ``half_life`` in seconds since 1970; that of the last event by default, so that the labels of a log
            do not change from day to day.
        seed : int
            Seed of the split.

        Returns
        -------
        dict of str to dict
            For "train", "validation" and "test": normalised query -> document -> weight. The split follows from the
            text of the query (``nudgevec.text.splits``); synthetic events never enter the test split.

        Raises
        ------
        OptionError
            If ``half_life`` or ``cap`` is not positive.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.add("reset my password", "faq-7", "click", propensity=0.5)
        ...     log.labels()["train"]
        {'reset my password': {'faq-7': 0.6}}
        """
        if (half_life is not None and not half_life > 0) or (cap is not None and not cap > 0):
            raise OptionError("half_life and cap must be greater than 0")
        by_split = self._weighted_events(half_life, now, seed)
        labels: dict[str, Qrels] = {split: {} for split in SPLITS}
        for split, events in by_split.items():
            for query, event, weight in events if cap is None else _capped(events, cap):
                grades = labels[split].setdefault(query, {})
                grades[event.document] = grades.get(event.document, 0.0) + weight
        return {split: _without_zeros(qrels) for split, qrels in labels.items()}

    def spellings(self) -> dict[str, str]:
        """Return the latest spelling of every query, by its normalised form.

        Returns
        -------
        dict of str to str
            Normalised query, as in ``labels``, to the text of its last event.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.add("Reset my  PASSWORD", "faq-7")
        ...     log.spellings()
        {'reset my password': 'Reset my  PASSWORD'}
        """
        return {normalise(event.query): event.query for event in sorted(self, key=lambda event: event.time)}

    def check(self, event: Event) -> None:
        """Raise LabelError for an event that cannot be added.

        Parameters
        ----------
        event : Event

        Raises
        ------
        LabelError
            If the query or document is empty, the signal has no weight, the value is not a number from -1e6 to 1e6, the
            time is in the future, the propensity is not a probability above 0, or a text is not valid Unicode.

        Examples
        --------
        >>> import tempfile
        >>> with LabelLog(tempfile.mkdtemp() + "/labels.sqlite") as log:
        ...     log.check(Event("reset my password", ""))
        Traceback (most recent call last):
        nudgevec.errors.LabelError: the event of query 'reset my password' has no document id
        """
        if isinstance(event.signal, str) and event.signal not in self._known_weights:
            self._known_weights = self.weights  # another process may have added the signal
        check_event(event, self._known_weights)

    def _weighted_events(
        self, half_life: float | None, now: float | None, seed: int
    ) -> dict[str, list[tuple[str, Event, float]]]:
        """Return (normalised query, event, weight) of every event that counts, by split."""
        weights = self.weights
        events = [event for event in self if is_usable(event, weights)]
        n_unusable = len(self) - len(events)
        if n_unusable > 0:
            problem = "events with an unknown signal, or with a value or time out of range, are ignored"
            warnings.warn(f"{self.path}: {problem}: {n_unusable}", NudgeWarning, stacklevel=3)
        if now is None:
            now = max((event.time for event in events), default=0.0)
        by_split: dict[str, list[tuple[str, Event, float]]] = {split: [] for split in SPLITS}
        known: dict[str, tuple[str, str]] = {}
        for event in events:
            if event.query not in known:
                query = normalise(event.query)
                known[event.query] = query, split_of(query, seed)
            query, split = known[event.query]
            if split == TEST and SYNTHETIC in (event.signal, event.source):
                continue
            weight = weights[event.signal] * event.value / max(event.propensity, _MIN_PROPENSITY)
            # Events without a time have small times that only tell them apart; see ``read_events``.
            if half_life is not None and event.time >= 1:
                weight *= 0.5 ** (max(0.0, now - event.time) / (_DAY * half_life))
            by_split[split].append((query, event, weight))
        return by_split

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._sqlite_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back already if the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        """Raise errors of SQLite, such as those of a full disk or a damaged file, as LabelError."""
        try:
            yield
        except sqlite3.Error as error:
            raise LabelError(f"{self.path}: {error}") from None


def _row(event: Event) -> tuple[Any, ...]:
    numbers = float(event.value), float(event.propensity), float(event.time)
    return event.query, event.document, event.signal, *numbers, event.source


def _capped(events: list[tuple[str, Event, float]], cap: float) -> Iterator[tuple[str, Event, float]]:
    """Scale down the events of a source for a document whose absolute weights add up to more than the cap."""
    totals: dict[tuple[str, str], float] = {}
    for _, event, weight in events:
        pair = event.source, event.document
        totals[pair] = totals.get(pair, 0.0) + abs(weight)
    for query, event, weight in events:
        total = totals[event.source, event.document]
        yield query, event, weight * min(1.0, cap / total) if total > 0 else weight


def _without_zeros(qrels: Qrels) -> Qrels:
    """Drop labels whose weights cancel out, and round away the noise of the sums."""
    rounded = {
        query: {document: round(weight, 12) for document, weight in grades.items() if abs(weight) > 1e-9}
        for query, grades in qrels.items()
    }
    return {query: grades for query, grades in rounded.items() if grades}
