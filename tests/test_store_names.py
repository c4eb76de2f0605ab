"""Addresses and names of collections that are unusual: they work, or are refused in words."""

from __future__ import annotations

import chromadb
import lancedb
import numpy as np
import psycopg
import pytest

from nudgevec import NudgeN, cli, open_store
from nudgevec.errors import OptionError, StoreError
from nudgevec.stores import Address
from real_stores import Postgres

VECTORS = np.eye(3, 4, dtype=np.float32)
IDS = ["a", "b", "c"]


def apply_and_revert(store):
    """Do with a store what users do."""
    query = np.array([[0.6, 0.8, 0.0, 0.0]], np.float32)
    patch = NudgeN(gamma=0.1).fit(store, (query, [["a"]])).patch_
    assert store.apply(patch).applied == len(patch) == 1
    assert store.status().is_applied
    assert store.search(VECTORS[1], 1) == ["b"]
    assert len(np.concatenate([block for _, block in store.blocks()])) == 3
    assert store.revert().original == 1
    np.testing.assert_allclose(store.take(IDS), VECTORS, atol=1e-6)


@pytest.mark.parametrize("name", ["100%", "a%sb", "%(x)s", "%%", "a.b%"])
def test_percent_signs_in_names_of_postgresql(tmp_path, name):
    server = Postgres(tmp_path)
    with psycopg.connect(server.uri) as connection:
        # Without values, psycopg sends a query as it is.
        connection.execute(f'CREATE TABLE "{name}" ("id{name}" text PRIMARY KEY, "vector{name}" vector(4))')
        for key, vector in zip(IDS, VECTORS, strict=True):
            connection.execute(f"INSERT INTO \"{name}\" VALUES ('{key}', '{vector.tolist()}')")
    with open_store(server.uri, name) as store:
        apply_and_revert(store)


def test_keys_that_are_arrays_are_refused(tmp_path):
    server = Postgres(tmp_path)
    with psycopg.connect(server.uri) as connection:
        connection.execute("CREATE TABLE docs (id int[] PRIMARY KEY, embedding vector(4))")
    with pytest.raises(StoreError, match=r"column 'id' is integer\[\], but an id is one number or text"):
        open_store(server.url)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A folder of Chroma and a folder of LanceDB, with a name in two cases."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Data").mkdir()
    for path in ("Data/chroma", "."):
        client = chromadb.PersistentClient(str(tmp_path / path))
        client.create_collection("docs", embedding_function=None).add(ids=IDS, embeddings=VECTORS)
        client.close()
    rows = [{"id": key, "vector": vector} for key, vector in zip(IDS, VECTORS, strict=True)]
    for path in ("Data/lance", "."):
        lancedb.connect(path).create_table("docs", rows)


@pytest.mark.parametrize("form", ["{}:Data/{}", "{}://Data/{}", "{}:./Data/{}", "{}:."])
@pytest.mark.parametrize("kind", ["chroma", "lance"])
def test_folders_are_named_alike(folders, kind, form):
    scheme = {"chroma": "chroma", "lance": "lancedb"}[kind]
    with open_store(f"{form.format(scheme, kind)}#docs") as store:
        apply_and_revert(store)


def test_what_is_not_there_is_named(folders):
    with pytest.raises(StoreError, match="there is no LanceDB folder at Data/none"):
        open_store("lancedb://Data/none#docs")
    with pytest.raises(
        StoreError, match=r"no Chroma server answers at Data:8000 .*, and there is no Chroma folder at Data/no"
    ):
        open_store("chroma://Data/none#docs")
    with pytest.raises(
        OptionError, match="Data/lance#docs has no scheme: write lancedb:Data/lance#docs, or another of"
    ):
        open_store("Data/lance#docs")


def test_a_store_without_a_scheme_on_the_command_line(folders, capsys):
    assert cli.main(["tune", "--store", "Data/lance#docs", "--labels", "log", "--out", "run"]) == 1
    assert "--store Data/lance#docs has no scheme: write lancedb:Data/lance#docs" in capsys.readouterr().err


def test_passwords_are_masked_in_every_form():
    address = Address.parse("postgresql://me:p%40ss%2Fword@host/db?password=other")
    shown = address.hide_password("p@ss/word p%40ss/word p%40ss%2Fword other")
    assert shown == "*** *** *** ***"


def test_hosts_keep_their_case():
    assert Address.parse("lancedb://Data/Db#docs").local_path == "Data/Db"
    assert Address.parse("postgresql://Me:Pass@Host:5432/db").host == "Host"
    assert Address.parse("qdrant://[::1]:6333#docs").host == "::1"
    assert Address.parse("lancedb:Data#docs").host == ""
