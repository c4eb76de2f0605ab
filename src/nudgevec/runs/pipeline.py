"""The pipeline of a run: embed a collection, split its queries, tune, and measure on the test queries.

``nudgevec.runs.folder`` writes the result to a folder and reads it back.
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

import nudgevec
from nudgevec.arrays import Array
from nudgevec.corpus import ArrayCorpus, Corpus
from nudgevec.engines import Engine
from nudgevec.errors import LabelError, NudgeWarning, OptionError, VectorError
from nudgevec.evaluation import Evaluation, compare_all
from nudgevec.metrics import Metric
from nudgevec.patch import Patch
from nudgevec.search import BeforeAfter
from nudgevec.stores.compatibility import check_cosine, check_dot
from nudgevec.text.collection import Collection
from nudgevec.text.embedders import embed_collection
from nudgevec.text.splits import SPLITS, TEST, TRAIN, VALIDATION, Split, split
from nudgevec.tuners import Nudge, NudgeM, NudgeMN, NudgeN, NudgeNU, Tuner
from nudgevec.tuners.step import StepTuner

STEP_METHODS: dict[str, type[StepTuner]] = {tuner.method: tuner for tuner in (NudgeN, NudgeM, NudgeMN, NudgeNU)}
METHODS = (Nudge.method, *STEP_METHODS)
FORMAT = "nudgevec-run-1"
_N_SUGGESTIONS = 10


@dataclass(frozen=True)
class QuerySet:
    """The labelled queries of a split. ``run.data.queries`` has those of a run.

    Attributes
    ----------
    ids : list of str
    vectors : array of shape (q, d)
    labels : list of dict
        Document id -> grade, for each query.

    Examples
    --------
    >>> test = QuerySet(["q1"], np.array([[0.8, 0.6]]), [{"a": 1.0}])
    >>> documents = ArrayCorpus(np.eye(2), ["a", "b"])
    >>> nudgevec.evaluate(documents, test.vectors, test.labels, "mrr@2")["mrr@2"].mean
    1.0
    """

    ids: list[str]
    vectors: Array
    labels: list[dict[Hashable, float]]


@dataclass(frozen=True)
class Prepared:
    """A collection as vectors, ready for tuning and evaluation. ``run.data`` is that of a run.

    Attributes
    ----------
    collection : Collection
    documents : Corpus
    queries : dict of str to QuerySet
        Queries by split.
    split : Split
    embedder : str
        Name of the embedder, "given" for vectors of the collection itself.
    n_dropped : dict of str to int
        Number of "documents" and "queries" that were dropped because their vector is all zeros.
    settings : dict
        Options to prepare the same data again.
    """

    collection: Collection
    documents: Corpus
    queries: dict[str, QuerySet]
    split: Split
    embedder: str
    n_dropped: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)

    def fingerprint(self, split: str) -> str:
        """Return a hash of the labels of a split that does not depend on their order.

        Parameters
        ----------
        split : {"train", "validation", "test"}

        Returns
        -------
        str
        """
        return hashlib.sha256(json.dumps(self.split[split], sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Run:
    """A tuned collection.

    Attributes
    ----------
    data : Prepared
    tuner : Tuner
        The fitted tuner.
    options : dict
        The method, metric, guard and refit, whether gamma was given, and the map.
    """

    data: Prepared
    tuner: Tuner
    options: dict[str, Any]

    @property
    def patch(self) -> Patch:
        """The moved documents."""
        return self.tuner.patch_

    @property
    def test(self) -> BeforeAfter:
        """Quality on the test queries."""
        assert self.tuner.test_ is not None
        return self.tuner.test_

    @cached_property
    def facts(self) -> dict[str, Any]:
        """All figures of the run, as ``run.json`` holds them."""
        data, patch = self.data, self.patch
        return {
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": {"name": data.collection.name, "path": str(data.collection.source)},
            **self.options,
            "similarity": patch.similarity,
            "gamma": patch.gamma,
            "embedder": data.embedder,
            "split": data.split.description,
            "settings": data.settings,
            "validation": {**patch.validation, "queries": self._n_held_out(), "queries_needed": self._queries_needed()},
            "test": _test_facts(self.test),
            "counts": self._counts(),
            "collect_next": self._wanted_documents(),
            "fingerprints": {"moved": patch.fingerprint, **{name: data.fingerprint(name) for name in SPLITS}},
            "versions": {
                "nudgevec": nudgevec.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    @cached_property
    def _trained(self) -> set[Hashable]:
        """The ids of the documents with training labels."""
        return {key for labels in self.data.queries[TRAIN].labels for key in labels}

    def _relevant(self, split: str) -> list[list[Hashable]]:
        """Return the ids of the relevant documents of every query of a split that has any."""
        relevant = ([key for key, grade in labels.items() if grade > 0] for labels in self.data.queries[split].labels)
        return [keys for keys in relevant if keys]

    def _n_held_out(self) -> int:
        """Return the number of queries that the step was chosen on."""
        return self.tuner.n_held_out_ if isinstance(self.tuner, Nudge) else len(self._relevant(VALIDATION))

    def _queries_needed(self) -> int | None:
        """Return how many held-out queries would show the gain that was seen on them, if this can be estimated."""
        choice, n_queries = self.tuner.choice_, self._n_held_out()
        guard = (2 if isinstance(self.tuner, Nudge) else 1) * self.tuner.guard
        return None if choice is None else choice.queries_needed(n_queries, guard)

    def _wanted_documents(self) -> list[Hashable]:
        """Return the ids of the documents without training labels that most validation queries ask for."""
        asked = Counter(key for keys in self._relevant(VALIDATION) for key in keys if key not in self._trained)
        return [key for key, _ in asked.most_common(_N_SUGGESTIONS)]

    def _counts(self) -> dict[str, int]:
        data, test = self.data, self.data.queries[TEST]
        relevant = {split: self._relevant(split) for split in (VALIDATION, TEST)}
        shared = {
            f"{split}_queries_with_documents_in_training": sum(not self._trained.isdisjoint(keys) for keys in lists)
            for split, lists in relevant.items()
        }
        return {
            **self.patch.counts,
            "test_queries": len(relevant[TEST]),
            "test_queries_without_labels": len(test.ids) - len(relevant[TEST]),
            **shared,
            "labels_left_out": data.collection.n_dropped_labels,
            "documents_left_out": data.n_dropped["documents"],
            "queries_left_out": data.n_dropped["queries"],
        }


def prepare(
    collection: Collection,
    embedder: str | None = None,
    *,
    seed: int = 0,
    use_given_split: bool = True,
    prefixes: tuple[str | None, str | None] = (None, None),
) -> Prepared:
    """Embed a collection and split its queries.

    Parameters
    ----------
    collection : Collection
    embedder : str, optional
        See ``nudgevec.text.embedders.embed_collection``.
    seed : int
        Seed of the split.
    use_given_split : bool
        Keep the split that the collection comes with.
    prefixes : (str or None, str or None)
        Texts to put before documents and queries in place of the prefixes of the model.

    Raises
    ------
    LabelError
        If no usable query is left for a split.
    """
    vectors, query_vectors, embedder_name = embed_collection(collection, embedder, prefixes=prefixes)
    documents, n_zero_documents = _make_corpus(collection, vectors)
    row_of = {key: row for row, key in enumerate(collection.queries.ids) if query_vectors[row].any()}
    parts = split(collection, seed, use_given_split)
    known = {str(key): key for key in documents.ids}
    queries = {}
    for name in SPLITS:
        labels = {
            query: {known[key]: grade for key, grade in grades.items() if key in known}
            for query, grades in parts[name].items()
            if query in row_of
        }
        ids = [query for query in labels if labels[query]]
        if not ids:
            raise LabelError(f"{collection.source}: no usable query is left for {name}")
        rows = [row_of[query] for query in ids]
        queries[name] = QuerySet(ids, query_vectors[rows], [labels[query] for query in ids])
    n_dropped = {"documents": n_zero_documents, "queries": len(query_vectors) - len(row_of)}
    for kind, count in n_dropped.items():
        warn_dropped(count, kind)
    settings = {
        "embedder": embedder,
        "document_prefix": prefixes[0],
        "query_prefix": prefixes[1],
        "seed": seed,
        "resplit": not use_given_split,
        **(collection.label_log or {}),
    }
    return Prepared(collection, documents, queries, parts, embedder_name, n_dropped, settings)


def make_tuner(
    method: str,
    metric: str,
    *,
    side: str | None = None,
    gamma: float | None = None,
    guard: float = 1.0,
    refit: bool = False,
    engine: str | Engine = "auto",
) -> Tuner:
    """Return a tuner by the name of its method; without a gamma, it has the default of its method.

    Raises
    ------
    OptionError
        If an option is unknown, out of its range, or not one of the method.
    """
    name = str(Metric.parse(metric))
    if method == Nudge.method:
        if gamma is not None:
            raise OptionError(f"the method {method} chooses gamma itself: leave it out, or use the method N")
        tuner: Tuner = Nudge(name, side=side or "auto", guard=guard, engine=engine)
    elif method in STEP_METHODS:
        if side is not None:
            raise OptionError(f"the method {method} has no map: the side (--side) is an option of {Nudge.method}")
        step_tuner = STEP_METHODS[method](name, guard=guard, refit=refit, engine=engine)
        if gamma is not None:
            step_tuner.gamma = gamma
        tuner = step_tuner
    else:
        raise OptionError(f"unknown method {method!r}: use one of {', '.join(METHODS)}")
    tuner.check_options()
    return tuner


def fit(data: Prepared, tuner: Tuner) -> Run:
    """Fit a tuner on the training queries, choose gamma on the validation queries, and measure on the test queries."""
    store, documents = data.collection.documents.store, data.documents
    if store is not None and store.similarity is not None and tuner.similarity == "dot":
        check_dot(str(data.collection.source), store.similarity, tuner.method)
    elif store is not None:
        documents = check_cosine(documents, str(data.collection.source), store.similarity, tuner.method)
    labelled = {name: (queries.vectors, queries.labels) for name, queries in data.queries.items()}
    tuner.fit(documents, labelled[TRAIN], labelled[VALIDATION], labelled[TEST])
    options: dict[str, Any] = {name: getattr(tuner, name) for name in ("method", "metric", "guard")}
    if isinstance(tuner, Nudge):
        options |= {"refit": True, "gamma_is_given": False, "map": {"side": tuner.side_, "sigma": tuner.sigma_}}
    elif isinstance(tuner, StepTuner):
        options |= {"refit": tuner.refit, "gamma_is_given": tuner.gamma is not None, "map": None}
    return Run(data, tuner, options)


def score_facts(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return means and confidence intervals by metric, as ``run.json`` holds them."""
    return {name: {"mean": score.mean, "low": score.low, "high": score.high} for name, score in evaluation.items()}


def warn_dropped(count: int, kind: str) -> None:
    """Warn about documents or queries whose vector is all zeros, if there are any."""
    if count:
        message = f"{kind} whose vector is all zeros (no word is known to the embedder) are ignored: {count}"
        warnings.warn(message, NudgeWarning, stacklevel=3)


def _make_corpus(collection: Collection, vectors: Array | Corpus) -> tuple[Corpus, int]:
    """Return the documents that have a direction, and the number of documents without one."""
    if isinstance(vectors, Corpus):
        return vectors, 0
    ids = list(collection.documents.ids)
    if isinstance(vectors, np.memmap):
        return ArrayCorpus(vectors, ids), 0
    rows = np.flatnonzero(vectors.any(axis=1))
    if len(rows) == 0:
        raise VectorError(f"{collection.source}: all document vectors are zeros")
    if len(rows) == len(ids):
        return ArrayCorpus(vectors, ids), 0
    return ArrayCorpus(vectors[rows], [ids[row] for row in rows.tolist()]), len(ids) - len(rows)


def _test_facts(test: BeforeAfter) -> dict[str, Any]:
    return {
        "before": score_facts(test.before),
        "after": score_facts(test.after),
        "change": {
            name: {
                "mean": change.change,
                "low": change.low,
                "high": change.high,
                "wins": change.wins,
                "losses": change.losses,
                "ties": change.ties,
                "p_value": change.p_value,
            }
            for name, change in compare_all(test.before, test.after).items()
        },
    }
