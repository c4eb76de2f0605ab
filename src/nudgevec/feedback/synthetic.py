"""Queries for documents without labels, written by a language model on an OpenAI-compatible server.

A query is kept if it is new and retrieves its document among the first k results (a round trip). It is logged with the
signal ``synthetic``, which is never tested on. Completed documents are marked in the log, so that an interrupted run
can be resumed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nudgevec import progress
from nudgevec.arrays import Array
from nudgevec.core.exact import scaled_queries
from nudgevec.corpus import ArrayCorpus, Reader
from nudgevec.engines import pick
from nudgevec.errors import OptionError, RemoteError
from nudgevec.feedback.event import Event, is_usable
from nudgevec.feedback.log import SYNTHETIC, LabelLog
from nudgevec.http import check_server, excerpt, post_json, public_url
from nudgevec.text.collection import without_surrogates
from nudgevec.text.splits import normalise

PROMPT = """Below is a document from a collection that people search. Write {n} different search queries in {language}
that somebody would type who needs exactly this document. Write them as people do: short, in their own words, not
copied from the document. One query per line, nothing else.

Document:
{document}
"""
BATCH_SIZE = 16
"""Number of documents whose queries are checked and logged together."""

# Rough figures for the estimate of costs: English has about four characters per token, a query about twelve tokens.
_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_QUERY = 12
_MAX_CHARACTERS = 6000


@dataclass(frozen=True)
class Plan:
    """What to request from the language model.

    Attributes
    ----------
    url : str
        Address of the server, for example ``http://localhost:8000/v1``.
    model : str
        Name of the model.
    per_document : int
        Number of queries per document and language.
    languages : sequence of str
    prompt : str
        Template with ``{document}``, and optionally ``{n}`` and ``{language}``.
    top : int
        A query is kept if its document is among this many first results.
    """

    url: str
    model: str
    per_document: int = 3
    languages: Sequence[str] = ("English",)
    prompt: str = PROMPT
    top: int = 10

    def __post_init__(self) -> None:
        check_server(self.url, "the address of the language model (--llm)")
        if "{document}" not in self.prompt:
            raise OptionError("the prompt has no placeholder {document}")
        if self.per_document < 1 or self.top < 1 or not self.languages:
            raise OptionError("the number of queries per document, of languages and of results must be at least 1")

    def prompt_for(self, document: str, language: str) -> str:
        """Fill the template for one document."""
        values = {"{n}": str(self.per_document), "{language}": language, "{document}": document[:_MAX_CHARACTERS]}
        return re.sub(r"\{(n|language|document)\}", lambda match: values[match[0]], self.prompt)

    @property
    def task(self) -> str:
        """Identifies completed documents in the log; another prompt or model is another task."""
        parts = (self.model, str(self.per_document), *self.languages, self.prompt)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass
class Outcome:
    """Counts of a run of ``synthesize``.

    Attributes
    ----------
    documents : int
        Documents that were sent to the model.
    written : int
        Queries that the model wrote: the sum of ``known``, ``lost`` and ``kept``.
    known : int
        Queries that were in the log already, or were written twice.
    lost : int
        Queries that do not retrieve their document.
    kept : int
        Queries that were added to the log.
    examples : list of (str, str)
        Documents with one of their queries.
    """

    documents: int = 0
    written: int = 0
    known: int = 0
    lost: int = 0
    kept: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)


def documents_without_labels(log: LabelLog, ids: Sequence[str], plan: Plan) -> list[int]:
    """Return the rows of documents that have no positive event and are not completed yet."""
    weights = log.weights
    labelled = {
        event.document for event in log if is_usable(event, weights) and event.value * weights[event.signal] > 0
    }
    completed = log.completed(plan.task)
    return [row for row, key in enumerate(ids) if key not in labelled and key not in completed]


def estimate(plan: Plan, texts: Sequence[str]) -> dict[str, int]:
    """Estimate the number of requests and tokens for these documents."""
    lengths = [len(plan.prompt_for(text, language)) for text in texts for language in plan.languages]
    return {
        "requests": len(lengths),
        "input_tokens": sum(lengths) // _CHARACTERS_PER_TOKEN,
        "output_tokens": len(lengths) * plan.per_document * _TOKENS_PER_QUERY,
    }


def synthesize(
    plan: Plan,
    log: LabelLog,
    ids: Sequence[str],
    texts: Sequence[str],
    vectors: Array,
    embed: Callable[[list[str]], Array],
    rows: Sequence[int],
) -> Outcome:
    """Request queries for some documents, and log the queries that pass the round trip.

    Parameters
    ----------
    plan : Plan
    log : LabelLog
    ids, texts, vectors : sequences
        All documents of the collection.
    embed : callable
        Returns the vectors of queries.
    rows : sequence of int
        The documents to request queries for.
    """
    outcome = Outcome()
    known = {normalise(event.query) for event in log}
    non_zero = np.flatnonzero(vectors.any(axis=1))
    reader = Reader(ArrayCorpus(vectors[non_zero]))

    def keep(pairs: list[tuple[int, str]], completed: list[int]) -> None:
        outcome.documents += len(completed)
        outcome.written += len(pairs)
        new = []
        for row, query in pairs:
            if normalise(query) in known:
                outcome.known += 1
                continue
            known.add(normalise(query))
            new.append((row, query))
        kept = _round_trip(new, reader, non_zero, embed, plan.top)
        outcome.lost += len(new) - len(kept)
        outcome.kept += len(kept)
        outcome.examples += [(ids[row], query) for row, query in kept[:1]]
        now = time.time()
        events = [Event(query, ids[row], SYNTHETIC, time=now, source=SYNTHETIC) for row, query in kept]
        log.extend(events, completed=(plan.task, [ids[row] for row in completed]))

    with progress.bar("requesting queries", len(rows)) as bar:
        for start in range(0, len(rows), BATCH_SIZE):
            pairs: list[tuple[int, str]] = []
            completed: list[int] = []
            try:
                for row in rows[start : start + BATCH_SIZE]:
                    pairs += [(row, query) for query in _request_queries(plan, texts[row])]
                    completed.append(row)
                    bar.update()
            finally:
                # Requests cost money: whatever interrupts the run, their results are kept.
                keep(pairs, completed)
    return outcome


def _request_queries(plan: Plan, document: str) -> Iterator[str]:
    for language in plan.languages:
        messages = [{"role": "user", "content": plan.prompt_for(document, language)}]
        response = post_json(f"{plan.url.rstrip('/')}/chat/completions", {"model": plan.model, "messages": messages})
        try:
            content = response["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            content = None
        if not isinstance(content, str):
            raise RemoteError(f"{public_url(plan.url)} sent a response without a message: {excerpt(response)}")
        yield from _parse_queries(content)[: plan.per_document]


def _parse_queries(content: str) -> list[str]:
    """Return the queries of a response, one per line, without the numbers, bullets and quotes that models add."""
    lines = without_surrogates(content).splitlines()
    lines = [re.sub(r"^\s*(?:(?:[-*•]|\d+[.)])\s+)?", "", line) for line in lines]
    return [query for line in lines if (query := line.strip().strip("\"“”'").strip())]


def _round_trip(
    pairs: list[tuple[int, str]], reader: Reader, rows: Array, embed: Callable[[list[str]], Array], top: int
) -> list[tuple[int, str]]:
    """Return the pairs whose query retrieves its document; ``rows`` are those of the documents in the reader."""
    if not pairs:
        return []
    vectors = embed([query for _, query in pairs])
    non_zero = np.flatnonzero(vectors.any(axis=1))
    if len(non_zero) == 0:
        return []
    queries = scaled_queries(vectors[non_zero])
    engine = pick("auto", float(len(non_zero)) * reader.n_rows * reader.dim)
    best = engine.top_k(reader.blocks(cosine=True), queries, min(top, reader.n_rows), cosine=True)
    retrieved = rows[best.rows]
    return [pairs[i] for i, found in zip(non_zero.tolist(), retrieved, strict=True) if pairs[i][0] in found]
