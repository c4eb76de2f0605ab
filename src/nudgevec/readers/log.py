"""A label log over documents from elsewhere, as a collection; and files of events to put into a log."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nudgevec import readers
from nudgevec.collection import Collection, Items, collected
from nudgevec.errors import InputError, LabelError
from nudgevec.label_log import Event, LabelLog
from nudgevec.readers import beir, qrels
from nudgevec.stores import is_store


def read(data: str, log: Path, **folding: Any) -> Collection:
    """The documents of ``data`` with the labels of a log; ``folding`` goes to ``LabelLog.labels``."""
    if not log.is_file():
        raise InputError(f"there is no label log at {log}")
    with LabelLog(log) as events:
        sides, spellings = events.labels(**folding), events.spellings()
    queries = list(dict.fromkeys(query for part in sides.values() for query in part))
    if not queries:
        raise LabelError(f"{log} holds no labels")
    asked = Items(queries, [spellings[query] for query in queries])
    where = Path(data)
    name = data.rpartition("#")[2] if is_store(data) else where.resolve().name
    return collected(name, readers.documents(data), asked, sides, where)


def events(path: Path, source: str | None = None, queries: Path | None = None) -> Iterator[Event]:
    """The events of a file: JSON Lines or CSV with the columns query, document and, if there is more to say, signal,
    value, propensity, time, source; or qrels, whose query ids are looked up in a ``queries.jsonl``."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.suffix in (".tsv", ".txt", ".qrels", ".trec"):
        yield from _judgements(path, source or path.name, queries)
        return
    for number, fields in beir.json_lines(path) if path.suffix == ".jsonl" else _csv(path):
        try:
            yield Event(
                query=str(fields["query"]),
                document=str(fields["document"]),
                signal=str(fields.get("signal") or "judgement"),
                value=float(fields["value"] if fields.get("value") not in (None, "") else 1.0),
                propensity=float(fields.get("propensity") or 1.0),
                time=_seconds(fields.get("time")),
                source=source or str(fields.get("source") or ""),
            )
        except KeyError as missing:
            raise LabelError(f"{path}, line {number}: there is no {missing}") from None
        except ValueError as error:
            raise LabelError(f"{path}, line {number}: {error}") from None


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from enumerate(csv.DictReader(file), 2)


def _judgements(path: Path, source: str, queries: Path | None) -> Iterator[Event]:
    if queries is None:
        raise InputError(f"{path} names queries by id: pass --queries queries.jsonl, so that their texts are known")
    found = beir.items(queries)
    texts = dict(zip(found.ids, found.texts or (), strict=True))
    for query, grades in qrels.read_file(path).items():
        if query not in texts:
            raise LabelError(f"{path}: query {query!r} is not in {queries}")
        for document, grade in grades.items():
            yield Event(texts[query], document, value=grade, source=source)


def _seconds(time: Any) -> float:
    """Seconds since 1970, from a number or an ISO date (in UTC, if it does not say otherwise)."""
    if time in (None, ""):
        return 0.0
    try:
        return float(time)
    except ValueError:
        moment = datetime.fromisoformat(str(time))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
