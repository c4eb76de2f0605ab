"""The command ``synthesize``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from nudgevec.cli.output import print_json, print_text
from nudgevec.errors import InputError
from nudgevec.feedback import synthetic
from nudgevec.feedback.log import LabelLog
from nudgevec.text import readers
from nudgevec.text.embedders import embed_texts, make_embedder


def synthesize(options: argparse.Namespace) -> None:
    """Request queries for documents without labels, or estimate what that costs."""
    documents = readers.read_documents(options.data)
    if documents.texts is None:
        raise InputError("a language model needs texts, but these documents are vectors")
    plan = synthetic.Plan(
        options.llm,
        options.model,
        options.per_document,
        tuple(options.language or ["English"]),
        synthetic.PROMPT if options.prompt is None else _read_prompt(Path(options.prompt)),
        options.top,
    )
    with LabelLog(options.labels) as log:
        rows = synthetic.documents_without_labels(log, documents.ids, plan)[: options.limit]
        if options.dry_run:
            expected = synthetic.estimate(plan, [documents.texts[row] for row in rows])
            _print_estimate(options, len(rows), expected)
            return
        model = make_embedder(options.embedder)
        vectors = embed_texts(model, documents.texts, model.prefixes[0], "documents")
        outcome = synthetic.synthesize(
            plan,
            log,
            documents.ids,
            documents.texts,
            vectors,
            lambda texts: embed_texts(model, texts, model.prefixes[1], "queries"),
            rows,
        )
    if options.json:
        print_json(asdict(outcome), indent=None)
        return
    print_text(
        f"{outcome.documents:,} documents, {outcome.written:,} queries written: {outcome.kept:,} kept, "
        f"{outcome.lost:,} do not find their document in the top {plan.top}, {outcome.known:,} already known"
    )
    for document, query in outcome.examples[:3]:
        print_text(f"  {query}  ->  {document}")


def _print_estimate(options: argparse.Namespace, n_documents: int, expected: dict[str, int]) -> None:
    cost = None
    if options.price:
        cost = (expected["input_tokens"] * options.price[0] + expected["output_tokens"] * options.price[1]) / 1e6
    if options.json:
        print_json({"documents": n_documents, **expected, "cost": cost}, indent=None)
        return
    price = "" if cost is None else f", about {cost:.2f} in the currency of --price"
    print_text(
        f"{n_documents:,} documents without labels: {expected['requests']:,} requests with about "
        f"{expected['input_tokens']:,} input and {expected['output_tokens']:,} output tokens{price}. "
        "No request was sent."
    )


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read the prompt: {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the prompt {path} is not UTF-8: {error}") from None
