"""What ``nudgevec synthesize`` does."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from nudgevec.errors import InputError
from nudgevec.feedback.log import LabelLog
from nudgevec.feedback.synthetic import PROMPT, Plan, estimate, synthesize, without_labels
from nudgevec.text import readers
from nudgevec.text.embedders import embed_texts, embedder


def main(options: argparse.Namespace) -> None:
    """Plan, say what it costs, and do it."""
    documents = readers.documents(options.data)
    if documents.texts is None:
        raise InputError("a language model needs texts, and these documents are vectors")
    plan = Plan(
        options.llm,
        options.model,
        options.per_document,
        tuple(options.language or ["English"]),
        PROMPT if options.prompt is None else _prompt(Path(options.prompt)),
        options.top,
    )
    with LabelLog(options.labels) as log:
        chosen = without_labels(log, documents.ids, plan)[: options.limit]
        expected = estimate(plan, [documents.texts[place] for place in chosen])
        cost = None
        if options.price:
            cost = (expected["input_tokens"] * options.price[0] + expected["output_tokens"] * options.price[1]) / 1e6
        if options.dry_run:
            _say_plan(options, len(chosen), expected, cost)
            return
        model = embedder(options.embedder)
        vectors = embed_texts(model, documents.texts, model.prefixes[0], "documents")
        outcome = synthesize(
            plan,
            log,
            documents.ids,
            documents.texts,
            vectors,
            lambda texts: embed_texts(model, texts, model.prefixes[1], "queries"),
            chosen,
        )
    if options.json:
        print(json.dumps(asdict(outcome), ensure_ascii=False))
        return
    print(
        f"{outcome.documents:,} documents, {outcome.written:,} queries written: {outcome.kept:,} kept, "
        f"{outcome.lost:,} did not find their document in the top {plan.top}, {outcome.known:,} were known"
    )
    for document, query in outcome.examples[:3]:
        print(f"  {query}  ->  {document}")


def _say_plan(options: argparse.Namespace, count: int, expected: dict[str, int], cost: float | None) -> None:
    if options.json:
        print(json.dumps({"documents": count, **expected, "cost": cost}))
        return
    price = "" if cost is None else f", about {cost:.2f} in your currency"
    print(
        f"{count:,} documents without labels: {expected['requests']:,} requests, about {expected['input_tokens']:,} "
        f"tokens there and {expected['output_tokens']:,} back{price}. Nothing was asked."
    )


def _prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"the prompt cannot be read: {error}") from None
