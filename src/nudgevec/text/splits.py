"""Which side a query is on: training, validation or test, for ever.

The side follows from a hash of the query's normalised text (or its id, where there is no text) and a seed. It does
not depend on what else is in the collection, on its order or on the machine; and two spellings of one query are
on one side, so nothing that was trained on can be tested.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass

from nudgevec.errors import LabelError
from nudgevec.text.collection import Collection, Qrels

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SIDES = (TRAIN, VALIDATION, TEST)
# The paper's shares and limits.
_SHARES = {TRAIN: 0.7, VALIDATION: 0.1, TEST: 0.2}
_MOST = {VALIDATION: 10_000, TEST: 10_000}


def normalised(text: str) -> str:
    """The text without what people vary: case, spaces, Unicode forms.

    >>> normalised("  Ｃafe\u0301  au LAIT ")
    'café au lait'
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def place(key: str, seed: int = 0) -> float:
    """A number from 0 to 1 that belongs to this key: the same everywhere, as good as random.

    >>> round(place("what is a vector"), 3)
    0.732
    """
    digest = hashlib.sha256(f"{seed}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


def side(key: str, seed: int = 0) -> str:
    """The side of a normalised query in the paper's 0.7 / 0.1 / 0.2."""
    at = place(key, seed)
    return TRAIN if at < _SHARES[TRAIN] else VALIDATION if at < _SHARES[TRAIN] + _SHARES[VALIDATION] else TEST


@dataclass(frozen=True)
class Split:
    """The judgements of each side, and how they came there."""

    qrels: dict[str, Qrels]
    how: str

    def __getitem__(self, name: str) -> Qrels:
        return self.qrels[name]


def split(collection: Collection, seed: int = 0, given: bool = True) -> Split:
    """The sides of a collection: those it comes with, or the paper's where it has none.

    A collection with training and test judgements but no validation gives an eighth of its training queries to
    validation. Queries that are on two sides in other spellings are taken out of training, then of validation.
    """
    keys = _keys(collection)
    sides = collection.qrels
    if given and TRAIN in sides and TEST in sides:
        how = "as given" if collection.labels is None else f"0.7 / 0.1 / 0.2 by a hash of the query (seed {seed})"
        parts = {name: dict(sides.get(name, {})) for name in SIDES}
        if sides.get("all"):
            how += f", {len(sides['all']):,} queries of other files left out"
        if not parts[VALIDATION] and collection.labels is None:
            how = f"as given, an eighth of train for validation (seed {seed})"
            held = {query for query in parts[TRAIN] if place(keys[query], seed) < _SHARES[VALIDATION] / 0.8}
            parts[VALIDATION] = {query: grades for query, grades in parts[TRAIN].items() if query in held}
        taken: set[str] = set()
        for name in reversed(SIDES):
            parts[name] = {query: grades for query, grades in parts[name].items() if keys[query] not in taken}
            taken |= {keys[query] for query in parts[name]}
    else:
        how = f"0.7 / 0.1 / 0.2 by a hash of the query (seed {seed})"
        parts = {name: {} for name in SIDES}
        for query, grades in collection.judged.items():
            parts[side(keys[query], seed)][query] = grades
    for name, most in _MOST.items():
        if len(parts[name]) > most:
            first = sorted(parts[name], key=lambda query: (place(keys[query], seed + 1), query))[:most]
            parts[name] = {query: parts[name][query] for query in first}
    empty = [name for name in SIDES if not parts[name]]
    if empty:
        raise LabelError(
            f"{collection.where}: {len(collection.judged)} judged queries are too few to split: "
            f"none is left for {' and '.join(empty)}"
        )
    return Split(parts, how)


def _keys(collection: Collection) -> dict[str, str]:
    queries = collection.queries
    if queries.texts is None:
        return {key: key for key in queries.ids}
    return {key: normalised(text) for key, text in zip(queries.ids, queries.texts, strict=True)}
