"""Drop-in replacements for the classes of the published ``nudge-ft`` package.

    from nudge import NUDGEN              # before
    from nudgevec.compat import NUDGEN    # after

The constructor, ``finetune_embeddings`` and its result are the same: all embeddings, normalised, with those of the
training answers moved. gamma is the exact optimum instead of the best of a grid, and rows that ``nudge-ft`` returns as
NaN (a query equal to its document) are correct.
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
    """Labelled queries.

    Attributes
    ----------
    q_embs : array of shape (q, d)
        Query embeddings.
    q_ans_indx : list of list of int
        For each query, the rows of its relevant documents.
    """

    q_embs: npt.NDArray[Any]
    q_ans_indx: list[list[int]]


class NUDGEM:
    """NUDGE-M with the interface of ``nudge-ft``.

    Parameters
    ----------
    device : object
        Ignored; accepted because ``nudge-ft`` has it.

    Examples
    --------
    >>> import numpy as np
    >>> train = {"q_embs": np.array([[0.8, 0.6, 0.0]]), "q_ans_indx": [[1]]}
    >>> validation = {"q_embs": np.array([[0.7, 0.7, 0.1]]), "q_ans_indx": [[1]]}
    >>> tuned = NUDGEM().finetune_embeddings(np.eye(3), train, validation, gamma=0.5)
    >>> tuned[1].round(3).tolist()
    [0.4, 1.3, 0.0]
    """

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
        """Return normalised embeddings, moved by NUDGE-M for the best validation accuracy at rank 1.

        Parameters
        ----------
        embeddings : array of shape (n, d)
            Embeddings of the documents.
        train_set, val_set : QueriesAnswersDict
            Training and validation queries.
        nontrain_embeddings : array of shape (m, d), optional
            Embeddings of more documents, which are retrieved too but never moved nor returned.
        val_batch_size : int
            Ignored; accepted because ``nudge-ft`` has it.
        gamma : float, optional
            Length of the step, instead of the best one.

        Returns
        -------
        array of shape (n, d)

        Raises
        ------
        LabelError
            If a training answer is one of ``nontrain_embeddings``.
        """
        tuner = NudgeM("capped_recall@1", gamma=gamma, guard=0)
        return _finetune(tuner, embeddings, train_set, val_set, nontrain_embeddings)


class NUDGEN:
    """NUDGE-N with the interface of ``nudge-ft``.

    Parameters
    ----------
    device : object
        Ignored; accepted because ``nudge-ft`` has it.

    Examples
    --------
    >>> import numpy as np
    >>> train = {"q_embs": np.array([[0.8, 0.6, 0.0]]), "q_ans_indx": [[1]]}
    >>> validation = {"q_embs": np.array([[0.7, 0.7, 0.1]]), "q_ans_indx": [[1]]}
    >>> tuned = NUDGEN().finetune_embeddings(np.eye(3), train, validation, gamma=0.1)
    >>> [float(length) for length in np.linalg.norm(tuned, axis=1).round(6)]
    [1.0, 1.0, 1.0]
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    # The parameters are those of nudge-ft.
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
        """Return normalised embeddings, moved by NUDGE-N for the best validation accuracy at rank ``val_k``.

        Parameters
        ----------
        embeddings : array of shape (n, d)
            Embeddings of the documents.
        train_set, val_set : QueriesAnswersDict
            Training and validation queries.
        nontrain_embeddings : array of shape (m, d), optional
            Embeddings of more documents, which are retrieved too but never moved nor returned.
        val_batch_size : int
            Ignored; accepted because ``nudge-ft`` has it.
        val_k : int
            Cut-off of the validation metric, ``capped_recall@k``.
        gamma : float, optional
            Size of the step, instead of the best one.

        Returns
        -------
        array of shape (n, d)

        Raises
        ------
        LabelError
            If a training answer is one of ``nontrain_embeddings``.
        """
        tuner = NudgeN(f"capped_recall@{val_k}", gamma=gamma, guard=0)
        return _finetune(tuner, embeddings, train_set, val_set, nontrain_embeddings)


def _finetune(
    tuner: Tuner,
    embeddings: npt.NDArray[Any],
    train_set: QueriesAnswersDict,
    val_set: QueriesAnswersDict,
    nontrain_embeddings: npt.NDArray[Any] | None,
) -> Array:
    unit = _normalise(embeddings)
    documents: Any = unit
    if nontrain_embeddings is not None:
        documents = _Stacked(unit, as_matrix(nontrain_embeddings, "nontrain_embeddings"))
        outside = [row for rows in train_set["q_ans_indx"] for row in rows if row >= len(unit)]
        if outside:
            raise LabelError(f"row {outside[0]} is one of nontrain_embeddings, which cannot be an answer")
    tuner.fit(
        documents,
        train=(train_set["q_embs"], train_set["q_ans_indx"]),
        validation=(val_set["q_embs"], val_set["q_ans_indx"]),
    )
    tuned: Array = tuner.transform(unit)
    return tuned


def _normalise(embeddings: npt.NDArray[Any]) -> Array:
    reader = Reader(as_matrix(embeddings, "embeddings"))
    unit = [block.vectors / block.lengths[:, None] for block in reader.blocks(cosine=True)]
    return np.concatenate(unit).astype(as_matrix(embeddings, "embeddings").dtype)


class _Stacked:
    """Two arrays as one corpus, without joining them; the second is normalised block by block."""

    def __init__(self, first: Array, second: Array) -> None:
        self.first, self.second = first, second
        self.ids = range(len(first) + len(second))
        self.dim = int(first.shape[1])

    def take(self, ids: Sequence[Any]) -> Array:
        # Only documents with training labels are taken, and they are in the first array.
        return self.first[np.asarray(ids, dtype=np.int64)]

    def blocks(self) -> Iterator[tuple[Sequence[Any], Array]]:
        yield from ArrayCorpus(self.first).blocks()
        for ids, block in ArrayCorpus(self.second).blocks():
            yield ids, _normalise(block)
