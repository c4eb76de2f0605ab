"""The run folder: writing a run, and reading it back.

``patch.safetensors`` holds the moved rows, ``run.json`` all figures, ``README.md`` the run card, ``queries.jsonl``
every test query before and after, ``queries.safetensors`` the vectors of some test queries (to check the search of a
store), ``documents.jsonl`` every moved document, and ``query_curves.safetensors`` the metric of every validation and
test query as a step function of gamma. The curves count a tie against the label, while the figures in ``run.json`` and
``queries.jsonl`` rank equal scores by id as trec_eval does: they can differ where documents are duplicates. All of
these files are replaced, or none; other files in the folder stay.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from nudgevec.arrays import Array, Ints
from nudgevec.core.curve import QueryCurves
from nudgevec.errors import InputError
from nudgevec.files import claim_folder, finish_replacement, is_empty, replace_files
from nudgevec.patch import Patch
from nudgevec.runs.card import run_card
from nudgevec.runs.pipeline import FORMAT, Run
from nudgevec.text.collection import Items
from nudgevec.text.readers.files import json_lines
from nudgevec.text.splits import TEST, VALIDATION

_FORMAT_PREFIX = "nudgevec-run-"
# Texts may hold lone surrogates, which UTF-8 has no bytes for; escaped as \udc80 they are valid JSON.
_ESCAPE = "backslashreplace"
# The first results are saved for this many queries with the largest gains, and with the largest losses.
_N_EXAMPLES = 50
_N_RESULTS = 10
_MAX_QUERY_VECTORS = 1000
_MAX_TEXT = 300
_CURVE_COLUMNS = ("gamma", "query", "change", "at_zero")


@contextmanager
def claim(target: Path, overwrite: bool = False, inputs: Iterable[str | os.PathLike[str]] = ()) -> Iterator[None]:
    """Check that a run may be written to a folder, and keep other processes from writing one there.

    Raises
    ------
    InputError
        If the folder holds anything but a run that may be overwritten, holds one of the inputs, or is in use.
    """
    _check_target(target, overwrite)
    for path in inputs:
        if Path(path).resolve().is_relative_to(target.resolve()):
            raise InputError(f"{target} contains {os.fspath(path)}, which this run reads: choose another --out")
    with claim_folder(target):
        # Another process may have written a run since.
        _check_target(target, overwrite)
        yield


def write(run: Run, target: Path) -> None:
    """Write a run to a claimed folder."""
    with replace_files(target) as draft:
        run.patch.save(draft / "patch.safetensors")
        if run.patch.query_map is not None:
            np.save(draft / "query_map.npy", run.patch.query_map)
        _write_records(draft / "queries.jsonl", _query_records(run))
        vectors = run.data.queries[TEST].vectors[run.test.before.query[:_MAX_QUERY_VECTORS]]
        _write_tensors(draft / "queries.safetensors", {"test": np.ascontiguousarray(vectors, np.float32)})
        _write_records(draft / "documents.jsonl", _document_records(run))
        _save_query_curves(draft / "query_curves.safetensors", run)
        checksums = {path.name: _checksum(path.read_bytes()) for path in draft.iterdir()}
        contents = {**run.facts, "checksums": checksums}
        (draft / "run.json").write_bytes(_as_json({**contents, "checksum": _checksum(_as_json(contents))}))
        (draft / "README.md").write_text(run_card(run.facts), encoding="utf-8", errors=_ESCAPE)


class SavedRun:
    """A run folder. Every file that is read must be the one that was written with the others.

    Parameters
    ----------
    folder : path
        A folder that ``tune`` has written.

    Attributes
    ----------
    facts : dict
        The contents of ``run.json``.
    patch : Patch
        The patch of the run, read when it is first used.

    Raises
    ------
    InputError
        If the folder holds no run, or one that was changed. Reading a file raises it too if that file was changed.

    Examples
    --------
    >>> import tempfile
    >>> from nudgevec import tune
    >>> things = ("car", "house", "apple", "river")
    >>> texts = {f"q{n}": f"{thing} number {n}" for n, thing in enumerate(things * 15)}
    >>> pairs = {
    ...     "corpus": {thing: f"a {thing}" for thing in things},
    ...     "queries": texts,
    ...     "relevant_docs": {query: [text.split()[0]] for query, text in texts.items()},
    ... }
    >>> home = Path(tempfile.mkdtemp())
    >>> _ = (home / "pairs.json").write_text(json.dumps(pairs))
    >>> _ = tune(home / "pairs.json", gamma=0.1, out=home / "run")
    >>> saved = SavedRun(home / "run")
    >>> len(saved.patch), saved.facts["gamma"]
    (4, 0.1)
    >>> ids, curves = saved.query_curves()["test"]
    >>> len(ids) == len(curves(0.1)) == len(saved.queries())
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        folder = Path(folder)
        finish_replacement(folder)
        self._folder, self.facts = folder, _read_facts(folder)
        if self.facts.get("format") != FORMAT:
            raise InputError(f"{folder} was written by another version of nudgevec")
        if self.facts.pop("checksum", None) != _checksum(_as_json(self.facts)):
            raise InputError(f"{folder}: run.json is damaged or was changed: tune again")
        _check_facts(self.facts, folder)
        self._checksums = self.facts.pop("checksums")

    @cached_property
    def patch(self) -> Patch:
        """The patch of the run."""
        return Patch.load(self._check("patch.safetensors"))

    def query_vectors(self) -> Array:
        """Return the vectors of some test queries.

        Returns
        -------
        array of shape (q, d)
            At most 1,000.
        """
        with self._malformed("queries.safetensors") as path:
            vectors: Array = load_file(path)["test"]
        return vectors

    def query_curves(self) -> dict[str, tuple[list[str], QueryCurves]]:
        """Return the metric of every validation and test query as a function of gamma.

        Returns
        -------
        dict of str to (list of str, QueryCurves)
            For "validation" and "test": the ids of the queries, and their curves. Validation queries are missing where
            gamma was not chosen on them, test queries after the method M+N. A tie counts against the label; see
            ``BeforeAfter``.
        """
        with self._malformed("query_curves.safetensors") as path, safe_open(path, framework="numpy") as file:
            ids = json.loads(file.metadata()["ids"])
            return {
                name: (ids[name], QueryCurves(*(file.get_tensor(f"{name}.{column}") for column in _CURVE_COLUMNS)))
                for name in ids
            }

    def queries(self) -> list[dict[str, Any]]:
        """Return every test query before and after.

        Returns
        -------
        list of dict
            The "id", "text" and "labels" of a query and the tuned metric "before" and "after". Queries with the largest
            changes also have the ids of their first results, "top_before" and "top_after".
        """
        return self._records("queries.jsonl", {**_RECORD, "before": float, "after": float, "labels": dict})

    def documents(self) -> list[dict[str, Any]]:
        """Return every moved document, by decreasing distance.

        Returns
        -------
        list of dict
            The "id" and "text" of a document, its number of training "labels", and how far it moved, in "degrees" or as
            a "distance".
        """
        return self._records("documents.jsonl", {**_RECORD, "labels": int})

    def _records(self, name: str, types: dict[str, Any]) -> list[dict[str, Any]]:
        path = self._check(name)
        records = [fields for _, fields in json_lines(path)]
        for record in records:
            for key, kind in types.items():
                if not isinstance(record.get(key), kind):
                    raise InputError(f"{path}: {key!r} is {record.get(key)!r:.40}: tune again")
        return records

    @contextmanager
    def _malformed(self, name: str) -> Iterator[Path]:
        """Yield the path of a file, and raise what goes wrong when it is read as InputError."""
        path = self._check(name)
        try:
            yield path
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is not a file of this run: {error}") from None

    def _check(self, name: str) -> Path:
        """Return the path of a file, and raise InputError unless it is the one that was written with ``run.json``."""
        path = self._folder / name
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise InputError(f"{self._folder} is not a whole run folder: {error}") from None
        if _checksum(contents) != self._checksums.get(name):
            raise InputError(f"{self._folder}: {name} is not the file that was written with run.json: tune again")
        return path


def _checksum(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _as_json(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode(errors=_ESCAPE)


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{folder} is not a run folder: {error}") from None
    if not isinstance(facts, dict):
        raise InputError(f"{folder} is not a run folder: run.json holds no object")
    return facts


# The types of what other modules read from run.json.
_FACTS: dict[str, Any] = {
    "checksums": dict,
    "settings": dict,
    "test": dict,
    "fingerprints": dict,
    "metric": str,
    "similarity": str,
}
_RECORD: dict[str, Any] = {"id": (str, int), "text": (str, type(None))}
_OPTIONAL_TEXTS = ("embedder", "document_prefix", "query_prefix", "labels")
_OPTIONAL_NUMBERS = ("seed", "half_life", "cap", "resplit")


def _check_facts(facts: dict[str, Any], folder: Path) -> None:
    """Raise InputError for facts of a wrong type: a run folder may come from somebody else."""
    wrong = [name for name, kind in _FACTS.items() if not isinstance(facts.get(name), kind)]
    if not wrong:
        settings, numbers = facts["settings"], (int, float, type(None))
        wrong = [name for name in _OPTIONAL_TEXTS if not isinstance(settings.get(name), (str, type(None)))]
        wrong += [name for name in _OPTIONAL_NUMBERS if not isinstance(settings.get(name), numbers)]
        wrong += [] if isinstance(facts["test"].get("before"), dict) else ["test"]
        wrong += [] if isinstance(facts["fingerprints"].get(TEST), str) else ["fingerprints"]
    if wrong:
        raise InputError(f"{folder}: {wrong[0]!r} in run.json is missing or of a wrong type: tune again")


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise InputError unless the folder is absent, empty, or a run that may be overwritten."""
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} exists and is not a folder: choose another --out")
    finish_replacement(target)
    if is_empty(target):
        return
    try:
        is_run = str(_read_facts(target).get("format", "")).startswith(_FORMAT_PREFIX)
    except InputError:
        is_run = False
    if not is_run:
        raise InputError(f"{target} exists and is not a run folder, so it is not overwritten: choose another --out")
    if not overwrite:
        raise InputError(f"{target} contains a run: choose another --out, or pass --overwrite to replace it")


def _save_query_curves(path: Path, run: Run) -> None:
    test = run.data.queries[TEST]
    curves = {}
    if run.test.query_curves is not None:
        curves[TEST] = [test.ids[number] for number in run.test.before.query.tolist()], run.test.query_curves
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
    _write_tensors(path, tensors, {"ids": json.dumps(ids), "metric": run.options["metric"]})


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
            "labels": queries.labels[number],
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


def _write_tensors(path: Path, tensors: dict[str, Array], metadata: dict[str, str] | None = None) -> None:
    path.write_bytes(safetensors.numpy.save(tensors, metadata))


def _write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", errors=_ESCAPE) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
