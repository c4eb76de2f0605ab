"""Drop-in replacements for the classes of the published ``nudge-ft`` package.

    from nudge import NUDGEN              # before
    from nudgevec.compat import NUDGEN    # after

Same constructor, same ``finetune_embeddings``, same kind of result: all embeddings, normalised, with
those of the training answers moved. gamma is the exact optimum instead of the best of a grid, and the
rows that came out as NaN there (a query equal to its document) come out right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, as_matrix
from nudgevec.corpus import ArrayCorpus, Reader
from nudgevec.errors import LabelError
from nudgevec.tuners import NudgeM, NudgeN, Tuner

__all__ = ["NUDGEM", "NUDGEN", "QueriesAnswersDict"]


class QueriesAnswersDict(TypedDict):
    """Query embeddings and, for each query, the rows of its answers."""

    q_embs: npt.NDArray[Any]
    q_ans_indx: list[list[int]]


class NUDGEM:
    """NUDGE-M with the interface of ``nudge-ft``. ``device`` is accepted and not needed."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def finetune_embeddings(
        self,
        embeddings: npt.NDArray[Any],
        train_set: QueriesAnswersDict,
        val_set: QueriesAnswersDict,
        nontrain_embeddings: npt.NDArray[Any] | None = None,
        val_batch_size: int = 256,
        gamma: float | None = None,
    ) -> Array:
        """Normalised embeddings, moved by NUDGE-M for the best validation accuracy at rank 1."""
        tuner = NudgeM("capped_recall@1", gamma=gamma, guard=0)
        return _finetune(tuner, embeddings, train_set, val_set, nontrain_embeddings)


class NUDGEN:
    """NUDGE-N with the interface of ``nudge-ft``. ``device`` is accepted and not needed."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def finetune_embeddings(
        self,
        embeddings: npt.NDArray[Any],
        train_set: QueriesAnswersDict,
        val_set: QueriesAnswersDict,
        nontrain_embeddings: npt.NDArray[Any] | None = None,
        val_batch_size: int = 256,
        val_k: int = 1,
        gamma: float | None = None,
    ) -> Array:
        """Normalised embeddings, moved by NUDGE-N for the best validation accuracy at rank ``val_k``."""
        tuner = NudgeN(f"capped_recall@{val_k}", gamma=gamma, guard=0)
        return _finetune(tuner, embeddings, train_set, val_set, nontrain_embeddings)


def _finetune(
    tuner: Tuner,
    embeddings: npt.NDArray[Any],
    train_set: QueriesAnswersDict,
    val_set: QueriesAnswersDict,
    nontrain_embeddings: npt.NDArray[Any] | None,
) -> Array:
    unit = _normalised(embeddings)
    documents: Any = unit
    if nontrain_embeddings is not None:
        documents = _Stacked(unit, as_matrix(nontrain_embeddings, "nontrain_embeddings"))
        outside = [row for line in train_set["q_ans_indx"] for row in line if row >= len(unit)]
        if outside:
            raise LabelError(f"row {outside[0]} is one of nontrain_embeddings, which cannot be an answer")
    tuner.fit(
        documents,
        train=(train_set["q_embs"], train_set["q_ans_indx"]),
        validation=(val_set["q_embs"], val_set["q_ans_indx"]),
    )
    tuned: Array = tuner.transform(unit)
    return tuned


def _normalised(embeddings: npt.NDArray[Any]) -> Array:
    reader = Reader(as_matrix(embeddings, "embeddings"))
    unit = [block.vectors / block.lengths[:, None] for block in reader.blocks(cosine=True)]
    return np.concatenate(unit).astype(as_matrix(embeddings, "embeddings").dtype)


class _Stacked:
    """The embeddings followed by those that never move, block by block and without joining them."""

    def __init__(self, first: Array, second: Array) -> None:
        self.first, self.second = first, second
        self.ids = range(len(first) + len(second))
        self.dim = int(first.shape[1])

    def take(self, ids: Sequence[Any]) -> Array:
        return self.first[np.asarray(ids, dtype=np.int64)]

    def blocks(self) -> Iterator[tuple[Sequence[Any], Array]]:
        yield from ArrayCorpus(self.first).blocks()
        for ids, block in ArrayCorpus(self.second).blocks():
            yield ids, _normalised(block)
