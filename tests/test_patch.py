"""Apply, revert, save and load patches, and refuse those that do not fit."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import nudgevec.patch
import nudgevec.tensors
from nudgevec import ArrayCorpus, NudgeM, NudgeN, Patch
from nudgevec.errors import PatchError
from nudgevec.tensors import map_tensors, mapping_of
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


@pytest.fixture
def slices_of_one_row(monkeypatch):
    """Read and write arrays of patches in many slices."""
    monkeypatch.setattr(nudgevec.tensors, "_SLICE_BYTES", 1)
    monkeypatch.setattr(nudgevec.patch, "_BATCH_ROWS", 3)


@pytest.mark.usefixtures("slices_of_one_row")
def test_slices_give_the_same_values_as_whole_arrays(fitted, tmp_path):
    documents, patch = fitted
    digest = hashlib.sha256(repr(patch.ids).encode() + str(patch.before.dtype).encode() + patch.before.tobytes())
    assert patch.fingerprint == digest.hexdigest()
    digest = hashlib.sha256(f"{patch.method} {patch.fingerprint}".encode() + patch.after.tobytes())
    assert patch.identity == digest.hexdigest()
    patch.save(tmp_path / "patch")
    again = Patch.load(tmp_path / "patch")
    assert again.identity == patch.identity
    assert np.array_equal(again.apply(documents)[again.rows], patch.after)
    assert np.array_equal(again.revert(again.apply(documents)), documents)
    over = again.over(documents)
    assert np.array_equal(np.concatenate([block for _, block in over.blocks()]), again.apply(documents))
    other = documents.copy()
    other[patch.rows[[2, 7]], 0] += 1
    with pytest.raises(PatchError, match=f"2 of {len(patch)} documents .* row {patch.rows[2]}"):
        again.apply(other)


def test_rows_in_any_order(fitted):
    documents, patch = fitted
    order = np.random.default_rng(0).permutation(len(patch))
    parts = {name: getattr(patch, name)[order] for name in ("rows", "before", "after", "labels", "distance")}
    ids = [patch.ids[position] for position in order]
    shuffled = Patch(**parts, ids=ids, method=patch.method, similarity=patch.similarity, gamma=patch.gamma)
    applied = patch.apply(documents)
    assert np.array_equal(shuffled.apply(documents), applied)
    over = shuffled.over(ArrayCorpus(documents, block_rows=7))
    assert np.array_equal(np.concatenate([block for _, block in over.blocks()]), applied)
    rows = np.random.default_rng(1).permutation(len(documents))
    assert np.array_equal(over.take(rows.tolist()), applied[rows])


def test_a_loaded_patch_is_mapped_and_survives_the_replacement_of_its_file(fitted, tmp_path):
    documents, patch = fitted
    path = tmp_path / "patch"
    patch.save(path)
    again = Patch.load(path)
    assert all(mapping_of(vectors) is not None for vectors in (again.before, again.after))
    assert not again.after.flags.writeable
    NudgeN(gamma=0.3).fit(np.eye(4), (np.ones((1, 4)), [[1]])).patch_.save(path)
    assert again.identity == patch.identity
    path.unlink()
    assert np.array_equal(again.apply(documents), patch.apply(documents))


def test_the_safetensors_library_reads_a_patch(fitted, tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    _, patch = fitted
    patch.save(tmp_path / "patch")
    tensors = load_file(tmp_path / "patch")
    for name in ("rows", "before", "after", "labels", "distance"):
        assert np.array_equal(tensors[name], getattr(patch, name))
    assert json.loads(tensors["ids"].tobytes()) == patch.ids
    with safe_open(tmp_path / "patch", "numpy") as file:
        metadata = file.metadata()
    assert json.loads(metadata["nudgevec"])["gamma"] == patch.gamma
    save_file(tensors, tmp_path / "again", metadata)
    assert Patch.load(tmp_path / "again").identity == patch.identity


def test_files_of_the_first_format_are_read(fitted, tmp_path):
    """Their ids are in the header."""
    from safetensors.numpy import save_file

    _, patch = fitted
    path = tmp_path / "patch"
    patch.save(path)
    metadata, tensors = map_tensors(path)
    facts = json.loads(metadata["nudgevec"]) | {"format": "nudgevec-patch-1", "ids": patch.ids}
    del facts["checksum"]
    arrays = {name: tensor.copy() for name, tensor in tensors.items() if name != "ids"}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    save_file(arrays, path, {"nudgevec": json.dumps({**facts, "checksum": digest.hexdigest()})})
    again = Patch.load(path)
    assert (again.identity, again.ids, again.gamma) == (patch.identity, patch.ids, patch.gamma)


def header_of(**change):
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]} | change
    return json.dumps({"__metadata__": {}, "before": entry}).encode()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"before": 3}',
        b'{"__metadata__": 3}',
        b"\xff",
        header_of(dtype="F31"),
        header_of(dtype=[]),
        header_of(shape=[2, -3]),
        header_of(shape=[2.0, 3]),
        header_of(shape=[True, 6]),
        header_of(shape=3),
        header_of(shape=[2**70, 3]),
        header_of(data_offsets=[0, 2**70]),
        header_of(data_offsets=[-24, 0]),
        header_of(data_offsets=[24, 48]),
        header_of(data_offsets=[0]),
        header_of(more=1),
    ],
    ids=lambda header: header[:70],
)
def test_malformed_headers(tmp_path, header):
    path = tmp_path / "patch"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    with pytest.raises(PatchError, match="is not a readable patch"):
        Patch.load(path)
    path.write_bytes(struct.pack("<Q", 2**63) + header + bytes(24))
    with pytest.raises(PatchError, match="the header is incomplete"):
        Patch.load(path)


def test_arrays_of_other_programs(tmp_path):
    """Not aligned, without dimensions, and empty ones."""
    header = json.dumps(
        {
            "one": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]},
            "none": {"dtype": "F64", "shape": [0, 3], "data_offsets": [1, 1]},
            "three": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
        }
    ).encode()
    header += b" " * (len(header) % 2)
    data = b"\x07" + np.arange(3, dtype=np.float32).tobytes()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header + data)
    metadata, tensors = map_tensors(tmp_path / "file")
    assert metadata == {}
    assert (tensors["one"].item(), tensors["none"].shape, tensors["three"].tolist()) == (7, (0, 3), [0.0, 1.0, 2.0])
    assert all(tensor.flags.aligned for tensor in tensors.values())
    assert [part.tolist() for part in nudgevec.tensors.row_slices(tensors["one"])] == [[7]]


def test_an_empty_patch_changes_nothing(tmp_path):
    documents, train, *_ = learnable()
    patch = NudgeN(gamma=0).fit(documents, train).patch_
    assert len(patch) == 0
    assert np.array_equal(patch.apply(documents), documents)
    patch.save(tmp_path / "p")
    assert len(Patch.load(tmp_path / "p")) == 0
