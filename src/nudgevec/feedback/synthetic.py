"""Queries for documents that nobody has asked for yet, written by a language model behind any OpenAI-compatible server.

A query is kept only if its document is found with it among the first k (round trip), and if no such query is known. It
goes into the label log as ``synthetic``, which is never tested on. Each document is noted when it is done, so a run
that was stopped goes on where it was.
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
from nudgevec.feedback.log import SYNTHETIC, Event, LabelLog
from nudgevec.http import post_json, public_url
from nudgevec.text.splits import normalised

PROMPT = """Below is a document from a collection that people search. Write {n} different search queries in {language}
that somebody would type who needs exactly this document. Write them as people do: short, in their own words, not
copied from the document. One query per line, nothing else.

Document:
{document}
"""
# A token of English is about four characters; a query has about a dozen tokens.
_CHARACTERS = 4
_QUERY_TOKENS = 12
_LONGEST = 6000
_TOGETHER = 16


@dataclass(frozen=True)
class Plan:
    """What is going to be asked."""

    url: str
    model: str
    each: int = 3
    languages: Sequence[str] = ("English",)
    prompt: str = PROMPT
    top: int = 10

    def __post_init__(self) -> None:
        if "{document}" not in self.prompt:
            raise OptionError("the prompt has no place for the {document}")
        if self.each < 1 or self.top < 1 or not self.languages:
            raise OptionError("ask for at least one query per document, in one language, found among the first one")

    def text(self, document: str, language: str) -> str:
        """The prompt for one document."""
        words = {"{n}": str(self.each), "{language}": language, "{document}": document[:_LONGEST]}
        return re.sub(r"\{(n|language|document)\}", lambda found: words[found[0]], self.prompt)

    @property
    def mark(self) -> str:
        """What a document is noted under: another prompt or model asks again."""
        parts = (self.model, str(self.each), *self.languages, self.prompt)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass
class Outcome:
    """What came of it."""

    documents: int = 0
    written: int = 0
    known: int = 0
    lost: int = 0
    """Queries that did not lead back to their document."""
    kept: int = 0
    examples: list[tuple[str, str]] = field(default_factory=list)


def without_labels(log: LabelLog, ids: Sequence[str], plan: Plan) -> list[int]:
    """The documents nobody has asked for, and that are not done yet."""
    weights = log.signals
    asked = {event.document for event in log if event.value * weights[event.signal] > 0}
    done = log.done(plan.mark)
    return [place for place, key in enumerate(ids) if key not in asked and key not in done]


def estimate(plan: Plan, texts: Sequence[str]) -> dict[str, int]:
    """Requests and tokens of a plan, roughly."""
    asked = [len(plan.text(text, language)) for text in texts for language in plan.languages]
    return {
        "requests": len(asked),
        "input_tokens": sum(asked) // _CHARACTERS,
        "output_tokens": len(asked) * plan.each * _QUERY_TOKENS,
    }


def synthesize(
    plan: Plan,
    log: LabelLog,
    ids: Sequence[str],
    texts: Sequence[str],
    vectors: Array,
    embed: Callable[[list[str]], Array],
    chosen: Sequence[int],
) -> Outcome:
    """Ask for queries for the chosen documents, and log those that hold."""
    outcome = Outcome()
    known = {normalised(event.query) for event in log}
    usable = np.flatnonzero(vectors.any(axis=1))
    reader = Reader(ArrayCorpus(vectors[usable]))

    def keep(pairs: list[tuple[int, str]], asked: list[int]) -> None:
        """Log what holds of the answers."""
        outcome.documents += len(asked)
        outcome.written += len(pairs)
        fresh = []
        for place, query in pairs:
            if normalised(query) in known:
                outcome.known += 1
                continue
            known.add(normalised(query))
            fresh.append((place, query))
        kept = _round_trip(fresh, reader, usable, embed, plan.top)
        outcome.lost += len(fresh) - len(kept)
        outcome.kept += len(kept)
        outcome.examples += [(ids[place], query) for place, query in kept[:1]]
        now = time.time()
        events = [Event(query, ids[place], SYNTHETIC, time=now, source=SYNTHETIC) for place, query in kept]
        log.extend(events, done=(plan.mark, [ids[place] for place in asked]))

    with progress.bar("asking for queries", len(chosen)) as bar:
        for start in range(0, len(chosen), _TOGETHER):
            pairs: list[tuple[int, str]] = []
            asked: list[int] = []
            try:
                for place in chosen[start : start + _TOGETHER]:
                    pairs += [(place, query) for query in _ask(plan, texts[place])]
                    asked.append(place)
                    bar.update()
            finally:
                # Answers were paid for: whatever stops us, they are kept.
                keep(pairs, asked)
    return outcome


def _ask(plan: Plan, document: str) -> Iterator[str]:
    for language in plan.languages:
        messages = [{"role": "user", "content": plan.text(document, language)}]
        answer = post_json(f"{plan.url.rstrip('/')}/chat/completions", {"model": plan.model, "messages": messages})
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            content = None
        if not isinstance(content, str):
            raise RemoteError(f"{public_url(plan.url)} did not answer with a message: {str(answer)[:200]}")
        yield from _lines(content)[: plan.each]


def _lines(content: str) -> list[str]:
    """The queries of an answer: a line each, without the numbers, dashes and quotes models like to add."""
    bare = (re.sub(r"^\s*(?:(?:[-*•]|\d+[.)])\s+)?", "", line) for line in content.splitlines())
    return [query for line in bare if (query := line.strip().strip("\"“”'").strip())]


def _round_trip(
    pairs: list[tuple[int, str]], reader: Reader, usable: Array, embed: Callable[[list[str]], Array], top: int
) -> list[tuple[int, str]]:
    """The pairs whose query finds its document among the first ``top``."""
    if not pairs:
        return []
    vectors = embed([query for _, query in pairs])
    real = np.flatnonzero(vectors.any(axis=1))
    if len(real) == 0:
        return []
    queries = scaled_queries(vectors[real])
    engine = pick("auto", float(len(real)) * reader.rows * reader.dim)
    best = engine.top_k(reader.blocks(cosine=True), queries, min(top, reader.rows), cosine=True)
    found = usable[best.rows]
    return [pairs[place] for place, rows in zip(real.tolist(), found, strict=True) if pairs[place][0] in rows]
