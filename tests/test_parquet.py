"""Parquet folders give the answer of the array they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nudgevec import NudgeM, NudgeN
from nudgevec.errors import VectorError
from nudgevec.parquet import ParquetCorpus
from problems import learnable


def write(folder, documents, ids, files=3, group=37):
    for number, part in enumerate(np.array_split(np.arange(len(documents)), files)):
        flat = pa.array(np.ascontiguousarray(documents[part]).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, documents.shape[1])
        table = pa.table({"id": [ids[row] for row in part], "text": ["x"] * len(part), "vector": vectors})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)


@pytest.mark.parametrize("method", [NudgeN, NudgeM])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_same_answer_as_the_array(tmp_path, method, dtype):
    documents, train, validation, _ = learnable()
    documents = documents.astype(dtype)
    ids = [f"doc-{row}" for row in range(len(documents))]
    write(tmp_path, documents, ids)
    reference = method().fit(documents, train, validation)

    def names(part):
        return part[0], [[ids[entry[0]]] for entry in part[1]]

    corpus = ParquetCorpus(tmp_path, block_rows=50)
    tuner = method().fit(corpus, names(train), names(validation))
    assert tuner.gamma_ == reference.gamma_
    assert np.array_equal(tuner.curve_.edges, reference.curve_.edges)
    assert np.array_equal(tuner.patch_.after, reference.patch_.after)
    assert tuner.patch_.ids == [ids[row] for row in reference.patch_.rows]
    assert np.array_equal(tuner.transform(corpus), reference.transform(documents))
    by_row = method().fit(ParquetCorpus(tmp_path, id_column=None), train, validation)
    assert by_row.gamma_ == reference.gamma_


def test_take_in_any_order(tmp_path):
    documents = learnable()[0]
    ids = list(range(1000, 1000 + len(documents)))
    write(tmp_path, documents, ids)
    rows = np.random.default_rng(0).permutation(len(documents))[:90]
    corpus = ParquetCorpus(tmp_path)
    assert np.array_equal(corpus.take([ids[row] for row in rows]), documents[rows])
    assert corpus.take([]).shape == (0, documents.shape[1])


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(VectorError, match="no Parquet files"):
        ParquetCorpus(tmp_path)
    pq.write_table(pa.table({"id": [1], "vector": [[1.0, 2.0]]}), tmp_path / "a.parquet")
    with pytest.raises(VectorError, match="has no column 'embedding'; it has id, vector"):
        ParquetCorpus(tmp_path, vector_column="embedding")
    with pytest.raises(VectorError, match="must be a FixedSizeList"):
        ParquetCorpus(tmp_path)
