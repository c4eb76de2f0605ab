"""The run folder: writing a run, and reading it back.

``patch.safetensors`` holds the moved rows, ``run.json`` all figures, ``README.md`` the run card, ``queries.jsonl``
every test query before and after, ``queries.safetensors`` the vectors of some test queries (to check the search of a
store), ``documents.jsonl`` every moved document, and ``query_curves.safetensors`` the metric of every validation and
test query as a step function of gamma. The folder is written under another name and renamed when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from nudgevec.arrays import Array, Ints
from nudgevec.core.curve import QueryCurves
from nudgevec.errors import InputError
from nudgevec.files import write_folder_atomically
from nudgevec.patch import Patch
from nudgevec.runs.card import run_card
from nudgevec.runs.pipeline import FORMAT, Run
from nudgevec.text.collection import Items
from nudgevec.text.splits import TEST, VALIDATION

_FORMAT_PREFIX = "nudgevec-run-"
# The first results are saved for this many queries with the largest gains, and with the largest losses.
_N_EXAMPLES = 50
_N_RESULTS = 10
_MAX_QUERY_VECTORS = 1000
_MAX_TEXT = 300
_CURVE_COLUMNS = ("gamma", "query", "change", "at_zero")


def save(run: Run, target: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Write a run to a folder, and return the contents of its ``run.json``."""
    check_target(target, overwrite)
    facts = run.facts
    with write_folder_atomically(target) as draft:
        run.patch.save(draft / "patch.safetensors")
        _write_records(draft / "queries.jsonl", _query_records(run))
        vectors = run.data.queries[TEST].vectors[run.test.before.query[:_MAX_QUERY_VECTORS]]
        save_file({"test": np.ascontiguousarray(vectors, np.float32)}, draft / "queries.safetensors")
        _write_records(draft / "documents.jsonl", _document_records(run))
        _save_query_curves(draft / "query_curves.safetensors", run)
        (draft / "README.md").write_text(run_card(facts), encoding="utf-8")
        (draft / "run.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return facts


def load(folder: Path) -> tuple[dict[str, Any], Patch]:
    """Return the contents of ``run.json`` and the patch of a run folder."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    if facts.get("format") != FORMAT:
        raise InputError(f"{folder} was written by another version of nudgevec")
    return facts, Patch.load(folder / "patch.safetensors")


def load_query_vectors(folder: Path) -> Array:
    """Return the vectors of test queries of a run folder."""
    try:
        vectors: Array = load_file(folder / "queries.safetensors")["test"]
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{folder} has no query vectors to check the store with ({error}): tune again, or pass --check 0"
        ) from None
    return vectors


def load_query_curves(folder: Path) -> dict[str, tuple[list[str], QueryCurves]]:
    """Return the ids of the validation and of the test queries, each with their metric as a function of gamma.

    Validation queries are missing where gamma was not chosen on them.
    """
    try:
        with safe_open(folder / "query_curves.safetensors", framework="numpy") as file:
            ids = json.loads(file.metadata()["ids"])
            return {
                name: (ids[name], QueryCurves(*(file.get_tensor(f"{name}.{column}") for column in _CURVE_COLUMNS)))
                for name in ids
            }
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder} has no readable curves of its queries ({error}): tune again") from None


def load_records(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON Lines file of a run folder."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def check_target(target: Path, overwrite: bool) -> None:
    """Raise InputError unless the folder is absent, empty, or a run that may be overwritten."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        facts = json.loads((target / "run.json").read_text(encoding="utf-8"))
        is_run = isinstance(facts, dict) and str(facts.get("format", "")).startswith(_FORMAT_PREFIX)
    except (OSError, ValueError):
        is_run = False
    if not is_run or target.resolve() == Path.cwd():
        raise InputError(f"{target} exists and is not a run folder, so it is not overwritten: choose another --out")
    if not overwrite:
        raise InputError(f"{target} contains a run: choose another --out, or pass --overwrite to replace it")


def _save_query_curves(path: Path, run: Run) -> None:
    test = run.data.queries[TEST]
    curves = {TEST: ([test.ids[number] for number in run.test.before.query.tolist()], run.test.query_curves)}
    if run.tuner.query_curves_ is not None:
        validation = run.data.queries[VALIDATION]
        relevant = [any(grade > 0 for grade in labels.values()) for labels in validation.labels]
        curves[VALIDATION] = list(compress(validation.ids, relevant)), run.tuner.query_curves_
    tensors = {
        f"{name}.{column}": np.ascontiguousarray(getattr(by_query, column))
        for name, (_, by_query) in curves.items()
        for column in _CURVE_COLUMNS
    }
    ids = {name: ids for name, (ids, _) in curves.items()}
    save_file(tensors, path, metadata={"ids": json.dumps(ids), "metric": run.options["metric"]})


def _query_records(run: Run) -> list[dict[str, Any]]:
    """Return every test query before and after; those with the largest changes have their first results."""
    queries, metric = run.data.queries[TEST], run.options["metric"]
    texts = _texts_by_id(run.data.collection.queries)
    before, after = (evaluation[metric].per_query for evaluation in (run.test.before, run.test.after))
    records = [
        {
            "id": queries.ids[number],
            "text": texts.get(queries.ids[number]),
            "before": float(old),
            "after": float(new),
            "answers": queries.labels[number],
        }
        for number, old, new in zip(run.test.before.query.tolist(), before, after, strict=True)
    ]
    change = np.round(after - before, 12)
    order = np.argsort(-change, kind="stable")
    for position in [*order[:_N_EXAMPLES], *order[::-1][:_N_EXAMPLES]]:
        if change[position] != 0:
            records[position]["top_before"] = _result_ids(run, run.test.top_before[position])
            records[position]["top_after"] = _result_ids(run, run.test.top_after[position])
    return records


def _result_ids(run: Run, rows: Ints) -> list[Hashable]:
    return [run.data.documents.ids[row] for row in rows[:_N_RESULTS].tolist() if row >= 0]


def _document_records(run: Run) -> list[dict[str, Any]]:
    """Return every moved document, by decreasing distance."""
    texts, patch = _texts_by_id(run.data.collection.documents), run.patch
    in_degrees = patch.similarity == "cosine" and patch.method != "M+N"
    distances = np.degrees(patch.distance) if in_degrees else patch.distance
    return [
        {
            "id": patch.ids[position],
            "text": texts[str(patch.ids[position])][:_MAX_TEXT] if patch.ids[position] in texts else None,
            "labels": int(patch.labels[position]),
            "degrees" if in_degrees else "distance": float(distances[position]),
        }
        for position in np.lexsort((-patch.labels, -patch.distance)).tolist()
    ]


def _texts_by_id(items: Items) -> dict[Any, str]:
    return {} if items.texts is None else dict(zip(items.ids, items.texts, strict=True))


def _write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
