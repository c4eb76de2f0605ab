"""All searching that a fit does, with one pass over the documents.

Documents without a training label never move. The best of them for every query are found once, and are merged with the
labelled documents, moved or not. Test queries take a second pass where the tuned vectors have another similarity than
the search (``NudgeMN``), and one more where equal documents are tied for the last place of a ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nudgevec.arrays import Array, Floats, Ints
from nudgevec.core.curve import QueryCurves, query_curves
from nudgevec.core.exact import scaled_queries
from nudgevec.core.paths import Paths
from nudgevec.core.scan import TopK, empty_top_k
from nudgevec.core.sweep import Steps, metric_steps
from nudgevec.corpus import Reader
from nudgevec.engines import Engine, pick, with_rows
from nudgevec.errors import LabelError, VectorError
from nudgevec.evaluation import Evaluation, evaluate_ranking, rank_documents
from nudgevec.labels import Labels
from nudgevec.metrics import USUAL, Metric
from nudgevec.patch import Patch


@dataclass(frozen=True, eq=False)
class BeforeAfter:
    """What ``fit`` measured on test queries, which take no part in tuning.

    Attributes
    ----------
    before, after : Evaluation
        Retrieval quality with the original and with the tuned vectors.
    top_before, top_after : array of int, shape (q, k)
        Rows of the best documents of every query with a relevant label.
    query_curves : QueryCurves or None
        The metric of every such query as a function of gamma; None for ``NudgeMN``, whose gamma is that of another
        similarity. Here a tie counts against the label, while ``before`` and ``after`` rank equal scores by id as
        trec_eval does. So where documents are duplicates, the values of a query can differ.

    Examples
    --------
    >>> from nudgevec import NudgeN
    >>> documents, queries = np.eye(3), np.array([[0.8, 0.6, 0.0], [0.7, 0.6, 0.1]])
    >>> tuner = NudgeN("success@1", gamma=0.3).fit(documents, (queries[:1], [[1]]), test=(queries[1:], [[1]]))
    >>> tuner.test_.before["success@1"].mean, tuner.test_.after["success@1"].mean
    (0.0, 1.0)
    >>> tuner.test_.query_curves(tuner.gamma_)
    array([1.])
    """

    before: Evaluation
    after: Evaluation
    top_before: Ints
    top_after: Ints
    query_curves: QueryCurves | None


class Queries(NamedTuple):
    """Queries with at least one relevant label, ready for the scan."""

    vectors: Floats
    used: Ints
    """Their numbers among the queries as passed in."""
    relevant: Labels
    without_labels: int


def with_relevant_labels(vectors: Array, labels: Labels) -> Queries:
    """Return the queries that have a relevant label."""
    used, relevant = labels.relevant()
    return Queries(scaled_queries(vectors[used]), used, relevant, labels.n_queries - len(used))


class Search:
    """The best documents for the validation and test queries of one fit.

    Parameters
    ----------
    reader : Reader
        All documents.
    labelled : array of int
        Rows of the documents with a training label, ascending: the documents that may move.
    groups : sequence of Queries or None
        Queries to search for.
    k : int
        How many documents to find for each query.
    cosine : bool
        Divide scores by the lengths of the documents.
    engine : str or Engine

    Attributes
    ----------
    found : list of TopK
        The best documents without training labels, for the queries of each group.
    vectors : array
        The vectors of the labelled documents.
    """

    def __init__(
        self,
        reader: Reader,
        labelled: Ints,
        groups: Sequence[Queries | None],
        k: int,
        *,
        cosine: bool,
        engine: str | Engine,
    ) -> None:
        self.reader, self.labelled, self.cosine = reader, labelled, cosine
        self.k = min(k, reader.n_rows)
        sizes = [0 if group is None else len(group.vectors) for group in groups]
        queries = np.concatenate([np.empty((0, reader.dim)), *(group.vectors for group in groups if group is not None)])
        self.engine = pick(engine, float(len(queries)) * reader.n_rows * reader.dim)
        best = empty_top_k(0, self.k)
        if len(queries):
            best = self.engine.top_k(reader.blocks(labelled, cosine=cosine), queries, self.k, cosine=cosine)
        # The scan keeps the vectors of labelled documents where the corpus has no random access.
        self.vectors = reader.take(labelled)
        ends = np.cumsum(sizes)
        self.found = [
            TopK(best.rows[end - n : end], best.scores[end - n : end]) for end, n in zip(ends, sizes, strict=True)
        ]

    def vectors_of(self, rows: Ints) -> Array:
        """Return the vectors of some labelled documents."""
        return self.vectors[np.searchsorted(self.labelled, rows)]

    def sweep(self, queries: Queries, found: TopK, paths: Paths, metric: Metric, n_queries: int | None = None) -> Steps:
        """Return the metric of every query as a function of the step; for ``n_queries`` see ``metric_steps``."""
        unmoved_labelled = np.setdiff1d(self.labelled, paths.rows, assume_unique=True)
        vectors = self.vectors_of(unmoved_labelled)
        unmoved = with_rows(found, unmoved_labelled, vectors, queries.vectors, self.engine, cosine=self.cosine)
        too_long = unmoved.rows[(unmoved.rows >= 0) & (np.abs(unmoved.scores) > 1e15 * paths.scale)]
        if len(too_long) and not paths.rotates:
            where = self.reader.name(int(too_long[0]))
            raise VectorError(
                f"documents: {where} is 1e15 times as long as the documents that move; rescale the vectors"
            )
        metric = metric.limited(self.reader.n_rows)
        score_with = self.engine.scorer
        return metric_steps(paths, queries.vectors, queries.relevant, metric, unmoved, score_with, n_queries=n_queries)

    def test(self, queries: Queries, found: TopK, paths: Paths, patch: Patch, metric: Metric) -> BeforeAfter:
        """Evaluate before and after the patch."""
        if len(queries.used) == 0:
            raise LabelError("test queries: none of them has a relevant label; there is nothing to measure")
        metrics = reported_metrics(metric)
        moved = self.vectors.copy()
        moved[np.searchsorted(self.labelled, patch.rows)] = patch.after
        cosine = patch.similarity == "cosine"
        top_before, top_after = rank_documents(
            self.reader,
            queries.vectors,
            max(metric.limited(self.reader.n_rows).k for metric in metrics),
            cosine=cosine,
            engine=self.engine,
            rows=self.labelled,
            versions=[self.vectors, moved],
            others=found if cosine == self.cosine else None,
        )
        before, after = (
            evaluate_ranking(rows, queries.vectors, queries.used, queries.relevant, metrics, queries.without_labels)
            for rows in (top_before, top_after)
        )
        curves = query_curves(self.sweep(queries, found, paths, metric), paths) if cosine == self.cosine else None
        return BeforeAfter(before, after, top_before, top_after, curves)


def reported_metrics(metric: Metric) -> list[Metric]:
    """Return the metrics that are measured on test queries: the one tuned for, and the usual ones."""
    return [Metric.parse(text) for text in dict.fromkeys((str(metric), *USUAL))]
