"""The commands ``labels import``, ``labels stats``, ``labels export`` and ``labels signals``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nudgevec.cli.output import print_json, print_text
from nudgevec.errors import InputError, LabelError, OptionError
from nudgevec.feedback.event_files import read_events
from nudgevec.feedback.events import open_labels
from nudgevec.feedback.log import LabelLog
from nudgevec.feedback.stats import log_statistics
from nudgevec.files import claim_folder, replace_files
from nudgevec.tables import Column, print_table
from nudgevec.text import readers
from nudgevec.text.collection import Qrels
from nudgevec.text.splits import SPLITS, TEST, TRAIN, VALIDATION

_FILE_NAMES = {TRAIN: "train.tsv", VALIDATION: "dev.tsv", TEST: "test.tsv"}


def import_events(options: argparse.Namespace) -> None:
    """Append the events of a file to a log: all of them, or none. A failed import creates no log."""
    target = Path(options.log)
    with LabelLog(target if target.exists() else ":memory:") as log:
        events = list(
            read_events(
                Path(options.file),
                log.check,
                source=options.source,
                signal=options.signal,
                queries=None if options.queries is None else Path(options.queries),
                columns=_parse_columns(options.map),
            )
        )
    with LabelLog(target) as log:
        n_new = log.extend(events)
        total = len(log)
    if options.json:
        print_json({"read": len(events), "new": n_new, "total": total}, indent=None)
    else:
        n_known = len(events) - n_new
        print_text(f"{len(events):,} events read, {n_new:,} new, {n_known:,} already known; {total:,} in {options.log}")


def stats(options: argparse.Namespace) -> None:
    """Show the statistics of a log or a file of events."""
    with open_labels(Path(options.log)) as log:
        documents = None if options.data is None else readers.read_documents(options.data).ids
        statistics = log_statistics(log, documents, half_life=options.half_life, cap=options.cap)
    if options.json:
        print_json(statistics)
    else:
        _print_statistics(statistics)


def export(options: argparse.Namespace) -> None:
    """Write the labels of a log in the layout of BEIR."""
    with open_labels(Path(options.log)) as log:
        labels = log.labels(half_life=options.half_life, cap=options.cap)
    _check_exportable(labels)
    folder = Path(options.out)
    if folder.exists():
        raise InputError(f"{folder} exists: choose another --out")
    with claim_folder(folder), replace_files(folder) as draft:
        (draft / "qrels").mkdir()
        with (draft / "queries.jsonl").open("w", encoding="utf-8") as file:
            for query in dict.fromkeys(query for qrels in labels.values() for query in qrels):
                file.write(json.dumps({"_id": query, "text": query}, ensure_ascii=False) + "\n")
        for split, qrels in labels.items():
            _write_qrels(draft / "qrels" / _FILE_NAMES[split], qrels)
    counts = {split: len(qrels) for split, qrels in labels.items()}
    if options.json:
        print_json(counts, indent=None)
    else:
        print_text(f"{sum(counts.values()):,} queries written to {folder}")


def signals(options: argparse.Namespace) -> None:
    """Show or set the weights of signals."""
    new_weights: dict[str, float] = {}
    for text in options.set:
        name, _, weight = text.partition("=")
        try:
            new_weights[name] = float(weight)
        except ValueError:
            raise OptionError(f"--set takes NAME=WEIGHT, for example click=0.3, not {text!r}") from None
    with LabelLog(options.log) if new_weights else _open_existing(options.log) as log:
        if new_weights:
            log.set_weights(new_weights)
        weights = log.weights
    if options.json:
        print_json(weights, indent=None)
    else:
        rows = [(name, f"{weight:g}") for name, weight in weights.items()]
        print_table([Column("signal", min_width=11), Column("weight", number=True)], rows)


def _open_existing(path: str) -> LabelLog:
    if not Path(path).is_file():
        raise InputError(f"no label log at {path}")
    return LabelLog(path, read_only=True)


def _parse_columns(mappings: list[str]) -> dict[str, str]:
    """Parse ``--map query=q,document=item_id``."""
    columns: dict[str, str] = {}
    for pair in (pair for mapping in mappings for pair in mapping.split(",")):
        name, equals, column = pair.partition("=")
        if not equals or not column.strip():
            raise OptionError(f"--map takes NAME=COLUMN, for example query=q,document=item_id, not {pair!r}")
        name = name.strip()
        if name in columns:
            raise OptionError(f"--map names two columns for {name}: {columns[name]!r} and {column!r}")
        columns[name] = column
    return columns


def _check_exportable(labels: dict[str, Qrels]) -> None:
    """Raise LabelError for ids that a line of a label file cannot hold."""
    for key in (key for qrels in labels.values() for grades in qrels.values() for key in grades):
        if key != key.strip() or any(character in key for character in "\t\r\n"):
            raise LabelError(
                f"the document id {key!r} has a tab, a line break or outer white space, which a label file cannot hold"
            )


def _write_qrels(path: Path, qrels: Qrels) -> None:
    # Python writes the shortest decimal number that is read back as the same float.
    lines = [f"{query}\t{key}\t{weight!r}" for query, grades in qrels.items() for key, weight in grades.items()]
    path.write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n", encoding="utf-8")


def _print_statistics(statistics: dict[str, Any]) -> None:
    n_queries = sum(statistics["queries"].values())
    print_text(f"{statistics['events']:,} events, {n_queries:,} queries\n")
    signals = [(name, f"{count:,}") for name, count in statistics["signals"].items()]
    print_table([Column("signal", min_width=11), Column("events", number=True)], signals)
    print_text("")
    columns = [Column("", min_width=11), *(Column(split, number=True, min_width=6) for split in SPLITS)]
    rows = [(name, *(f"{statistics[name][split]:,}" for split in SPLITS)) for name in ("queries", "labels")]
    print_table(columns, rows)
    per_document = statistics["training_labels_per_document"]
    print_text(
        f"\n{statistics['documents_with_training_labels']:,} documents have training labels (median "
        f"{per_document['median']:g} per document, maximum {per_document['most']:,})."
    )
    if "coverage" in statistics:
        print_text(f"{statistics['coverage']:.0%} of {statistics['documents']:,} documents are covered.")
        if statistics["labels_of_unknown_documents"]:
            print_text(f"Labels of unknown documents are ignored: {statistics['labels_of_unknown_documents']:,}.")
    if statistics["expected_usefulness"] is not None:
        print_text(
            f"Of the {statistics['recent_held_out_queries']:,} most recent validation and test queries, "
            f"{statistics['expected_usefulness']:.0%} have a relevant document with training labels: about this share "
            "of future queries can improve."
        )
    if statistics["collect_next"]:
        print_text("\nDocuments to collect labels for next")
        suggestions = [(str(entry["document"]), f"{entry['asked_for']:,}") for entry in statistics["collect_next"]]
        print_table([Column("document"), Column("held-out queries", number=True)], suggestions)
