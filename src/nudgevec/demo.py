"""The demo: emoji search. Documents are emoji names, queries are keywords people use for them.

70% of the keywords pull, 10% choose the step, and the numbers printed are for the remaining 20%,
which the tuner never sees. Everything runs on the CPU from data and weights that are installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, Ints
from nudgevec.evaluation import Comparison, Evaluation, compare_all, evaluate
from nudgevec.metrics import USUAL
from nudgevec.runs.card import table
from nudgevec.text.embedders import static
from nudgevec.tuners import NudgeN


@dataclass(frozen=True)
class EmojiSearch:
    """The demo's data, embedded and split."""

    emoji: list[str]
    names: list[str]
    keywords: list[str]
    answers: list[list[int]]
    documents: Array
    queries: Array
    train: Ints
    validation: Ints
    test: Ints

    def part(self, chosen: Ints) -> tuple[Array, list[list[int]]]:
        """Query vectors and labels of some keywords, as the tuner takes them."""
        return self.queries[chosen], [self.answers[number] for number in chosen]


def load(embed: Callable[[list[str]], npt.NDArray[np.float32]] = static.embed, seed: int = 0) -> EmojiSearch:
    """Read the data that comes with the package, embed it, and split the keywords 70/10/20.

    Keywords that the embedder cannot tell apart ("t-shirt", "t shirt") go to one side together.
    """
    data = json.loads(files("nudgevec").joinpath("data/emoji.json").read_text(encoding="utf-8"))
    keywords, answers = list(data["keywords"]), list(data["keywords"].values())
    queries = embed(keywords)
    _, group = np.unique(queries, axis=0, return_inverse=True)
    place = np.random.default_rng(seed).permutation(group.max() + 1)[group] / (group.max() + 1)
    known = queries.any(axis=1)
    return EmojiSearch(
        emoji=data["emoji"],
        names=data["names"],
        keywords=keywords,
        answers=answers,
        documents=embed(data["names"]),
        queries=queries,
        train=np.flatnonzero(known & (place < 0.7)),
        validation=np.flatnonzero(known & (place >= 0.7) & (place < 0.8)),
        test=np.flatnonzero(known & (place >= 0.8)),
    )


@dataclass(frozen=True)
class Outcome:
    """The demo's search before and after."""

    search: EmojiSearch
    tuner: NudgeN
    tuned: Array
    before: Evaluation
    after: Evaluation
    seconds: float

    @property
    def changes(self) -> dict[str, Comparison]:
        """What became of each metric."""
        return compare_all(self.before, self.after)


def tune() -> Outcome:
    """Load, tune, and measure on keywords that were kept aside."""
    search = load()
    began = time.perf_counter()
    tuner = NudgeN(metric="ndcg@10").fit(
        search.documents, train=search.part(search.train), validation=search.part(search.validation)
    )
    took = time.perf_counter() - began
    tuned = tuner.transform(search.documents)
    before, after = (
        evaluate(documents, *search.part(search.test), USUAL, similarity=tuner.similarity)
        for documents in (search.documents, tuned)
    )
    return Outcome(search, tuner, tuned, before, after, took)


def facts(queries: list[str]) -> dict[str, Any]:
    """What the demo finds out, for programs."""
    done = tune()
    return {
        "documents": len(done.search.emoji),
        "queries": {side: len(getattr(done.search, side)) for side in ("train", "validation", "test")},
        "gamma": done.tuner.gamma_,
        "moved": len(done.tuner.patch_),
        "seconds": done.seconds,
        "test": {
            name: {"before": c.before, "after": c.after, "change": c.change, "low": c.low, "high": c.high}
            for name, c in done.changes.items()
        },
        "searches": {keyword: list(side_by_side(done.search, done.tuned, keyword)) for keyword in queries},
    }


def run(queries: list[str], out: TextIO, ask: TextIO | None = None) -> None:
    """Tune, print the table, then show searches: the given ones, or examples and a prompt."""
    done = tune()
    search, tuner, tuned, changes = done.search, done.tuner, done.tuned, done.changes
    print(
        f"Emoji search: {len(search.emoji)} emoji by name, {len(search.keywords)} keywords.\n"
        f"{len(search.train)} keywords pull, {len(search.validation)} choose the step, "
        f"{len(search.test)} are kept aside for the numbers below.\n",
        file=out,
    )
    for line in table((name, c.before, c.after, c.change, c.low, c.high) for name, c in changes.items()):
        print(line, file=out)
    total = changes[USUAL[0]]
    print(
        f"\nNUDGE-N moved {len(tuner.patch_)} of {len(search.emoji)} vectors by at most "
        f"{np.degrees(tuner.patch_.distance.max(initial=0.0)):.0f} degrees "
        f"(gamma {tuner.gamma_:.3f}) in {done.seconds:.2f} s.\n"
        f"{USUAL[0]} of unseen keywords: {total.wins} better, {total.losses} worse, {total.ties} the same "
        f"(p = {total.p_value:.4f}).",
        file=out,
    )
    for keyword in queries or _examples(search, done.before, done.after):
        print(file=out)
        for line in side_by_side(search, tuned, keyword):
            print(line, file=out)
    if ask is not None and not queries:
        print("\nType a keyword (empty line to stop).", file=out)
        for typed in iter(lambda: _read(ask, out), ""):
            for line in side_by_side(search, tuned, typed):
                print(line, file=out)


def side_by_side(search: EmojiSearch, tuned: Array, keyword: str, top: int = 5) -> Iterator[str]:
    """The best emoji for a keyword before and after; a star marks those that carry it."""
    keyword = " ".join(keyword.lower().split())
    query = static.embed([keyword])[0]
    if not query.any():
        yield f"“{keyword}”: no word of it is known to the embedder"
        return
    place = search.keywords.index(keyword) if keyword in search.keywords else None
    right = set() if place is None else set(search.answers[place])
    if place is None:
        seen = "not in the data"
    else:
        seen = "kept aside" if place in set(search.test.tolist()) else "used for tuning"
    yield f"“{keyword}” ({seen})"
    columns = []
    for documents in (search.documents, tuned):
        best = np.argsort(-(documents @ query), kind="stable")[:top]
        columns.append([(" *"[row in right], search.emoji[row], _short(search.names[row])) for row in best.tolist()])
    yield f"    {'before':38}after"
    for (star, emoji, name), (new_star, new_emoji, new_name) in zip(*columns, strict=True):
        yield f"  {star} {emoji} {name:33}{new_star} {new_emoji} {new_name}"


def _short(name: str, width: int = 30) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _examples(search: EmojiSearch, before: Evaluation, after: Evaluation) -> list[str]:
    """Unseen keywords: two of those that gained most and one that lost most, drawn where several are level."""
    change = after[USUAL[0]].per_query - before[USUAL[0]].per_query
    order = np.lexsort((np.random.default_rng(0).permutation(len(change)), -change))
    return [search.keywords[search.test[before.query[number]]] for number in (order[0], order[1], order[-1])]


def _read(ask: TextIO, out: TextIO) -> str:
    print("> ", end="", file=out, flush=True)
    return ask.readline().strip()


def main(queries: list[str]) -> None:
    """What ``nudgevec demo`` does."""
    run(queries, sys.stdout, sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None)
