"""Damaged run folders and patch files are refused with one of our errors, or read as what was written."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import collections_on_disk as disk
from fuzzing import VALUES, attempt, cases, damaged
from nudgevec import Patch, cli
from nudgevec.errors import PatchError
from nudgevec.runs import folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder; tests change its files and put them back."""
    here = tmp_path_factory.mktemp("fuzz")
    disk.beir(here / "data", {"train": 0.6, "dev": 0.2, "test": 0.2})
    assert cli.main(["tune", str(here / "data"), "--out", str(here / "run"), "--guard", "0", "--quiet"]) == 0
    return here / "run"


def everything(path):
    """Return all that a run folder tells, in a form that can be compared."""
    run = folder.SavedRun(path)
    curves = {
        name: (ids, *(array.tolist() for array in vars(curves).values()))
        for name, (ids, curves) in run.query_curves().items()
    }
    facts = (run.facts, run.queries(), run.documents(), run.query_vectors().tolist(), curves)
    return repr(facts), run.patch.fingerprint, run.patch.identity


def test_a_damaged_run_folder_is_refused(run):
    whole, names = everything(run), sorted(path.name for path in run.iterdir() if path.name != "README.md")
    refused = 0
    for chance in cases(300):
        path = run / chance.choice(names)
        contents = path.read_bytes()
        path.write_bytes(damaged(contents, chance))
        try:
            read, problem = attempt(lambda: everything(run))
        finally:
            path.write_bytes(contents)
        refused += problem is not None
        assert problem or read == whole
    assert refused > 250
    assert everything(run) == whole


def test_a_damaged_patch_file_is_refused(run):
    path, copy = run / "patch.safetensors", run.parent / "patch"
    whole = Patch.load(path)
    for chance in cases(1000):
        copy.write_bytes(damaged(path.read_bytes(), chance))
        read, problem = attempt(lambda: Patch.load(copy))
        assert problem or (repr(read), read.identity) == (repr(whole), whole.identity)


ARRAYS = ["rows", "before", "after", "labels", "distance"]
FACTS = ["ids", "method", "similarity", "gamma", "metric", "validation", "counts"]


def test_a_patch_file_with_wrong_contents_is_refused_or_works(run):
    """Its checksum is right, so the parts themselves have to be checked."""
    good, copy = Patch.load(run / "patch.safetensors"), run.parent / "patch"
    loaded = 0
    for chance in cases(1000):
        changes = {name: chance.choice(VALUES) for name in chance.sample(FACTS, chance.randrange(2))}
        changes |= {name: changed_array(getattr(good, name), chance) for name in chance.sample(ARRAYS, 1)}
        try:
            dataclasses.replace(good, **changes).save(copy)
        except (PatchError, TypeError, ValueError, OverflowError):
            continue  # cannot be written at all
        read, _ = attempt(lambda: Patch.load(copy))
        if read is not None:
            use(read, run.parent / "again")
            loaded += 1
    assert loaded > 0


def changed_array(array, chance):
    """Return an array of another type, shape or contents."""
    match chance.randrange(6):
        case 0:
            return array[: len(array) // 2].copy()
        case 1:
            return np.zeros((0, 3), array.dtype)
        case 2:
            return array.astype(chance.choice([np.float16, np.float64, np.int8, np.int64, np.bool_]))
        case 3:
            return np.full_like(array, chance.choice([0, 1, 120]))
        case 4:
            return np.full(array.shape, chance.choice([np.nan, np.inf, -1.0, 1e300]))
        case _:
            return array.reshape(-1)[::-1].copy()


def use(read, target):
    """Do with a patch what users do."""
    assert repr(read)
    documents = np.zeros((int(read.rows.max(initial=0)) + 1, read.before.shape[1]), read.before.dtype)
    documents[read.rows] = read.before
    if read.rows.tolist() == read.ids:
        moved, problem = attempt(lambda: read.apply(documents))
        assert np.isfinite(moved).all() if problem is None else "nothing to do" in problem
    read.save(target)
