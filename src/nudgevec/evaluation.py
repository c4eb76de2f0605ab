"""Retrieval quality of vectors as they are: means, per-query values, intervals, and before/after.

Exact search, no model, no index. Formulas are those of ``nudgevec.metrics``; equal scores are ranked
as trec_eval does, by document id from the highest to the lowest (as text), so that the numbers equal
trec_eval's. The tuner's own curve is stricter: there a tie counts against the labelled document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, Floats, Ints
from nudgevec.core.exact import scaled_queries
from nudgevec.core.scan import TopK
from nudgevec.corpus import Corpus, Reader
from nudgevec.engines import Engine, pick, with_rows
from nudgevec.errors import LabelError, OptionError
from nudgevec.labels import Labels, read_labelled_queries
from nudgevec.metrics import USUAL, Metric


@dataclass(frozen=True, eq=False)
class Score:
    """The result of one metric.

    Attributes
    ----------
    mean : float
    low, high : float
        Bootstrap confidence interval of the mean.
    per_query : array of shape (q,)
        The value of every query.
    """

    mean: float
    low: float
    high: float
    per_query: Floats = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Mapping[str, Score]):
    """The result of ``evaluate``: a mapping from the name of a metric to its score.

    Attributes
    ----------
    scores : dict of str to Score
    query : array of int
        The numbers of the queries that have a relevant label; the others are left out.
    without_labels : int
        The number of queries that are left out.
    fingerprint : str
        A hash of the queries and labels, independent of the documents.

    Examples
    --------
    >>> result = evaluate(np.eye(2), np.array([[1.0, 0.1], [1.0, 0.2]]), [[0], [1]], ["mrr@2", "success@1"])
    >>> list(result), result["mrr@2"].mean, result["success@1"].per_query
    (['mrr@2', 'success@1'], 0.75, array([1., 0.]))
    """

    scores: dict[str, Score]
    query: Ints
    without_labels: int
    fingerprint: str

    def __getitem__(self, metric: str) -> Score:
        return self.scores[metric if metric in self.scores else metric.strip().lower()]

    def __repr__(self) -> str:
        lines = [f"{name} {score.mean:.4f} ({score.low:.4f} to {score.high:.4f})" for name, score in self.items()]
        return f"Evaluation of {len(self.query)} queries: " + ", ".join(lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of ``compare``: what changed between two evaluations of the same queries, for one metric.

    Attributes
    ----------
    before, after, change : float
        The two means, and the mean change.
    low, high : float
        Bootstrap confidence interval of the mean change.
    wins, losses, ties : int
        The numbers of queries whose value rose, fell, or stayed the same.
    p_value : float
        Two-sided paired sign-flip test of "no change".
    """

    before: float
    after: float
    change: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int
    p_value: float

    def __repr__(self) -> str:
        return (
            f"Comparison({self.before:.4f} -> {self.after:.4f}, change {self.change:+.4f} "
            f"({self.low:+.4f} to {self.high:+.4f}), {self.wins} better, {self.losses} worse, {self.ties} the same, "
            f"p = {self.p_value:.4g})"
        )


def evaluate(
    documents: Corpus | npt.ArrayLike,
    queries: npt.ArrayLike,
    labels: Any,
    metrics: Sequence[str] | str = USUAL,
    *,
    similarity: str | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    engine: str | Engine = "auto",
) -> Evaluation:
    """Measure retrieval quality by exact search.

    Equal scores are ranked as trec_eval does: by document id as text, the highest first.

    Parameters
    ----------
    documents : array of shape (n, d), or Corpus
        Document vectors.
    queries : array of shape (q, d)
        Query vectors.
    labels : list or matrix
        One entry per query: a list of rows (ids where the corpus has ids), a dict row -> grade, or a single row; or a
        matrix of grades of shape (q, n).
    metrics : str or sequence of str
        For example ``"ndcg@10"``.
    similarity : {"cosine", "dot"}, optional
        How vectors are compared. By default "dot" for a store that states it (and for such a store seen through a
        patch), and "cosine" for all other documents.
    confidence : float
        Of the bootstrap interval of each mean.
    resamples, seed : int
        Of the bootstrap.
    engine : str or Engine
        Where the scan runs; the result is the same.

    Returns
    -------
    Evaluation
        Mean, confidence interval and per-query values of each metric.

    Raises
    ------
    LabelError
        If a label refers to a document that is not there, or no query has a relevant label.
    OptionError
        If a metric is unknown, or an option is out of its range.

    Examples
    --------
    >>> result = evaluate(np.eye(2), np.array([[1.0, 0.1]]), [[0]], ["mrr@2"])
    >>> result["mrr@2"].mean
    1.0
    """
    wanted, similarity = parse_metrics(metrics), similarity_for(documents, similarity)
    if not 0 < confidence < 1 or resamples < 1:
        raise OptionError("confidence must be between 0 and 1, and resamples at least 1")
    reader = Reader(documents)
    vectors, found = read_labelled_queries((queries, labels), reader, "queries")
    used, relevant = found.relevant()
    if len(used) == 0:
        raise LabelError("queries: none of them has a relevant label; there is nothing to measure")
    scaled = scaled_queries(vectors[used])
    chosen = pick(engine, float(len(scaled)) * reader.n_rows * reader.dim)
    k = max(metric.limited(reader.n_rows).k for metric in wanted)
    rows = rank_documents(reader, scaled, k, cosine=similarity == "cosine", engine=chosen)[0]
    without = found.n_queries - len(used)
    return evaluate_ranking(
        rows, scaled, used, relevant, wanted, without, confidence=confidence, resamples=resamples, seed=seed
    )


def similarity_for(documents: Any, similarity: str | None = None) -> str:
    """Return the similarity to compare documents by: the given one, or the default of ``evaluate``.

    Raises
    ------
    OptionError
        If it is neither "cosine" nor "dot".
    """
    if similarity is None:
        return "dot" if getattr(documents, "similarity", None) == "dot" else "cosine"
    if similarity not in ("cosine", "dot"):
        advice = ""
        if similarity == "l2":
            advice = (
                ": vectors of equal length rank by 'cosine' as by 'l2'; for others, measure the store's own search "
                "with nudgevec.stores.evaluate_index (--through-index)"
            )
        raise OptionError(f"similarity must be 'cosine' or 'dot', not {similarity!r}{advice}")
    return similarity


def parse_metrics(metrics: Sequence[str] | str) -> list[Metric]:
    """Read the names of metrics."""
    wanted = [Metric.parse(text) for text in ([metrics] if isinstance(metrics, str) else metrics)]
    if not wanted:
        raise OptionError("name at least one metric")
    return wanted


def rank_documents(
    reader: Reader,
    queries: Floats,
    k: int,
    *,
    cosine: bool,
    engine: Engine,
    rows: Ints | None = None,
    versions: Sequence[Array] = (),
    others: TopK | None = None,
) -> list[Ints]:
    """Return the rows of the k best documents of every query, in the order of trec_eval.

    Some documents may have several versions of their vectors, each of which is ranked among the other documents; there
    is one result for each. One pass over the other documents finds what is needed, and a second one if documents at
    the end of a list are tied.

    Parameters
    ----------
    reader : Reader
        All documents.
    queries : array of shape (q, d)
        Queries of length at most 1.
    k : int
        How many documents to find.
    cosine : bool
        Divide scores by the lengths of the documents.
    engine : Engine
    rows : array of int, optional
        The documents that have several versions, ascending.
    versions : sequence of arrays of shape (len(rows), d)
        Their vectors.
    others : TopK, optional
        The k + 1 best or more of the other documents, if a scan has found them already.
    """
    k, depth = min(k, reader.n_rows), min(k + 1, reader.n_rows)
    if rows is None:
        rows, versions = np.empty(0, np.int64), [np.empty((0, reader.dim))]
    if others is None:
        others = engine.top_k(reader.blocks(rows, cosine=cosine), queries, depth, cosine=cosine)
    found = [with_rows(others, rows, vectors, queries, engine, cosine=cosine) for vectors in versions]
    rankings = [np.stack([_by_id(reader, *best)[:k] for best in zip(*one, strict=True)]) for one in found]
    # Where the last of the list and the first behind it are tied, the order of ids decides which is in it.
    if depth == k:
        return rankings
    tied = np.any([one.scores[:, k - 1] == one.scores[:, k] for one in found], axis=0)
    if not tied.any():
        return rankings
    # The scan ranks equal scores by row. Here positions in the order of ids take the place of rows.
    order = _order_of_ids(reader)
    position = np.argsort(order)
    blocks = (block._replace(rows=position[block.rows]) for block in reader.blocks(rows, cosine=cosine))
    others = engine.top_k(blocks, queries[tied], k, cosine=cosine)
    for ranking, vectors in zip(rankings, versions, strict=True):
        best = with_rows(others, position[rows], vectors, queries[tied], engine, cosine=cosine)
        ranking[tied] = order[best.rows]
    return rankings


def _by_id(reader: Reader, rows: Ints, scores: Floats) -> Ints:
    """Return rows by score, and equal scores by id as text, the highest first."""
    if not (scores[1:] == scores[:-1]).any():
        return rows
    ids = [str(key) for key in reader.ids(np.maximum(rows, 0))]
    order = sorted(range(len(rows)), key=ids.__getitem__, reverse=True)
    order = sorted(order, key=lambda i: -scores[i])
    return rows[order]


def _order_of_ids(reader: Reader) -> Ints:
    """Return all rows by id as text, the highest first."""
    ids = [str(key) for key in reader.all_ids]
    return np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True))


def evaluate_ranking(
    rows: Ints,
    queries: Floats,
    used: Ints,
    relevant: Labels,
    metrics: Sequence[Metric],
    without_labels: int,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Evaluation:
    """Return the evaluation of rankings: ``rows`` are the best documents of every query."""
    rank = _ranks(rows, relevant)
    # Rankings shorter than the cut-off of a metric hold all documents.
    limited = [metric.limited(rows.shape[1]) for metric in metrics]
    values = np.array(
        [
            metric.per_query(relevant.query, rank, metric.shares(relevant.query, relevant.weight), len(used))
            for metric in limited
        ]
    )
    intervals = _intervals(values, confidence, resamples, seed)
    scores = {
        str(metric): Score(float(per_query.mean()), *interval, per_query)
        for metric, per_query, interval in zip(metrics, values, intervals, strict=True)
    }
    digest = hashlib.sha256(queries.tobytes())
    for column in (relevant.query, relevant.row, relevant.weight):
        digest.update(column.tobytes())
    return Evaluation(scores, used, without_labels, digest.hexdigest())


def _ranks(rows: Ints, relevant: Labels) -> Ints:
    """Return the rank of every label in the ranking of its query, one more than its length where it is not in it."""
    beyond = rows.shape[1] + 1
    rank = np.full(len(relevant), beyond)
    # Labels are sorted by query and row, and so by this number.
    n_rows = int(max(rows.max(initial=0), relevant.row.max(initial=0))) + 1
    label = relevant.query * n_rows + relevant.row
    query, position = np.nonzero(rows >= 0)
    ranked = query * n_rows + rows[query, position]
    at = np.minimum(np.searchsorted(label, ranked), len(label) - 1)
    is_label = label[at] == ranked
    rank[at[is_label]] = position[is_label] + 1
    return rank


def compare(
    before: Evaluation,
    after: Evaluation,
    metric: str | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10000,
    seed: int = 0,
) -> Comparison:
    """Compare two evaluations of the same queries, query by query.

    Parameters
    ----------
    before, after : Evaluation
        Results of ``evaluate`` with the same queries and labels.
    metric : str, optional
        The metric to compare; the first of ``before`` by default.
    confidence : float
        Of the bootstrap interval of the mean change.
    resamples, seed : int
        Of the bootstrap and the sign-flip test.

    Returns
    -------
    Comparison

    Raises
    ------
    OptionError
        If the evaluations are of different queries or labels, or the metric is not in both.

    Examples
    --------
    >>> query, labels = np.array([[1.0, 0.2], [0.2, 1.0]]), [[0], [1]]
    >>> worse = evaluate(np.array([[0.0, 1.0], [1.0, 0.0]]), query, labels, ["success@1"])
    >>> better = evaluate(np.eye(2), query, labels, ["success@1"])
    >>> compare(worse, better).wins
    2
    """
    if not isinstance(before, Evaluation) or not isinstance(after, Evaluation):
        raise OptionError("compare takes two results of evaluate")
    name = next(iter(before)) if metric is None else str(Metric.parse(metric))
    return compare_all(before, after, [name], confidence=confidence, resamples=resamples, seed=seed)[name]


def compare_all(
    before: Evaluation,
    after: Evaluation,
    metrics: Sequence[str] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10000,
    seed: int = 0,
) -> dict[str, Comparison]:
    """Compare several metrics at once (all by default); this takes hardly longer than one. See ``compare``."""
    names = list(before) if metrics is None else list(metrics)
    for name in names:
        if name not in before or name not in after:
            raise OptionError(f"{name} is not in both evaluations")
    if before.fingerprint != after.fingerprint:
        raise OptionError("the two evaluations are of different queries or labels and cannot be paired")
    changes = np.array([after[name].per_query - before[name].per_query for name in names])
    changes[np.abs(changes) < 1e-12] = 0.0
    return {
        name: Comparison(
            before=before[name].mean,
            after=after[name].mean,
            change=float(change.mean()),
            low=low,
            high=high,
            wins=int((change > 0).sum()),
            losses=int((change < 0).sum()),
            ties=int((change == 0).sum()),
            p_value=_sign_flip(change, resamples, seed),
        )
        for name, change, (low, high) in zip(
            names, changes, _intervals(changes, confidence, resamples, seed), strict=True
        )
    }


def _intervals(values: Floats, confidence: float, resamples: int, seed: int) -> list[tuple[float, float]]:
    """Percentile bootstrap interval of the mean of every line, all from the same draws."""
    size = values.shape[1]
    means = np.concatenate([(draw @ values.T) / size for draw in _draws(size, resamples, seed)])
    tail = (1 - confidence) / 2
    return [(float(low), float(high)) for low, high in np.quantile(means, [tail, 1 - tail], axis=0).T]


def _draws(size: int, resamples: int, seed: int) -> Iterator[npt.NDArray[Any]]:
    """How often each value is drawn in each resample, some resamples at a time."""
    random = np.random.default_rng(seed)
    step = max(1, (1 << 22) // size)
    for start in range(0, resamples, step):
        lines = min(step, resamples - start)
        picked = random.integers(0, size, (lines, size)) + np.arange(lines)[:, None] * size
        yield np.bincount(picked.ravel(), minlength=lines * size).reshape(lines, size).astype(np.float64)


def _sign_flip(change: Floats, resamples: int, seed: int) -> float:
    """Share of random sign flips whose sum is at least as far from zero; exact for up to 12 changes."""
    moved = change[change != 0]
    if len(moved) == 0:
        return 1.0
    reached = abs(float(moved.sum())) * (1 - 1e-12)
    if len(moved) <= 12:
        signs = 1 - 2.0 * ((np.arange(1 << len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float((np.abs(signs @ moved) >= reached).mean())
    random = np.random.default_rng(seed)
    extreme = 0
    step = max(1, (1 << 22) // len(moved))
    for start in range(0, resamples, step):
        signs = 1 - 2.0 * random.integers(0, 2, (min(step, resamples - start), len(moved)))
        extreme += int((np.abs(signs @ moved) >= reached).sum())
    return (extreme + 1) / (resamples + 1)
