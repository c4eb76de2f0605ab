"""Parquet corpora: same result as the equal array for every way of writing the files; errors name the file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nudgevec import NudgeM, NudgeN, ParquetCorpus
from nudgevec.errors import VectorError
from problems import learnable

PLAIN = {"compression": "none", "use_dictionary": False}


def table(documents, ids, nullable=True):
    flat = pa.array(np.ascontiguousarray(documents).ravel())
    kind = pa.list_(pa.field("element", flat.type, nullable=nullable), documents.shape[1])
    vectors = pa.FixedSizeListArray.from_arrays(flat, type=kind)
    return pa.table({"id": ids, "text": ["x"] * len(ids), "vector": vectors})


def write(folder, documents, ids, files=3, **options):
    for number, rows in enumerate(np.array_split(np.arange(len(documents)), files)):
        content = table(documents[rows], [ids[row] for row in rows])
        pq.write_table(content, folder / f"part-{number}.parquet", **{"row_group_size": 37, **options})


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, PLAIN, {"use_dictionary": False}], ids=["default", "plain", "snappy"])
def test_fit_equals_fit_on_the_array(tmp_path, method, dtype, options):
    documents, train, validation, _ = learnable()
    documents = documents.astype(dtype)
    ids = [f"doc-{row}" for row in range(len(documents))]
    write(tmp_path, documents, ids, **options)
    reference = method().fit(documents, train, validation)

    def with_ids(queries, labels):
        return queries, [[ids[entry[0]]] for entry in labels]

    corpus = ParquetCorpus(tmp_path, block_rows=50)
    tuner = method().fit(corpus, with_ids(*train), with_ids(*validation))
    assert tuner.gamma_ == reference.gamma_
    assert np.array_equal(tuner.curve_.edges, reference.curve_.edges)
    assert np.array_equal(tuner.patch_.after, reference.patch_.after)
    assert tuner.patch_.ids == [ids[row] for row in reference.patch_.rows]
    assert np.array_equal(tuner.transform(corpus), reference.transform(documents))
    by_row = method().fit(ParquetCorpus(tmp_path, id_column=None), train, validation)
    assert by_row.gamma_ == reference.gamma_


@given(
    rows=st.integers(1, 60),
    dim=st.integers(1, 9),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
    nullable=st.booleans(),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.sampled_from([False, True, "overflowing"]),
    statistics=st.booleans(),
    index=st.booleans(),
    group=st.integers(1, 70),
    page=st.integers(64, 600),
    block=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=200)
def test_every_file_layout_is_read_correctly(
    tmp_path_factory,
    rows,
    dim,
    kind,
    nullable,
    compression,
    version,
    dictionary,
    statistics,
    index,
    group,
    page,
    block,
    seed,
):
    """Vary page size (a page can end inside a vector), page version, compression and dictionary encoding.

    A dictionary of 16 bytes overflows, and the writer falls back to plain encoding within a column.
    """
    random = np.random.default_rng(seed)
    documents = random.standard_normal((rows, dim)).astype(kind)
    if random.random() < 0.3:
        documents[:] = 0.5  # compresses well
    path = tmp_path_factory.mktemp("written") / "a.parquet"
    pq.write_table(
        table(documents, list(range(rows)), nullable),
        path,
        compression=compression,
        data_page_version=version,
        use_dictionary=bool(dictionary),
        dictionary_pagesize_limit=16 if dictionary == "overflowing" else None,
        write_statistics=statistics,
        write_page_index=index,
        row_group_size=group,
        data_page_size=page,
        write_batch_size=int(random.integers(1, 64)),
    )
    corpus = ParquetCorpus(path, block_rows=block)
    if statistics and not dictionary and compression in ("none", "snappy"):
        assert np.array_equal(np.concatenate([vectors for _, vectors in corpus.blocks()]), documents)
    assert [key for ids, _ in corpus.blocks() for key in ids] == list(range(rows))
    sample = random.integers(0, rows, random.integers(0, 2 * rows))
    assert np.array_equal(corpus.take(sample.tolist()), documents[sample])


def test_take_returns_rows_in_the_order_of_the_ids(tmp_path):
    documents = learnable()[0]
    ids = list(range(1000, 1000 + len(documents)))
    write(tmp_path, documents, ids)
    rows = np.random.default_rng(0).permutation(len(documents))[:90]
    corpus = ParquetCorpus(tmp_path)
    assert np.array_equal(corpus.take([ids[row] for row in rows]), documents[rows])
    assert corpus.take([]).shape == (0, documents.shape[1])
    repeated = [1005, 1005, 1006, 1004]
    assert np.array_equal(corpus.take(repeated), documents[np.array(repeated) - 1000])


@pytest.mark.parametrize("row", [-1, 400])
def test_take_refuses_rows_out_of_range(tmp_path, row):
    documents = learnable()[0]
    write(tmp_path, documents, list(range(400)))
    with pytest.raises(IndexError, match=f"there is no row {row}: the rows of these documents are 0 to 399"):
        ParquetCorpus(tmp_path, id_column=None).take([3, row])


def test_relative_paths_survive_a_change_of_the_working_directory(tmp_path, monkeypatch):
    documents = learnable()[0]
    write(tmp_path, documents, list(range(400)), **PLAIN)
    monkeypatch.chdir(tmp_path)
    corpus = ParquetCorpus(".")
    monkeypatch.chdir("/")
    assert np.array_equal(corpus.take([7]), documents[[7]])


@pytest.mark.parametrize("missing", ["vector", "number"])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_missing_vectors_and_numbers_are_refused(tmp_path, missing, compression):
    """Parquet does not store nulls: the values after a null move up in the file."""
    vectors = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    vectors[1] = None if missing == "vector" else [3.0, None]
    column = pa.array(vectors, pa.list_(pa.float32(), 2))
    for name, content in (("a", column[:1]), ("b", column)):
        pq.write_table(
            pa.table({"id": range(len(content)), "vector": content}),
            tmp_path / f"{name}.parquet",
            **{**PLAIN, "compression": compression},
        )
    corpus = ParquetCorpus(tmp_path, id_column=None)
    with pytest.raises(VectorError, match=r"row 1 of .*b.parquet has no vector in|row 2 holds NaN"):
        NudgeN(gamma=0.1).fit(corpus, (np.ones((1, 2)), [[2]]))


@pytest.mark.parametrize("change", ["truncated", "replaced"])
def test_a_file_that_changed_after_opening_is_refused(tmp_path, change):
    documents = learnable()[0]
    write(tmp_path, documents, list(range(len(documents))), files=1, **PLAIN)
    corpus = ParquetCorpus(tmp_path)
    path, other = tmp_path / "part-0.parquet", tmp_path / "other"
    other.write_bytes(path.read_bytes()[:2000] if change == "truncated" else path.read_bytes())
    other.replace(path)
    with pytest.raises(VectorError, match=r"part-0.parquet changed since it was opened: open it again"):
        corpus.take([399])


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_variable_size_lists_are_read_if_all_lengths_agree(tmp_path, kind):
    """pandas writes such columns. Vectors of different lengths are refused."""
    documents, train, validation, _ = learnable()
    vectors = pa.array(list(documents), kind(pa.float32()))
    pq.write_table(pa.table({"vector": vectors}), tmp_path / "a.parquet", row_group_size=90)
    corpus = ParquetCorpus(tmp_path, id_column=None, block_rows=33)
    assert np.array_equal(np.concatenate([block for _, block in corpus.blocks()]), documents)
    assert np.array_equal(corpus.take([399, 7, 90]), documents[[399, 7, 90]])
    assert NudgeN().fit(corpus, train, validation).gamma_ == NudgeN().fit(documents, train, validation).gamma_
    longer = pa.array([*documents[:300], np.ones(17, np.float32)], kind(pa.float32()))
    pq.write_table(pa.table({"vector": longer}), tmp_path / "a.parquet")
    with pytest.raises(
        VectorError, match=r"row 300 of .*a.parquet has a vector of 17 dimensions, and the first one has 16"
    ):
        list(ParquetCorpus(tmp_path, id_column=None, block_rows=33).blocks())


def test_files_are_read_in_natural_order(tmp_path):
    documents = np.arange(24, dtype=np.float32).reshape(12, 2) + 1
    for number, row in enumerate(documents):
        pq.write_table(table(row[None], [number]), tmp_path / f"part-{number}.parquet")
    for name in ("._part-1.parquet", "_metadata.parquet"):
        (tmp_path / name).write_text("left behind by another program")
    corpus = ParquetCorpus(tmp_path)
    assert corpus.ids == list(range(12))
    assert np.array_equal(corpus.take(range(12)), documents)
    assert repr(corpus) == f"ParquetCorpus(12 documents of 2 dimensions, {str(tmp_path)!r})"


def write_one_row(folder, **columns):
    pq.write_table(pa.table({"id": [1], "vector": [[1.0, 2.0]], **columns}), folder / "a.parquet")


def test_unusable_files_and_columns_are_named(tmp_path):
    def refused(message, **options):
        with pytest.raises(VectorError, match=message):
            ParquetCorpus(tmp_path, **options)

    refused(r"no \*.parquet files in .* \(subfolders are not searched\)")
    with pytest.raises(VectorError, match=r"no such file or folder: .*nowhere"):
        ParquetCorpus(tmp_path / "nowhere")
    write_one_row(tmp_path)
    refused(r"a.parquet has no column 'embedding'; it has id, vector", vector_column="embedding")
    refused(r"column 'id' of .*a.parquet is int64; expected lists of floats", vector_column="id")
    refused(r"column 'vector' of .*a.parquet is .*; expected strings or integers", id_column="vector")
    write_one_row(tmp_path, id=pa.array([None], pa.string()))
    refused(r"row 0 of .*a.parquet has no id in column 'id'")
    write_one_row(tmp_path)
    pq.write_table(table(np.zeros((1, 3)), [0]), tmp_path / "b.parquet")
    refused(
        r"vectors have 2 dimensions \(float64\) in a.parquet, but 3 \(float64\) in b.parquet; all files .* must agree"
    )
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    refused(r"b.parquet cannot be read: ")
    (tmp_path / "b.parquet").unlink()
    empty = pa.array([[]], pa.list_(pa.float32(), 0))
    write_one_row(tmp_path, vector=empty)
    with pytest.raises(VectorError, match="the corpus is empty: 1 documents of 0 dimensions"):
        NudgeN(gamma=1).fit(ParquetCorpus(tmp_path), (np.ones((1, 2)), [[1]]))


@pytest.mark.parametrize("dictionary", [False, True], ids=["copied", "decoded"])
def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path, dictionary):
    documents = np.zeros((400, 16), np.float32)
    write(tmp_path, documents, list(range(400)), files=1, row_group_size=400, use_dictionary=dictionary)
    path = tmp_path / "part-0.parquet"
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    end = column.data_page_offset + column.total_compressed_size
    damaged = bytearray(path.read_bytes())
    damaged[end - 40 : end] = bytes(40)
    path.write_bytes(damaged)
    with pytest.raises(VectorError, match=r"part-0.parquet cannot be read: "):
        list(ParquetCorpus(tmp_path, id_column=None).blocks())
