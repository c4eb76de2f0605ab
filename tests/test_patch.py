"""Apply, revert, save and load patches, and refuse those that do not fit."""

from __future__ import annotations

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


def test_an_empty_patch_changes_nothing(tmp_path):
    documents, train, *_ = learnable()
    patch = NudgeN(gamma=0).fit(documents, train).patch_
    assert len(patch) == 0
    assert np.array_equal(patch.apply(documents), documents)
    patch.save(tmp_path / "p")
    assert len(Patch.load(tmp_path / "p")) == 0
