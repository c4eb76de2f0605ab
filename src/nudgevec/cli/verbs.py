"""What each verb does with its options."""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any


def tune(options: argparse.Namespace) -> None:
    """Tune a collection and leave a run folder."""
    from nudgevec.errors import OptionError
    from nudgevec.runs import pipeline as run
    from nudgevec.runs.card import run_table, sentences

    if not options.out:
        raise OptionError("--out needs the name of a folder")
    run.check_target(Path(options.out), options.overwrite)
    ready = _ready(options)
    done = run.tune(ready, options.method, options.metric, engine=options.engine, guard=options.guard)
    facts = run.write(done, Path(options.out), overwrite=options.overwrite)
    if options.json:
        _print_json(facts)
        return
    first, *rest = sentences(facts)
    print(first, end="\n\n")
    print(*run_table(facts), sep="\n", end="\n\n")
    print(*rest, sep="\n")
    print(f"Written to {options.out}")


def evaluate(options: argparse.Namespace) -> None:
    """Measure the test side of a collection, with or without a run over it."""
    from nudgevec.errors import NudgeWarning
    from nudgevec.evaluation import evaluate as measure
    from nudgevec.metrics import USUAL
    from nudgevec.runs import pipeline as run

    facts: dict[str, Any] = {}
    if options.run is not None:
        facts, patch = run.load(Path(options.run))
        _like(options, facts["settings"])
    ready = _ready(options)
    documents: Any = ready.documents
    similarity = options.similarity or facts.get("similarity", "cosine")
    if facts:
        documents = patch.over(documents)
        if ready.fingerprint("test") != facts["fingerprints"]["test"]:
            message = "these are not the test queries of the run, and some may have been trained on"
            warnings.warn(message, NudgeWarning, stacklevel=2)
    side = ready.sides["test"]
    result = measure(
        documents,
        side.vectors,
        side.labels,
        options.metric or list(facts.get("test", {}).get("before", USUAL)),
        similarity=similarity,
        engine=options.engine,
    )
    scores = run.scores(result)
    if options.json:
        _print_json({"queries": len(result.query), "similarity": similarity, "test": scores})
        return
    print(f"{ready.collection.name}: {len(result.query):,} test queries (split {ready.split.how}), {similarity}\n")
    print(f"{'':12}{'mean':>8}   95% interval")
    for name, score in scores.items():
        print(f"{name:12}{100 * score['mean']:8.1f}   {100 * score['low']:.1f} to {100 * score['high']:.1f}")


def _like(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Prepare data as a run did, where the options do not say otherwise."""
    if options.labels is None and settings.get("labels") and options.half_life is None and options.cap is None:
        options.half_life, options.cap = settings["half_life"], settings["cap"]
    for name in ("embedder", "document_prefix", "query_prefix", "labels", "seed"):
        if getattr(options, name) is None:
            setattr(options, name, settings.get(name))
    options.resplit = options.resplit or bool(settings.get("resplit"))


def inspect(options: argparse.Namespace) -> None:
    """Show what a run did: documents that moved most, queries that won and lost."""
    from nudgevec.runs import pipeline as run

    folder = Path(options.run)
    options.top = max(0, options.top)
    facts, _ = run.load(folder)
    queries, documents = run.lines(folder / "queries.jsonl"), run.lines(folder / "documents.jsonl")
    queries.sort(key=lambda entry: entry["before"] - entry["after"])
    won = [entry for entry in queries if entry["after"] > entry["before"]][: options.top]
    lost = [entry for entry in reversed(queries) if entry["after"] < entry["before"]][: options.top]
    if options.json:
        _print_json({"run": facts, "won": won, "lost": lost, "moved": documents[: options.top]})
        return
    texts = {entry["id"]: entry["text"] for entry in documents}
    for title, entries in (("Queries that won most", won), ("Queries that lost most", lost)):
        print(f"{title} ({facts['metric']})")
        for entry in entries:
            print(f"  {entry['before']:.2f} -> {entry['after']:.2f}  {_short(entry['text'] or entry['id'])}")
            for name in ("top_before", "top_after"):
                shown = [f"{'*' if entry['answers'].get(key, 0) > 0 else ''}{key}" for key in entry.get(name, [])[:5]]
                print(f"      {name[4:]:7}{', '.join(shown)}")
        print("  none" if not entries else "", end="\n" if not entries else "")
    print("Documents that moved most")
    for entry in documents[: options.top]:
        far = f"{entry['degrees']:.1f} degrees" if "degrees" in entry else f"{entry['distance']:.3g}"
        print(f"  {far}, {entry['labels']} labels  {entry['id']}  {_short(texts[entry['id']] or '')}")
    print("\n(* marks answers)")


def labels(options: argparse.Namespace) -> None:
    """The label log."""
    from nudgevec.cli import labels as tasks

    getattr(tasks, f"{options.task}_")(options)


def synthesize(options: argparse.Namespace) -> None:
    """Queries for documents without labels."""
    from nudgevec.cli import synthesize as verb

    verb.main(options)


def index(options: argparse.Namespace) -> None:
    """Embed documents into a new LanceDB table."""
    import numpy as np

    from nudgevec.errors import OptionError, VectorError
    from nudgevec.runs import pipeline as run
    from nudgevec.stores import Address
    from nudgevec.stores.lancedb_store import create
    from nudgevec.text import readers
    from nudgevec.text.embedders import embedded_documents

    address = Address.parse(options.store)
    if address.scheme != "lancedb":
        raise OptionError(f"{address}: index makes LanceDB tables; other stores are filled with their own tools")
    found = readers.documents(options.data)
    vectors = embedded_documents(found, options.data, options.embedder, options.document_prefix)
    rows = np.flatnonzero(vectors.any(axis=1)).tolist()
    if not rows:
        raise VectorError(f"{options.data}: all document vectors are zeros")
    run.note_left_out(len(vectors) - len(rows), "documents")
    texts = None if found.texts is None else [found.texts[row] for row in rows]
    create(address, [found.ids[row] for row in rows], texts, vectors[rows])
    if options.json:
        _print_json({"documents": len(rows), "dim": vectors.shape[1], "embedder": options.embedder})
    else:
        print(f"{address}: {len(rows):,} documents, {vectors.shape[1]} dimensions, embedded with {options.embedder}")


def apply(options: argparse.Namespace) -> None:
    """Put a run on a store."""
    from nudgevec.errors import NudgeWarning
    from nudgevec.runs import pipeline as run
    from nudgevec.stores import error_text, open_store, recall

    _, patch = run.load(Path(options.run))
    queries: Any = run.asked(Path(options.run))[: options.check] if options.check > 0 else ()
    found: dict[str, float] = {}
    with open_store(options.store) as store:
        if len(queries) and store.status().metadata is None:
            found["before"] = recall(store, queries)
        status = store.apply(patch)
        if status.metadata is not None and len(queries):
            try:
                found["after"] = recall(store, queries)
            except Exception as error:
                message = f"the patch is applied, but the store's search could not be measured: {error_text(error)}"
                warnings.warn(message, NudgeWarning, stacklevel=2)
    if options.json:
        _print_json({**asdict(status), "search": {"queries": len(queries), "recall@10": found}})
        return
    if status.metadata is None:
        print(f"{store.url}: nothing to apply: this run moved no documents")
        return
    print(f"{store.url}: {status}")
    if "after" in found:
        before = f" ({found['before']:.1%} before)" if "before" in found else ""
        print(
            f"The store's own search finds {found['after']:.1%}{before} of the true 10 nearest documents, asked "
            f"{len(queries):,} test queries."
        )


def revert(options: argparse.Namespace) -> None:
    """Take back the run that is in force in a store."""
    from nudgevec.runs import pipeline as run
    from nudgevec.stores import open_store

    patch = None if options.run is None else run.load(Path(options.run))[1]
    with open_store(options.store) as store:
        left = store.revert(patch, force=options.force)
    if options.json:
        _print_json(asdict(left))
    else:
        print(f"{store.url}: {left}")


def status(options: argparse.Namespace) -> None:
    """What is in force in a store."""
    from nudgevec.stores import open_store

    with open_store(options.store) as store:
        found = store.status()
    if options.json:
        _print_json(asdict(found))
    else:
        print(f"{store.url}: {found}")


def demo(options: argparse.Namespace) -> None:
    """The emoji search."""
    from nudgevec import demo as emoji

    if options.json:
        _print_json(emoji.facts(options.query))
    else:
        emoji.main(options.query)


def completion(options: argparse.Namespace) -> None:
    """Print a completion script."""
    import shtab

    from nudgevec.cli.parser import parser

    print(shtab.complete(parser(), options.shell), end="")


def _ready(options: argparse.Namespace) -> Any:
    from nudgevec.errors import OptionError
    from nudgevec.feedback import events as log
    from nudgevec.runs import pipeline as run
    from nudgevec.text import readers

    if (options.data is None) == (options.store is None):
        raise OptionError("say where the documents are: DATA, or --store URL, one of the two")
    if options.labels is None and (options.half_life is not None or options.cap is not None):
        raise OptionError("--half-life and --cap are about a label log: say which one with --labels")
    options.data = options.data or options.store
    collection = (
        readers.read(options.data)
        if options.labels is None
        else log.read(
            options.data, Path(options.labels), half_life=options.half_life, cap=options.cap, seed=options.seed or 0
        )
    )
    return run.prepare(
        collection,
        options.embedder,
        seed=options.seed or 0,
        given_split=not options.resplit,
        prefixes=(options.document_prefix, options.query_prefix),
    )


def _short(text: str, width: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
