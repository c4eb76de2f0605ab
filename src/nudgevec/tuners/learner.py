"""Learning maps from labelled queries, and sweeping the step after each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from nudgevec.arrays import Array, Ints, Singles
from nudgevec.core.curve import query_curves
from nudgevec.core.exact import norms, scaled_queries
from nudgevec.core.linear_map import LinearMap, learn_maps
from nudgevec.core.paths import Paths, rotations
from nudgevec.core.pull import sum_pulls
from nudgevec.core.softmax import (
    SCORES,
    LabelModel,
    Side,
    closeness,
    moments,
    sampled_batches,
    temperature,
    whole_batches,
)
from nudgevec.core.sweep import Steps, joined
from nudgevec.corpus import ArrayCorpus, Reader
from nudgevec.engines import Engine, pick
from nudgevec.errors import LabelError, VectorError
from nudgevec.evaluation import evaluate_ranking, rank_documents
from nudgevec.labels import Labels
from nudgevec.metrics import Metric
from nudgevec.patch import Patch
from nudgevec.search import BeforeAfter, Queries, Search, reported_metrics, with_relevant_labels
from nudgevec.tuners.held_out import LabelledSet, Split

SIGMAS = (0.1, 0.2)
"""Standard deviations of the numbers of the map, from the most cautious one on."""
# Documents and scores above which the sums of the likelihood are estimated; from so many candidates and random ones.
MOST_DOCUMENTS, MOST_SCORES, _CANDIDATES, _RANDOM = 100_000, 2e8, 8, 2048
# Standard deviations by which labelled pairs must be closer than others.
_CLOSE = 3.0


class Trial(NamedTuple):
    """A map that was learned on the training queries of a split."""

    split: Split
    map: LinearMap | None


class Final(NamedTuple):
    """The documents that moved in the end, and the paths of the labelled ones."""

    rows: Ints
    before: Array
    after: Array
    paths: Paths
    mapped: Reader
    """All documents after the map."""


class Learner:
    """Learns maps from the labels of one fit, and sweeps the step after each of them."""

    def __init__(self, reader: Reader, labelled: LabelledSet, side: Side, engine: str | Engine) -> None:
        self.reader, self.labelled, self.side = reader, labelled, side
        self.engine = pick(engine, 50.0 * len(labelled.vectors) * reader.n_rows * reader.dim)
        self.relevant_queries, relevant = labelled.labels.relevant()
        queries = _unit(labelled.vectors[self.relevant_queries])
        self._wanted: list[Ints] | None = None
        few = reader.n_rows <= MOST_DOCUMENTS and float(len(queries)) * reader.n_rows <= MOST_SCORES
        if side == "documents" or few:
            documents, row = _unit(in_memory(reader)), relevant.row
        else:
            documents, row, self._wanted, self._random = self._sampled(queries, relevant)
        self._documents, self._queries = documents, queries
        self._relevant = Labels(relevant.query, row, relevant.weight, relevant.n_queries)

    def _sampled(self, queries: Singles, relevant: Labels) -> tuple[Singles, Ints, list[Ints], Ints]:
        """Return the documents that stand for all: labelled ones, the best of every query, and random ones."""
        scaled = scaled_queries(queries)
        best = self.engine.top_k(
            self.reader.blocks(cosine=True), scaled, min(_CANDIDATES, self.reader.n_rows), cosine=True
        )
        random = np.random.default_rng(0).choice(self.reader.n_rows, min(_RANDOM, self.reader.n_rows), replace=False)
        rows = np.unique(np.concatenate([best.rows.ravel(), relevant.row, random]))
        best_positions, labelled = np.searchsorted(rows, best.rows), np.searchsorted(rows, relevant.row)
        first = np.searchsorted(relevant.query, np.arange(len(queries) + 1))
        wanted = [
            np.concatenate([own, labelled[begin:end]])
            for own, begin, end in zip(best_positions, first[:-1], first[1:], strict=True)
        ]
        return _unit(self.reader.take(rows)), labelled, wanted, np.searchsorted(rows, random)

    def is_related(self) -> bool:
        """Whether queries are closer to their labelled documents than to those of other queries."""
        return closeness(self._documents, self._queries, self._relevant) > _CLOSE

    def _model(self, numbers: Ints) -> LabelModel:
        """Return the model of some of the labelled queries."""
        chosen = np.flatnonzero(np.isin(self.relevant_queries, numbers))
        part = LabelledSet(self._queries, self._relevant).subset(chosen)
        n_queries, n_documents = len(chosen), len(self._documents)
        if self._wanted is None:
            batches = whole_batches(n_queries, n_documents, getattr(self.engine, "softmax_scores", SCORES))
        else:
            batches = sampled_batches([self._wanted[query] for query in chosen], self._random, self.reader.n_rows)
        return LabelModel(self._documents, part.vectors, part.labels, batches, getattr(self.engine, "moments", moments))

    def maps(self, numbers: Ints) -> Iterator[LinearMap]:
        """Yield the map of each sigma, learned from some of the labelled queries."""
        model = self._model(numbers)
        return learn_maps(model, self.side, temperature(model), SIGMAS)

    def final_map(self, sigma: float, begin: LinearMap) -> LinearMap:
        """Return the map learned from all labelled queries; the search begins at another map."""
        model = self._model(np.arange(len(self.labelled.vectors)))
        return next(learn_maps(model, self.side, temperature(model), [sigma], begin))

    def sweep(self, candidates: Sequence[Sequence[Trial]], metric: Metric) -> list[tuple[Steps, Paths]]:
        """Return the metric of all held-out queries as a function of the step, for each candidate.

        Parameters
        ----------
        candidates : sequence of sequences of Trial
            The trials of each candidate, one for each split.
        metric : Metric

        Returns
        -------
        list of (Steps, Paths)
            The paths are those of the split with the last stop.
        """
        n_queries = sum(len(trial.split.held_out) for trial in candidates[0])
        trials = [trial for of_splits in candidates for trial in of_splits]
        # One pass over the documents finds what all trials with the same documents need.
        groups = groupby(trials, lambda trial: None if self.side == "queries" else trial.map)
        swept = iter(
            [each for by, group in groups for each in self._sweep(self._mapped_reader(by), [*group], metric, n_queries)]
        )
        results = []
        for of_splits in candidates:
            steps, paths = zip(*(next(swept) for _ in of_splits), strict=True)
            results.append((joined(steps), max(paths, key=lambda one: one.last_stop)))
        return results

    def _mapped_reader(self, by: LinearMap | None) -> Reader:
        """Return the documents after a map of the documents."""
        if by is None or self.side == "queries":
            return self.reader
        return Reader(ArrayCorpus(by(in_memory(self.reader)), self.reader.all_ids))

    def _of_queries(self, by: LinearMap | None) -> LinearMap | None:
        return by if self.side == "queries" else None

    def _sweep(
        self, reader: Reader, trials: Sequence[Trial], metric: Metric, n_queries: int
    ) -> Iterator[tuple[Steps, Paths]]:
        """Yield steps and paths of each trial."""
        parts = [
            [
                self.labelled.subset(numbers).mapped(self._of_queries(trial.map))
                for numbers in (trial.split.train, trial.split.held_out)
            ]
            for trial in trials
        ]
        held_out = [with_relevant_labels(*own) for _, own in parts]
        rows = np.unique(self.labelled.labels.row)
        search = Search(reader, rows, held_out, metric.k + 1, cosine=True, engine=self.engine)
        for (train, _), queries, found in zip(parts, held_out, search.found, strict=True):
            pull = sum_pulls(train.labels, train.vectors)
            paths = rotations(pull, search.vectors_of(pull.rows), reader.name)
            yield search.sweep(queries, found, paths, metric, n_queries), paths

    def final(self, by: LinearMap | None, gamma: float) -> Final:
        """Move all documents as chosen, with all labels."""
        mapped, labelled = self._mapped_reader(by), self.labelled.mapped(self._of_queries(by))
        pull = sum_pulls(labelled.labels, labelled.vectors)
        paths = rotations(pull, mapped.take(pull.rows), self.reader.name)
        moved = paths.moved(gamma) if gamma > 0 else paths.start
        if mapped is self.reader:
            changed = (moved != paths.start).any(axis=1)
            return Final(paths.rows[changed], paths.start[changed], moved[changed], paths, mapped)
        before, after = in_memory(self.reader), in_memory(mapped).copy()
        after[paths.rows] = moved
        rows = np.flatnonzero((after != before).any(axis=1))
        return Final(rows, before[rows], after[rows], paths, mapped)

    def count_labels(self, rows: Ints) -> Ints:
        """Return the number of labels of some documents."""
        labelled, count = np.unique(self.labelled.labels.row, return_counts=True)
        at = np.minimum(np.searchsorted(labelled, rows), len(labelled) - 1)
        return np.where(labelled[at] == rows, count[at], 0)

    def test(self, tested: tuple[Array, Labels], final: Final, patch: Patch, metric: Metric) -> BeforeAfter:
        """Evaluate test queries before and after."""
        vectors, labels = tested
        original = with_relevant_labels(vectors, labels)
        if len(original.used) == 0:
            raise LabelError("test queries: none of them has a relevant label; there is nothing to measure")
        adapted = with_relevant_labels(patch.adapt(vectors), labels)
        metrics = reported_metrics(metric)
        rows = [
            self._rank(self.reader, original, metrics),
            self._rank(Reader(patch.over(self.reader.corpus)), adapted, metrics),
        ]
        before, after = (
            evaluate_ranking(best, original.vectors, original.used, original.relevant, metrics, original.without_labels)
            for best in rows
        )
        search = Search(final.mapped, final.paths.rows, [adapted], metric.k + 1, cosine=True, engine=self.engine)
        steps = search.sweep(adapted, search.found[0], final.paths, metric)
        return BeforeAfter(before, after, rows[0], rows[1], query_curves(steps, final.paths))

    def _rank(self, reader: Reader, queries: Queries, metrics: Sequence[Metric]) -> Ints:
        k = max(metric.limited(reader.n_rows).k for metric in metrics)
        return rank_documents(reader, queries.vectors, k, cosine=True, engine=self.engine)[0]


def in_memory(reader: Reader) -> Array:
    """Return all vectors, without a copy of an array that is in memory."""
    if isinstance(reader.corpus, ArrayCorpus) and not isinstance(reader.corpus.vectors, np.memmap):
        return reader.corpus.vectors
    return reader.copy()


def _unit(vectors: Array) -> Singles:
    """Return vectors of length 1 in float32."""
    lengths = norms(vectors)
    if not (np.isfinite(lengths).all() and (lengths > 0).all()):
        row = int(np.argmin(np.isfinite(lengths) & (lengths > 0)))
        raise VectorError(f"vector {row} is not finite or all zeros; remove or repair it")
    return (vectors / lengths[:, None]).astype(np.float32)
