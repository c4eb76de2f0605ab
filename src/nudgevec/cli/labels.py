"""What ``nudgevec labels`` does: import, stats, export, signals."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nudgevec.errors import InputError, OptionError
from nudgevec.feedback import events as log_files
from nudgevec.feedback.log import LabelLog
from nudgevec.feedback.stats import stats
from nudgevec.files import write_folder_atomically
from nudgevec.text import readers


def import_(options: argparse.Namespace) -> None:
    """Append the events of a file."""
    queries = None if options.queries is None else Path(options.queries)
    with LabelLog(options.log) as log:
        found = log_files.events(
            Path(options.file), log.check, source=options.source, signal=options.signal, queries=queries
        )
        events = list(found)
        new = log.extend(events)
        total = len(log)
    if options.json:
        print(json.dumps({"read": len(events), "new": new, "total": total}))
    else:
        known = len(events) - new
        print(f"{len(events):,} events read, {new:,} new, {known:,} known before; {total:,} in {options.log}")


def stats_(options: argparse.Namespace) -> None:
    """What the log is good for."""
    with _existing(options.log) as log:
        documents = None if options.data is None else readers.documents(options.data).ids
        found = stats(log, documents, half_life=options.half_life, cap=options.cap)
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    queries = found["queries"]
    print(f"{found['events']:,} events: " + ", ".join(f"{count:,} {name}" for name, count in found["signals"].items()))
    print(f"{sum(queries.values()):,} queries: " + ", ".join(f"{count:,} {name}" for name, count in queries.items()))
    spread = found["training_labels_per_document"]
    print(
        f"{found['documents_with_training_labels']:,} documents have training labels, {spread['median']:g} each in the "
        f"middle, {spread['most']:,} at most"
    )
    if "coverage" in found:
        print(f"{found['coverage']:.0%} of {found['documents']:,} documents are covered", end="")
        unknown = found["labels_of_unknown_documents"]
        print(f"; {unknown:,} labels are of documents that are not there" if unknown else "")
    if found["expected_usefulness"] is not None:
        print(
            f"Of the {found['recent_held_out_queries']:,} newest queries that are not trained on, "
            f"{found['expected_usefulness']:.0%} ask for a document with training labels: "
            "about that share of queries can gain."
        )
    if found["collect_next"]:
        print("Collect next, labels for: " + ", ".join(str(each["document"]) for each in found["collect_next"]))


def export_(options: argparse.Namespace) -> None:
    """The folded labels in BEIR's files."""
    with _existing(options.log) as log:
        sides = log.labels(half_life=options.half_life, cap=options.cap)
    folder = Path(options.out)
    if folder.exists():
        raise InputError(f"{folder} exists: choose another --out")
    names = {"train": "train", "validation": "dev", "test": "test"}
    with write_folder_atomically(folder) as draft:
        (draft / "qrels").mkdir()
        with (draft / "queries.jsonl").open("w", encoding="utf-8") as file:
            for query in dict.fromkeys(query for part in sides.values() for query in part):
                file.write(json.dumps({"_id": query, "text": query}, ensure_ascii=False) + "\n")
        for side, part in sides.items():
            lines = [f"{query}\t{key}\t{weight:g}" for query, grades in part.items() for key, weight in grades.items()]
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
            (draft / "qrels" / f"{names[side]}.tsv").write_text(text, encoding="utf-8")
    count = {side: len(part) for side, part in sides.items()}
    print(json.dumps(count) if options.json else f"Wrote {sum(count.values()):,} queries to {folder}")


def signals_(options: argparse.Namespace) -> None:
    """Show or set what signals weigh."""
    wanted: dict[str, float] = {}
    for text in options.set:
        name, _, weight = text.partition("=")
        try:
            wanted[name] = float(weight)
        except ValueError:
            raise OptionError(f"--set takes NAME=WEIGHT, for example click=0.3, not {text!r}") from None
    with LabelLog(options.log) if wanted else _existing(options.log) as log:
        log.weigh(wanted)
        table: dict[str, Any] = log.signals
    if options.json:
        print(json.dumps(table))
    else:
        for name, weight in table.items():
            print(f"{name:14}{weight:g}")


def _existing(path: str) -> LabelLog:
    if not Path(path).is_file():
        raise InputError(f"there is no label log at {path}")
    return LabelLog(path)
