"""A run: a collection tuned, measured on queries it never saw, and written to a folder.

The folder holds ``patch.safetensors`` (the moved rows), ``run.json`` (every number), ``README.md`` (the same for
people), ``queries.jsonl`` (each test query before and after), ``queries.safetensors`` (vectors of some of them, to try
a store with) and ``documents.jsonl`` (each document that moved).
It is written beside its place and moved there when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import nudgevec
from nudgevec.arrays import Array, Ints
from nudgevec.corpus import ArrayCorpus, Corpus
from nudgevec.errors import InputError, LabelError, NudgeWarning, OptionError, VectorError
from nudgevec.evaluation import Evaluation, compare_all
from nudgevec.files import write_folder_atomically
from nudgevec.patch import Patch
from nudgevec.runs.card import card
from nudgevec.stores.compatibility import check_dot
from nudgevec.text.collection import Collection, Qrels
from nudgevec.text.embedders import embedded
from nudgevec.text.splits import SIDES, TEST, TRAIN, VALIDATION, Split, split
from nudgevec.tuners import NudgeM, NudgeMN, NudgeN, NudgeNU, Test, Tuner

METHODS: dict[str, type[Tuner]] = {each.method: each for each in (NudgeN, NudgeM, NudgeMN, NudgeNU)}
# Queries whose results are written down, of those that won and of those that lost.
_SHOWN = 50
_TOP = 10
# Test queries whose vectors are kept.
_ASKED = 1000


@dataclass(frozen=True)
class Judged:
    """Query vectors and labels of one side."""

    ids: list[str]
    vectors: Array
    labels: list[dict[Hashable, float]]


@dataclass(frozen=True)
class Ready:
    """A collection as the tuner takes it: vectors by id, and the sides."""

    collection: Collection
    documents: Corpus
    sides: dict[str, Judged]
    split: Split
    embedder: str
    left_out: dict[str, int]
    """Documents and queries whose vector is all zeros."""
    settings: dict[str, Any] = field(default_factory=dict)
    """How to make all this again."""

    def fingerprint(self, side: str) -> str:
        """A hash of the judgements of a side."""
        return _fingerprint(self.split[side])


def prepare(
    collection: Collection,
    embedder: str | None = None,
    *,
    seed: int = 0,
    given_split: bool = True,
    prefixes: tuple[str | None, str | None] = (None, None),
) -> Ready:
    """Embed what is text, and deal the judged queries out."""
    vectors, queries, made_by = embedded(collection, embedder, prefixes=prefixes)
    documents, empty = _documents(collection, vectors)
    known = {key: row for row, key in enumerate(collection.queries.ids) if queries[row].any()}
    sides = split(collection, seed, given_split)
    here = {str(key): key for key in documents.ids}
    judged = {}
    for name in SIDES:
        labels = {
            query: {here[key]: grade for key, grade in grades.items() if key in here}
            for query, grades in sides[name].items()
            if query in known
        }
        chosen = [query for query in labels if labels[query]]
        if not chosen:
            raise LabelError(f"{collection.where}: no usable query is left for {name}")
        judged[name] = Judged(chosen, queries[[known[query] for query in chosen]], [labels[query] for query in chosen])
    left_out = {"documents": empty, "queries": len(queries) - len(known)}
    for what, count in left_out.items():
        note_left_out(count, what)
    settings = {
        "embedder": embedder,
        "document_prefix": prefixes[0],
        "query_prefix": prefixes[1],
        "seed": seed,
        "resplit": not given_split,
        **(collection.labels or {}),
    }
    return Ready(collection, documents, judged, sides, made_by, left_out, settings)


def note_left_out(count: int, what: str) -> None:
    """Say that some documents or queries have no direction, if there are any."""
    if count:
        message = f"{count} {what} have no direction (all zeros: no known word in them) and are left out"
        warnings.warn(message, NudgeWarning, stacklevel=3)


def _documents(collection: Collection, vectors: Array | Corpus) -> tuple[Corpus, int]:
    if isinstance(vectors, Corpus):
        return vectors, 0
    ids = list(collection.documents.ids)
    if isinstance(vectors, np.memmap):
        return ArrayCorpus(vectors, ids), 0
    seen = np.flatnonzero(vectors.any(axis=1))
    if len(seen) == 0:
        raise VectorError(f"{collection.where}: all document vectors are zeros")
    if len(seen) == len(ids):
        return ArrayCorpus(vectors, ids), 0
    return ArrayCorpus(vectors[seen], [ids[row] for row in seen.tolist()]), len(ids) - len(seen)


@dataclass(frozen=True)
class Run:
    """What a run found out."""

    ready: Ready
    tuner: Tuner
    options: dict[str, Any]

    @property
    def patch(self) -> Patch:
        """The documents that moved."""
        return self.tuner.patch_

    @property
    def test(self) -> Test:
        """What was measured on the test queries."""
        assert self.tuner.test_ is not None
        return self.tuner.test_

    @property
    def facts(self) -> dict[str, Any]:
        """Everything but the vectors: what ``run.json`` holds."""
        ready, patch = self.ready, self.patch
        changes = compare_all(self.test.before, self.test.after)
        trained = {key for labels in ready.sides[TRAIN].labels for key in labels}
        asked = [ready.sides[TEST].labels[number] for number in self.test.before.query.tolist()]
        seen = sum(any(key in trained for key, grade in labels.items() if grade > 0) for labels in asked)
        return {
            "format": "nudgevec-run-1",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": {"name": ready.collection.name, "path": str(ready.collection.where)},
            **self.options,
            "similarity": patch.similarity,
            "gamma": patch.gamma,
            "embedder": ready.embedder,
            "split": ready.split.how,
            "settings": ready.settings,
            "validation": patch.validation,
            "test": {
                "before": scores(self.test.before),
                "after": scores(self.test.after),
                "change": {
                    name: {
                        "mean": each.change,
                        "low": each.low,
                        "high": each.high,
                        "wins": each.wins,
                        "losses": each.losses,
                        "ties": each.ties,
                        "p_value": each.p_value,
                    }
                    for name, each in changes.items()
                },
            },
            "counts": {
                **patch.counts,
                "test_queries": len(asked),
                "test_queries_without_answers": len(ready.sides[TEST].ids) - len(asked),
                "test_queries_with_an_answer_in_training": seen,
                "judgements_left_out": ready.collection.dropped,
                "documents_left_out": ready.left_out["documents"],
                "queries_left_out": ready.left_out["queries"],
            },
            "fingerprints": {
                "moved": patch.fingerprint,
                **{name: ready.fingerprint(name) for name in SIDES},
            },
            "versions": {
                "nudgevec": nudgevec.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }


def tune(ready: Ready, method: str = "N", metric: str = "ndcg@10", *, engine: str = "auto", guard: float = 1.0) -> Run:
    """Tune on the training side, choose on the validation side, measure on the test side."""
    if method not in METHODS:
        raise OptionError(f"unknown method {method!r}: use one of {', '.join(METHODS)}")
    tuner = METHODS[method](metric, engine=engine, guard=guard)
    compared_by = ready.collection.documents.compared_by
    if compared_by is not None and tuner.similarity == "dot":
        check_dot(str(ready.collection.where), compared_by, method)
    sides = {name: (part.vectors, part.labels) for name, part in ready.sides.items()}
    tuner.fit(ready.documents, sides[TRAIN], sides[VALIDATION], sides[TEST])
    return Run(ready, tuner, {"method": method, "metric": metric, "guard": guard})


def write(run: Run, target: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Leave the run in a folder; returns what ``run.json`` says."""
    check_target(target, overwrite)
    facts = run.facts
    with write_folder_atomically(target) as draft:
        run.patch.save(draft / "patch.safetensors")
        _write_lines(draft / "queries.jsonl", _queries(run))
        asked = run.ready.sides[TEST].vectors[run.test.before.query[:_ASKED]]
        save_file({"test": np.ascontiguousarray(asked, np.float32)}, draft / "queries.safetensors")
        _write_lines(draft / "documents.jsonl", _moved(run))
        (draft / "README.md").write_text(card(facts), encoding="utf-8")
        (draft / "run.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return facts


def check_target(target: Path, overwrite: bool) -> None:
    """Only nothing, an empty folder, or an older run may be replaced; the last only if that is asked for."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        facts = json.loads((target / "run.json").read_text(encoding="utf-8"))
        is_run = isinstance(facts, dict) and str(facts.get("format", "")).startswith("nudgevec-run-")
    except (OSError, ValueError):
        is_run = False
    if not is_run or target.resolve() == Path.cwd():
        raise InputError(f"{target} exists and is not a run folder, so it is not touched: choose another --out")
    if not overwrite:
        raise InputError(f"{target} holds a run: choose another --out, or pass --overwrite to replace it")


def load(folder: Path) -> tuple[dict[str, Any], Patch]:
    """The facts and the patch of a run folder."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    if facts.get("format") != "nudgevec-run-1":
        raise InputError(f"{folder} was not written by this version of nudgevec")
    return facts, Patch.load(folder / "patch.safetensors")


def asked(folder: Path) -> Array:
    """Vectors of test queries of a run folder."""
    try:
        vectors: Array = load_file(folder / "queries.safetensors")["test"]
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} has no queries to try the store with ({error}): tune again, or pass --check 0"
        ) from None
    return vectors


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of a run folder."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _queries(run: Run) -> list[dict[str, Any]]:
    """Every test query before and after; those that changed most with their results."""
    side, metric = run.ready.sides[TEST], run.options["metric"]
    texts = _texts(run.ready.collection.queries)
    before, after = (each[metric].per_query for each in (run.test.before, run.test.after))
    change = np.round(after - before, 12)
    entries = [
        {
            "id": side.ids[number],
            "text": texts.get(side.ids[number]),
            "before": float(old),
            "after": float(new),
            "answers": side.labels[number],
        }
        for number, old, new in zip(run.test.before.query.tolist(), before, after, strict=True)
    ]
    order = np.argsort(-change, kind="stable")
    shown = [place for place in [*order[:_SHOWN], *order[::-1][:_SHOWN]] if change[place] != 0]
    for place in shown:
        entries[place]["top_before"] = _ids(run, run.test.top_before[place])
        entries[place]["top_after"] = _ids(run, run.test.top_after[place])
    return entries


def _ids(run: Run, rows: Ints) -> list[Hashable]:
    """The ids of the first results of a query."""
    return [run.ready.documents.ids[row] for row in rows[:_TOP].tolist() if row >= 0]


def _moved(run: Run) -> list[dict[str, Any]]:
    """Every document that moved, the farthest first."""
    texts, patch = _texts(run.ready.collection.documents), run.patch
    turns = patch.similarity == "cosine" and patch.method != "M+N"
    return [
        {
            "id": patch.ids[place],
            "text": None if patch.ids[place] not in texts else texts[str(patch.ids[place])][:300],
            "labels": int(patch.labels[place]),
            "degrees" if turns else "distance": float(
                np.degrees(patch.distance[place]) if turns else patch.distance[place]
            ),
        }
        for place in np.lexsort((-patch.labels, -patch.distance)).tolist()
    ]


def _texts(items: Any) -> dict[Any, str]:
    return {} if items.texts is None else dict(zip(items.ids, items.texts, strict=True))


def scores(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Means with their intervals, as ``run.json`` holds them."""
    return {name: {"mean": each.mean, "low": each.low, "high": each.high} for name, each in evaluation.items()}


def _fingerprint(qrels: Qrels) -> str:
    """A hash of judgements, whatever their order."""
    return hashlib.sha256(json.dumps(qrels, sort_keys=True).encode()).hexdigest()


def _write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for entry in entries:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
