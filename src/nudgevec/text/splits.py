"""Train, validation and test splits of queries.

A hash of the query's normalised text (or of its id, where there is no text) and a seed decides on the split. Other
queries, their order and the machine have no influence, so a query keeps its split when the collection grows. Spellings
of one query share a split, so no test query is trained on.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from nudgevec.errors import LabelError
from nudgevec.text.collection import Collection, Qrels

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)
# The shares and the largest sizes of the NUDGE paper.
_SHARES = {TRAIN: 0.7, VALIDATION: 0.1, TEST: 0.2}
MAX_QUERIES = {VALIDATION: 10_000, TEST: 10_000}


@dataclass(frozen=True)
class Split:
    """The labels of each split.

    Attributes
    ----------
    qrels : dict of str to Qrels
        Labels by split, "train", "validation" and "test".
    description : str
        How the split was made.
    """

    qrels: dict[str, Qrels]
    description: str

    def __getitem__(self, name: str) -> Qrels:
        return self.qrels[name]


def split(
    collection: Collection, seed: int = 0, use_given: bool = True, *, max_queries: Mapping[str, int] = MAX_QUERIES
) -> Split:
    """Split the labelled queries of a collection into train, validation and test.

    Parameters
    ----------
    collection : Collection
    seed : int
        Seed of the hash.
    use_given : bool
        Keep the split of a collection that has train and test labels. If it has no validation labels, an eighth of its
        training queries becomes the validation split. A query that is in two splits in different spellings is removed
        from train first, then from validation.
    max_queries : dict of str to int
        The largest number of queries of a split; by default 10,000 for validation and for test.

    Returns
    -------
    Split
        The given split, or 0.7 / 0.1 / 0.2 of the queries by hash.

    Raises
    ------
    LabelError
        If no query is left for one of the splits.

    Examples
    --------
    >>> from nudgevec.text.collection import Items, make_collection
    >>> queries = Items([f"q{i}" for i in range(100)], texts=[f"query number {i}" for i in range(100)])
    >>> labels = {"all": {query: {"d": 1.0} for query in queries.ids}}
    >>> parts = split(make_collection("demo", Items(["d"], texts=["text"]), queries, labels, "demo"))
    >>> [len(parts[name]) for name in ("train", "validation", "test")]
    [68, 13, 19]
    >>> parts.description
    '0.7 / 0.1 / 0.2 by a hash of the query (seed 0)'
    """
    keys = _keys(collection)
    if use_given and TRAIN in collection.qrels and TEST in collection.qrels:
        qrels, description = _given_split(collection, keys, seed)
    else:
        qrels, description = {name: {} for name in SPLITS}, _hash_description(seed)
        for query, grades in collection.merged_qrels.items():
            qrels[split_of(keys[query], seed)][query] = grades
    for name, limit in max_queries.items():
        if len(qrels[name]) > limit:
            # Another seed than that of the split, or only hashes from one end of the range would be kept.
            order = sorted(qrels[name], key=lambda query: (hash_fraction(keys[query], seed + 1), query))
            qrels[name] = {query: qrels[name][query] for query in order[:limit]}
    empty = [name for name in SPLITS if not qrels[name]]
    if empty:
        raise LabelError(
            f"{collection.source}: {len(collection.merged_qrels)} labelled queries are too few to split: "
            f"no query is left for {' and '.join(empty)}"
        )
    return Split(qrels, description)


def split_of(key: str, seed: int = 0) -> str:
    """Return the split of a normalised query: 0.7 train, 0.1 validation, 0.2 test."""
    fraction = hash_fraction(key, seed)
    if fraction < _SHARES[TRAIN]:
        return TRAIN
    return VALIDATION if fraction < _SHARES[TRAIN] + _SHARES[VALIDATION] else TEST


def hash_fraction(key: str, seed: int = 0) -> float:
    """Map a key to a pseudo-random number in [0, 1) that is the same on every machine.

    >>> round(hash_fraction("what is a vector"), 3)
    0.732
    """
    digest = hashlib.sha256(f"{seed}\n{key}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


def normalise(text: str) -> str:
    """Fold the case, white space and Unicode forms of a query.

    >>> normalise("  Ｃafe\u0301  au LAIT ")
    'café au lait'

    A letter and its upper case can have different forms, so folding and normalising alternate until nothing changes, as
    Unicode describes it (toNFKC_Casefold).

    >>> normalise("ΐ") == normalise("ΐ".upper())
    True
    """
    folded = unicodedata.normalize("NFKD", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", folded).casefold()).split())


def _given_split(collection: Collection, keys: dict[str, str], seed: int) -> tuple[dict[str, Qrels], str]:
    """Return the split that the collection comes with, without queries that leak into another split."""
    qrels = {name: dict(collection.qrels.get(name, {})) for name in SPLITS}
    from_log = collection.label_log is not None
    description = _hash_description(seed) if from_log else "as given"
    if not qrels[VALIDATION] and not from_log:
        description += f", with an eighth of the training queries for validation (seed {seed})"
        qrels[VALIDATION] = {
            query: grades
            for query, grades in qrels[TRAIN].items()
            if hash_fraction(keys[query], seed) < _SHARES[VALIDATION] / 0.8
        }
    if collection.qrels.get("all"):
        description += f", without {len(collection.qrels['all']):,} queries of other files"
    taken: set[str] = set()
    for name in reversed(SPLITS):
        qrels[name] = {query: grades for query, grades in qrels[name].items() if keys[query] not in taken}
        taken |= {keys[query] for query in qrels[name]}
    return qrels, description


def _hash_description(seed: int) -> str:
    return f"0.7 / 0.1 / 0.2 by a hash of the query (seed {seed})"


def _keys(collection: Collection) -> dict[str, str]:
    """Return what is hashed for each query id."""
    queries = collection.queries
    if queries.texts is None:
        return {query: query for query in queries.ids}
    return {query: normalise(text) for query, text in zip(queries.ids, queries.texts, strict=True)}
