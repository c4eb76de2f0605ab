"""The commands ``tune``, ``evaluate`` and ``inspect``."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from nudgevec import evaluation
from nudgevec.cli.output import print_json, print_text, shorten
from nudgevec.errors import NudgeWarning, OptionError
from nudgevec.metrics import USUAL
from nudgevec.patch import Patch
from nudgevec.runs import card, folder, pipeline, same_model, tuning
from nudgevec.stores import Address, Store, evaluate_index, is_store
from nudgevec.stores.compatibility import EqualLengths
from nudgevec.tables import COMPARISON, Column, print_table
from nudgevec.text.embedders import names_local_model
from nudgevec.text.splits import TEST

_N_RESULTS = 5


def tune(options: argparse.Namespace) -> None:
    """Tune a collection and write a run folder."""
    run = tuning.tune(
        _data(options),
        out=options.out,
        overwrite=options.overwrite,
        method=options.method,
        metric=options.metric,
        side=options.side,
        gamma=options.gamma,
        guard=options.guard,
        refit=options.refit,
        engine=options.engine,
        check_embedder=options.check_embedder,
        **_preparation(options),
    )
    facts = run.facts
    if options.json:
        print_json(facts)
        return
    data_line, split_line, *result_lines = card.summary(facts)
    print_text(data_line, split_line, "")
    print_table(COMPARISON, card.comparison_rows(facts))
    print_text("", *result_lines, f"Run folder: {options.out}")


def evaluate(options: argparse.Namespace) -> None:
    """Measure a collection on its test queries: as it is, with the patch of a run, or as a store serves it."""
    saved = None if options.run is None else folder.SavedRun(Path(options.run))
    facts = {} if saved is None else saved.facts
    if facts:
        _use_settings(options, facts["settings"])
    data = tuning.read_and_prepare(_data(options), **_preparation(options))
    if facts and data.fingerprint(TEST) != facts["fingerprints"][TEST]:
        message = "these are not the test queries of the run; it may have been trained on some of them"
        warnings.warn(message, NudgeWarning, stacklevel=2)
    problem = same_model.model_mismatch(data) or same_model.model_doubt(data)
    if problem:
        warnings.warn(problem, NudgeWarning, stacklevel=2)
    documents, description, patch = _measured_documents(data, saved, options)
    test = data.queries[TEST]
    vectors = test.vectors if patch is None else patch.adapt(test.vectors)
    metrics = options.metric or list(facts.get("test", {}).get("before", USUAL))
    similarity = evaluation.similarity_for(documents, options.similarity or facts.get("similarity"))
    if options.through_index:
        similarity = "index"
        result = evaluate_index(documents, vectors, test.labels, metrics)
    else:
        if similarity == "cosine" and options.similarity is None:
            documents = _check_ranked_by_cosine(documents, data.collection.documents.store)
        result = evaluation.evaluate(
            documents, vectors, test.labels, metrics, similarity=similarity, engine=options.engine
        )
    scores = pipeline.score_facts(result)
    if options.json:
        contents = {"queries": len(result.query), "similarity": similarity, "documents": description, "test": scores}
        print_json(contents)
        return
    searched = "the store's own search" if options.through_index else f"{similarity} similarity"
    print_text(f"{data.collection.name}: {len(result.query):,} test queries, {searched}.")
    print_text(f"Documents: {description}.")
    print_text(f"Split: {data.split.description}.\n")
    columns = [Column("metric", min_width=11), Column("mean", number=True, min_width=6), Column("95% interval")]
    print_table(
        columns,
        [
            (name, f"{100 * score['mean']:.1f}", f"{100 * score['low']:.1f} to {100 * score['high']:.1f}")
            for name, score in scores.items()
        ],
    )


def inspect(options: argparse.Namespace) -> None:
    """Show the queries that gained and lost most, and the documents that moved farthest."""
    run, top = folder.SavedRun(Path(options.run)), max(0, options.top)
    facts, queries, documents = run.facts, run.queries(), run.documents()
    queries.sort(key=lambda record: record["before"] - record["after"])
    gains = [record for record in queries if record["after"] > record["before"]][:top]
    losses = [record for record in reversed(queries) if record["after"] < record["before"]][:top]
    moved = documents[:top]
    if options.json:
        print_json({"run": facts, "won": gains, "lost": losses, "moved": moved})
        return
    for title, records in (("largest gains", gains), ("largest losses", losses)):
        print_text(f"Queries with the {title} ({facts['metric']}; * marks relevant documents)")
        _print_queries(records)
        print_text("")
    print_text("Documents that moved farthest")
    _print_documents(moved)


def _measured_documents(
    data: pipeline.Prepared, saved: folder.SavedRun | None, options: argparse.Namespace
) -> tuple[Any, str, Patch | None]:
    """Return the documents to measure, what they are, and the patch of the run if they have it."""
    store = data.collection.documents.store
    if options.through_index and (store is None or options.original):
        problem = "not the original vectors" if options.original else "and needs --store URL"
        raise OptionError(f"--through-index measures what the index of a store finds, {problem}")
    if options.original or (store is None and saved is None):
        return data.documents, "the original vectors", None
    if store is None or (saved is not None and not options.through_index):
        assert saved is not None
        description = f"the original vectors with the patch of {options.run}"
        return saved.patch.over(data.documents), description, saved.patch
    status = store.status()
    if saved is not None and (status.metadata is None or status.metadata["patch"] != saved.patch.identity):
        raise OptionError(f"{store.url}: the patch of {options.run} is not applied, and its index has other vectors")
    return store, f"as the store serves them; {status}", None if saved is None else saved.patch


def _check_ranked_by_cosine(documents: Any, store: Store | None) -> Any:
    """Return documents that raise StoreError as they are read, unless their store ranks them as cosine similarity does.

    Vectors of the same length are ranked alike by all similarities.
    """
    if store is None or store.similarity not in ("dot", "l2"):
        return documents
    problem = (
        f"{store.url} uses {store.similarity} similarity, which ranks vectors of different lengths otherwise than "
        "cosine similarity: pass --through-index to measure its own search, or --similarity cosine"
    )
    return EqualLengths(documents, None, problem)


def _data(options: argparse.Namespace) -> str:
    """Return where the documents are."""
    if (options.data is None) == (options.store is None):
        raise OptionError("pass the documents either as DATA, or --store URL")
    if options.store is not None and not is_store(options.store):
        address = Address.parse(options.store)
        raise OptionError(f"--store {address} has no scheme: write lancedb:{address}, or pass a folder as DATA")
    data: str = options.data or options.store
    return data


def _preparation(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``read_and_prepare``."""
    names = ("labels", "embedder", "half_life", "cap", "document_prefix", "query_prefix", "resplit")
    return {"seed": options.seed or 0, **{name: getattr(options, name) for name in names}}


def _use_settings(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Prepare data as a run did, where the options do not say otherwise.

    A run folder may come from somebody else. A model on this machine that it names may do so too, so only the user can
    name one.
    """
    embedder = settings.get("embedder")
    if options.embedder is None and embedder is not None and names_local_model(embedder):
        raise OptionError(
            f"{options.run} asks for the embedder {embedder!r}, files on this machine: pass --embedder {embedder} if "
            "you trust them"
        )
    if options.labels is None and settings.get("labels") and options.half_life is None and options.cap is None:
        options.half_life, options.cap = settings.get("half_life"), settings.get("cap")
    for name in ("embedder", "document_prefix", "query_prefix", "labels", "seed"):
        if getattr(options, name) is None:
            setattr(options, name, settings.get(name))
    options.resplit = options.resplit or bool(settings.get("resplit"))


def _print_queries(records: list[dict[str, Any]]) -> None:
    if not records:
        print_text("none")
        return
    rows = []
    for record in records:
        lines = [shorten(record["text"] or record["id"])]
        for name, label in (("top_before", "before:"), ("top_after", "after:")):
            ids = record.get(name, [])[:_N_RESULTS]
            marked = [f"{'*' if record['labels'].get(key, 0) > 0 else ''}{key}" for key in ids]
            lines.append(f"{label:8}{', '.join(marked)}")
        rows.append((f"{record['before']:.2f}", f"{record['after']:.2f}", "\n".join(lines)))
    print_table([Column("before", number=True), Column("after", number=True), Column("query, first results")], rows)


def _print_documents(records: list[dict[str, Any]]) -> None:
    if not records:
        print_text("none")
        return
    unit = "degrees" if "degrees" in records[0] else "distance"
    columns = [Column(unit, number=True), Column("labels", number=True), Column("document"), Column("text")]
    rows = [
        (
            f"{record[unit]:.1f}" if unit == "degrees" else f"{record[unit]:.3g}",
            str(record["labels"]),
            str(record["id"]),
            shorten(record["text"] or ""),
        )
        for record in records
    ]
    print_table(columns, rows)
