"""The demo: emoji search, where documents are the names of emoji and queries are keywords.

70% of the keywords are for training and 10% for validation. The printed figures are for the other 20%, the test
keywords. Data and weights are installed with the package, and everything runs on the CPU.
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
from nudgevec.tables import COMPARISON, comparison_row, print_table
from nudgevec.text.embedders import static
from nudgevec.tuners import Nudge, NudgeN


@dataclass(frozen=True)
class EmojiSearch:
    """The data of the demo, embedded and split.

    Attributes
    ----------
    emoji, names : list of str
        The emoji and their names; the names are the documents.
    keywords : list of str
        The queries.
    relevant : list of list of int
        For each keyword, the rows of its emoji.
    documents, queries : array
        One vector per name and per keyword.
    train, validation, test : array of int
        Rows of the keywords of each split.
    """

    emoji: list[str]
    names: list[str]
    keywords: list[str]
    relevant: list[list[int]]
    documents: Array
    queries: Array
    train: Ints
    validation: Ints
    test: Ints

    def part(self, rows: Ints) -> tuple[Array, list[list[int]]]:
        """Return the query vectors and labels of some keywords, in the form that tuners and ``evaluate`` take."""
        return self.queries[rows], [self.relevant[row] for row in rows]


@dataclass(frozen=True)
class Outcome:
    """The tuned demo.

    Attributes
    ----------
    search : EmojiSearch
    tuner : Nudge
        The fitted tuner.
    tuned : array
        Document vectors after tuning.
    before, after : Evaluation
        Quality on the test keywords.
    seconds : float
        Time of ``fit``.
    """

    search: EmojiSearch
    tuner: Nudge
    tuned: Array
    before: Evaluation
    after: Evaluation
    seconds: float

    @property
    def changes(self) -> dict[str, Comparison]:
        """Comparison of before and after, by metric."""
        return compare_all(self.before, self.after)


def load(embed: Callable[[list[str]], npt.NDArray[np.float32]] = static.embed, seed: int = 0) -> EmojiSearch:
    """Load the emoji data, embed it, and split the keywords 70/10/20.

    Parameters
    ----------
    embed : callable
        Returns one vector per text; the static embedder by default.
    seed : int
        Seed of the split.

    Returns
    -------
    EmojiSearch
        Keywords with the same vector ("t-shirt", "t shirt") are in the same split; keywords without a known token are
        in none.

    Raises
    ------
    MissingExtraError
        If the static embedder is not installed.

    Examples
    --------
    >>> search = load()
    >>> search.documents.shape
    (1914, 256)
    >>> vectors, labels = search.part(search.test)
    >>> len(vectors) == len(labels) == len(search.test)
    True
    """
    data = json.loads(files("nudgevec").joinpath("data/emoji.json").read_text(encoding="utf-8"))
    keywords, relevant = list(data["keywords"]), list(data["keywords"].values())
    queries = embed(keywords)
    _, group = np.unique(queries, axis=0, return_inverse=True)
    n_groups = group.max() + 1
    fraction = np.random.default_rng(seed).permutation(n_groups)[group] / n_groups
    known = queries.any(axis=1)
    return EmojiSearch(
        emoji=data["emoji"],
        names=data["names"],
        keywords=keywords,
        relevant=relevant,
        documents=embed(data["names"]),
        queries=queries,
        train=np.flatnonzero(known & (fraction < 0.7)),
        validation=np.flatnonzero(known & (fraction >= 0.7) & (fraction < 0.8)),
        test=np.flatnonzero(known & (fraction >= 0.8)),
    )


def tune() -> Outcome:
    """Load and tune the demo, and measure on the test keywords."""
    search = load()
    # The first fit after installation compiles the loops, which is not the time that a fit takes.
    NudgeN(gamma=0.1).fit(search.documents, train=search.part(search.train), test=search.part(search.validation))
    start = time.perf_counter()
    tuner = Nudge(metric="ndcg@10").fit(
        search.documents, train=search.part(search.train), validation=search.part(search.validation)
    )
    seconds = time.perf_counter() - start
    tuned = tuner.transform(search.documents)
    before, after = (
        evaluate(documents, *search.part(search.test), USUAL, similarity=tuner.similarity)
        for documents in (search.documents, tuned)
    )
    return Outcome(search, tuner, tuned, before, after, seconds)


def facts(keywords: list[str]) -> dict[str, Any]:
    """Return the figures of the demo, and searches for some keywords, for JSON."""
    outcome = tune()
    search = outcome.search
    return {
        "documents": len(search.emoji),
        "queries": {split: len(getattr(search, split)) for split in ("train", "validation", "test")},
        "gamma": outcome.tuner.gamma_,
        "moved": len(outcome.tuner.patch_),
        "seconds": outcome.seconds,
        "test": {
            name: {"before": c.before, "after": c.after, "change": c.change, "low": c.low, "high": c.high}
            for name, c in outcome.changes.items()
        },
        "searches": {keyword: list(side_by_side(search, outcome.tuned, keyword)) for keyword in keywords},
    }


def main(keywords: list[str]) -> None:
    """Run the demo on standard output; on a terminal without keywords, prompt for some."""
    run(keywords, sys.stdout, sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None)


def run(keywords: list[str], out: TextIO, prompt: TextIO | None = None) -> None:
    """Tune and print the result, then searches for the keywords, or for examples and what ``prompt`` sends."""
    outcome = tune()
    _print_result(outcome, out)
    for keyword in keywords or _examples(outcome):
        print("", *side_by_side(outcome.search, outcome.tuned, keyword), sep="\n", file=out)
    if prompt is not None and not keywords:
        print("\nType a keyword (empty line to stop).", file=out)
        for typed in iter(lambda: _read_line(prompt, out), ""):
            print(*side_by_side(outcome.search, outcome.tuned, typed), sep="\n", file=out)


def side_by_side(search: EmojiSearch, tuned: Array, keyword: str, top: int = 5) -> Iterator[str]:
    """Yield the lines of a search before and after tuning; a star marks emoji labelled with the keyword."""
    keyword = " ".join(keyword.lower().split())
    query = static.embed([keyword])[0]
    if not query.any():
        yield f"“{keyword}”: the embedder knows no word of it"
        return
    row = search.keywords.index(keyword) if keyword in search.keywords else None
    relevant = set() if row is None else set(search.relevant[row])
    origin = "not in the data"
    if row is not None:
        origin = "test keyword" if row in set(search.test.tolist()) else "used for tuning"
    yield f"“{keyword}” ({origin})"
    columns = []
    for documents in (search.documents, tuned):
        best = np.argsort(-(documents @ query), kind="stable")[:top].tolist()
        columns.append([(" *"[i in relevant], search.emoji[i], _shorten(search.names[i])) for i in best])
    yield f"    {'before':38}after"
    for (star, emoji, name), (new_star, new_emoji, new_name) in zip(*columns, strict=True):
        yield f"  {star} {emoji} {name:33}{new_star} {new_emoji} {new_name}"


def _print_result(outcome: Outcome, out: TextIO) -> None:
    search, tuner, changes = outcome.search, outcome.tuner, outcome.changes
    print(
        f"Emoji search: {len(search.emoji):,} emoji by name, {len(search.keywords):,} keywords.\n"
        f"{len(search.train):,} training, {len(search.validation):,} validation and {len(search.test):,} test "
        "keywords; the figures are for the test keywords.\n",
        file=out,
    )
    print_table(COMPARISON, (comparison_row(name, *_figures(change)) for name, change in changes.items()), out)
    main_change = changes[USUAL[0]]
    print(
        f"\nNudge moved {len(tuner.patch_):,} of {len(search.emoji):,} vectors by at most "
        f"{np.degrees(tuner.patch_.distance.max(initial=0.0)):.0f} degrees, by a map (sigma {tuner.sigma_:g}) and a "
        f"step (gamma {tuner.gamma_:.3f}), in {outcome.seconds:.2f} s.\n"
        f"{USUAL[0]} of the test keywords: {main_change.wins} better, {main_change.losses} worse, "
        f"{main_change.ties} unchanged (p = {main_change.p_value:.4f}).",
        file=out,
    )


def _figures(change: Comparison) -> tuple[float, float, float, float, float]:
    return change.before, change.after, change.change, change.low, change.high


def _examples(outcome: Outcome) -> list[str]:
    """Return two test keywords with the largest gains and one with the largest loss; ties are broken at random."""
    change = outcome.after[USUAL[0]].per_query - outcome.before[USUAL[0]].per_query
    order = np.lexsort((np.random.default_rng(0).permutation(len(change)), -change))
    rows = outcome.search.test[outcome.before.query[order[[0, 1, -1]]]]
    return [outcome.search.keywords[row] for row in rows.tolist()]


def _shorten(name: str, width: int = 30) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _read_line(prompt: TextIO, out: TextIO) -> str:
    print("> ", end="", file=out, flush=True)
    return prompt.readline().strip()
