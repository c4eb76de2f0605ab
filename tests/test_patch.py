"""Apply, revert, save and load patches, and refuse those that do not fit."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from nudgevec import ArrayCorpus, NudgeM, NudgeN, Patch
from nudgevec.errors import PatchError
from problems import learnable


@pytest.fixture(scope="module", params=[(NudgeN, np.float32), (NudgeN, np.float16), (NudgeM, np.float64)])
def fitted(request):
    method, dtype = request.param
    documents, train, validation, _ = learnable()
    documents = documents.astype(dtype)
    return documents, method().fit(documents, train, validation).patch_


def test_apply_and_revert_are_inverse_bit_for_bit(fitted):
    documents, patch = fitted
    applied = patch.apply(documents)
    rest = np.setdiff1d(np.arange(len(documents)), patch.rows)
    assert np.array_equal(applied[rest], documents[rest])
    assert (applied[patch.rows] != documents[patch.rows]).any(axis=1).all()
    assert np.array_equal(patch.revert(applied), documents)


def test_a_patch_refuses_other_vectors(fitted):
    documents, patch = fitted
    other = documents.copy()
    other[patch.rows[2], 0] += 1
    with pytest.raises(
        PatchError, match=f"1 of {len(patch)} documents .* row {patch.rows[2]}: they are not the vectors"
    ):
        patch.apply(other)
    with pytest.raises(PatchError, match="nothing to do: the documents already have these vectors"):
        patch.revert(documents)
    other = patch.apply(documents)
    other[patch.rows[2], 0] += 1
    with pytest.raises(PatchError, match="not applied"):
        patch.revert(other)
    with pytest.raises(PatchError, match="shape"):
        patch.apply(documents[:3])
    with pytest.raises(PatchError, match="shape"):
        patch.apply(documents[:, :3])


def test_documents_added_later_are_not_changed(fitted):
    documents, patch = fitted
    longer = np.concatenate([documents, documents[:5]])
    assert np.array_equal(patch.apply(longer)[: len(documents)], patch.apply(documents))


def test_saved_and_loaded(fitted, tmp_path):
    documents, patch = fitted
    patch.save(tmp_path / "patch.safetensors")
    again = Patch.load(tmp_path / "patch.safetensors")
    assert np.array_equal(again.apply(documents), patch.apply(documents))
    assert again.before.dtype == documents.dtype
    assert again.ids == patch.ids
    assert np.array_equal(again.curve.edges, patch.curve.edges)
    for name in ("method", "similarity", "gamma", "metric", "validation", "counts", "fingerprint"):
        assert getattr(again, name) == getattr(patch, name)
    assert [path.name for path in tmp_path.iterdir()] == ["patch.safetensors"]


def test_ids_are_saved_and_loaded(tmp_path):
    documents, train, validation, _ = learnable()
    ids = [f"döc/{row}" for row in range(len(documents))]

    def names(part):
        return part[0], [[ids[entry[0]]] for entry in part[1]]

    patch = NudgeN().fit(ArrayCorpus(documents, ids), names(train), names(validation)).patch_
    patch.save(tmp_path / "p")
    assert Patch.load(tmp_path / "p").ids == patch.ids
    assert set(patch.ids) <= set(ids)


@pytest.mark.parametrize("ids", [np.arange(1000, 1400), [("a", row) for row in range(400)]], ids=["numpy", "tuples"])
def test_ids_that_are_not_strings(ids, tmp_path):
    documents, train, validation, _ = learnable()

    def names(part):
        return part[0], [[ids[entry[0]]] for entry in part[1]]

    patch = NudgeN().fit(ArrayCorpus(documents, ids), names(train), names(validation)).patch_
    if isinstance(ids, np.ndarray):
        patch.save(tmp_path / "p")
        assert Patch.load(tmp_path / "p").ids == patch.ids
        assert np.array_equal(patch.apply(ArrayCorpus(documents, ids))[patch.rows], patch.after)
    else:
        with pytest.raises(PatchError, match=r"not \('a', "):
            patch.save(tmp_path / "p")


def test_missing_documents(fitted):
    documents, patch = fitted
    with pytest.raises(PatchError, match=r"does not fit these documents: .* not in the corpus"):
        patch.apply(ArrayCorpus(documents, [f"other-{row}" for row in range(len(documents))]))


def test_files_that_are_not_a_patch(fitted, tmp_path):
    _, patch = fitted
    path = tmp_path / "patch"
    path.write_bytes(b"not a patch")
    with pytest.raises(PatchError, match="not a readable patch"):
        Patch.load(path)
    from safetensors.numpy import save_file

    save_file({"x": np.ones(3)}, path)
    with pytest.raises(PatchError, match="is not a nudgevec patch"):
        Patch.load(path)
    patch.save(path)
    whole = path.read_bytes()
    for part in (patch.before, patch.after):
        damaged = bytearray(whole)
        damaged[whole.find(part.tobytes())] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(PatchError, match="damaged"):
            Patch.load(path)


def edited(path, edit):
    """Change the header of a patch file, and leave everything else."""
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + size])
    facts = json.loads(header["__metadata__"]["nudgevec"])
    edit(facts)
    header["__metadata__"]["nudgevec"] = json.dumps(facts)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size :])


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("gamma", 3.0),
        ("similarity", "l2"),
        ("metric", "mrr@7"),
        ("method", "NU"),
        ("counts", {"documents": 1}),
        ("validation", {}),
        ("curve.at_zero", 0.5),
    ],
)
def test_the_checksum_covers_every_fact(fitted, tmp_path, fact, value):
    _, patch = fitted
    path = tmp_path / "patch"
    patch.save(path)
    edited(path, lambda facts: facts.update({fact: value}))
    with pytest.raises(PatchError, match="checksum"):
        Patch.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"before": np.full((2, 3), np.nan, np.float32)}, "not finite"),
        ({"after": np.full((2, 3), np.inf, np.float32)}, "not finite"),
        ({"after": np.ones((2, 4), np.float32)}, "shape"),
        ({"after": np.ones((2, 3))}, "type"),
        ({"rows": np.array([0])}, "number"),
        ({"rows": np.array([0, 0])}, "twice"),
        ({"rows": np.array([-1, 0])}, "row"),
        ({"ids": ["a", "a"]}, "twice"),
        ({"ids": ["a"]}, "number"),
    ],
    ids=str,
)
def test_a_patch_whose_parts_do_not_fit_is_refused(tmp_path, change, message):
    parts = {
        "rows": np.array([0, 1]),
        "ids": ["a", "b"],
        "before": np.eye(2, 3, dtype=np.float32),
        "after": np.ones((2, 3), np.float32),
        "labels": np.array([1, 1]),
        "distance": np.ones(2),
        "method": "N",
        "similarity": "cosine",
        "gamma": 0.1,
    }
    path = tmp_path / "patch"
    Patch(**parts).save(path)
    assert len(Patch.load(path)) == 2
    Patch(**parts | change).save(path)
    with pytest.raises(PatchError, match=message):
        Patch.load(path)


def test_many_processes_save_one_patch(fitted, tmp_path):
    """A reader never sees half a file, and no writer fails."""
    _, patch = fitted
    path = tmp_path / "patch"
    patch.save(path)
    code = """
import sys
from nudgevec import Patch
patch = Patch.load(sys.argv[1])
for _ in range(40):
    patch.save(sys.argv[1])
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, path]) for _ in range(3)]
    while any(writer.poll() is None for writer in writers):
        assert Patch.load(path).identity == patch.identity
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["patch"]


def test_a_file_with_the_name_of_a_draft_is_not_overwritten(fitted, tmp_path):
    _, patch = fitted
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / ".patch.draft").symlink_to(tmp_path / "thesis")
    patch.save(tmp_path / "patch")
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert (tmp_path / ".patch.draft").is_symlink()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_of_other_new_files(fitted, tmp_path, umask):
    _, patch = fitted
    previous = os.umask(umask)
    try:
        patch.save(tmp_path / "patch")
    finally:
        os.umask(previous)
    assert (tmp_path / "patch").stat().st_mode & 0o777 == 0o666 & ~umask
    (tmp_path / "patch").chmod(0o640)
    patch.save(tmp_path / "patch")
    assert (tmp_path / "patch").stat().st_mode & 0o777 == 0o640


def test_an_empty_patch_changes_nothing(tmp_path):
    documents, train, *_ = learnable()
    patch = NudgeN(gamma=0).fit(documents, train).patch_
    assert len(patch) == 0
    assert np.array_equal(patch.apply(documents), documents)
    patch.save(tmp_path / "p")
    assert len(Patch.load(tmp_path / "p")) == 0
