"""The tuner ``Nudge``: a linear map of all vectors, and then the step of NUDGE-N for the labelled documents.

NUDGE moves documents that have labels, and helps queries that ask for these. A linear map learned from the same labels
(``core.linear_map``) moves all documents, and helps queries that ask for others. Which map is taken, if any, and the
size of the step are chosen together, on queries that took no part in learning.
"""

from __future__ import annotations

import warnings
from typing import ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array, Floats
from nudgevec.core.curve import Choice, best_angle, curve_of, evidence, query_curves
from nudgevec.core.exact import norms
from nudgevec.core.linear_map import LinearMap
from nudgevec.core.paths import Paths
from nudgevec.core.softmax import Side
from nudgevec.core.sweep import Steps
from nudgevec.corpus import ArrayCorpus, Corpus, Reader
from nudgevec.engines import Engine, check_engine
from nudgevec.errors import NudgeWarning, OptionError
from nudgevec.labels import LabelledQueries, Labels, read_labelled_queries
from nudgevec.metrics import Metric
from nudgevec.patch import Patch
from nudgevec.search import BeforeAfter
from nudgevec.tuners.base import Tuner
from nudgevec.tuners.held_out import read_labelled_set, split_queries
from nudgevec.tuners.learner import MOST_DOCUMENTS, SIGMAS, Learner, Trial, in_memory


class _Candidate(NamedTuple):
    """A map, none for number 0, with the metric of all held-out queries as a function of the step after it."""

    number: int
    steps: Steps
    paths: Paths

    def best_angle(self) -> float:
        """Return the angle with the best sum of the metric, 0 if no other is better."""
        angle = best_angle(self.steps, self.paths, np.pi)
        return angle if self.values(angle).sum() > self.values(0.0).sum() else 0.0

    def values(self, phi: float) -> Floats:
        """Return the metric of every query at an angle."""
        return self.steps.per_query(phi)

    def gamma(self, phi: float) -> float:
        """Return the gamma of an angle."""
        return float(self.paths.gammas(np.array([phi]))[0])

    def choice(self, phi: float, originals: Floats) -> Choice:
        """Return the choice of this map and a step, over the values of the queries with the original vectors."""
        curve, gamma, values = curve_of(self.steps, self.paths), self.gamma(phi), self.values(phi)
        plateau = min(int(np.searchsorted(curve.edges, gamma, side="right")) - 1, len(curve.values) - 1)
        between = (float(curve.edges[plateau]), float(curve.edges[plateau + 1])) if gamma > 0 else (0.0, 0.0)
        strength = evidence(values - originals)
        return Choice(gamma, between, float(originals.mean()), float(values.mean()), strength, gamma)


class Nudge(Tuner):
    """Map all vectors, then rotate labelled documents toward their queries; both chosen on held-out queries.

    For cosine similarity. The map and the step are learned from labelled queries. Afterwards both are learned once more
    from all labelled queries, training and validation. If there are fewer than 100 validation queries, or none,
    cross-validation over all labelled queries takes their place.

    Parameters
    ----------
    metric : str
        The metric to maximise on the held-out queries: ``"recall@k"``, ``"capped_recall@k"``, ``"success@k"``,
        ``"mrr@k"`` or ``"ndcg@k"``.
    side : {"auto", "documents", "queries"}
        What the map moves. ``"documents"``: every document is written once, and nothing changes at query time.
        ``"queries"``: only labelled documents are written, and every query goes through ``adapt`` before the search.
        ``"auto"`` maps documents if there are at most 100,000.
    guard : float
        The gain on the held-out queries must exceed twice this many standard deviations of chance. If it exceeds
        ``guard`` of them, only the most cautious map is taken. Otherwise nothing moves. 0 takes the plain optimum.
    folds : int
        Number of folds of the cross-validation.
    engine : str or Engine
        Where products run: ``"cpu"``, ``"torch"`` or ``"auto"``. The maps that engines find differ by rounding.

    Attributes
    ----------
    map_ : LinearMap or None
        The map.
    sigma_ : float
        Standard deviation of the numbers of the map; 0 without a map.
    side_ : {"documents", "queries"}
        What the map moves.
    n_held_out_ : int
        Number of queries that the map and the step were chosen on.
    gamma_ : float
        The step of the labelled documents, as for ``NudgeN``.
    patch_ : Patch
        The documents that moved, and for ``side="queries"`` the map of queries.
    curve_ : Curve
        The metric on the held-out queries as a function of gamma, with the map.
    choice_ : Choice
        The choice; ``before`` is without the map.
    query_curves_ : QueryCurves or None
        The metric of every validation query as a function of gamma, with the map; None after cross-validation.
    test_ : BeforeAfter or None
        What was measured on the test queries.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> documents = random.standard_normal((60, 8)).astype(np.float32)
    >>> rows = np.arange(600) % 60
    >>> queries = documents[rows] * np.linspace(0, 3, 8) + random.standard_normal((600, 8))
    >>> tuner = Nudge().fit(documents, train=(queries[:400], rows[:400]), validation=(queries[400:], rows[400:]))
    >>> tuner.sigma_ > 0, tuner.choice_.after > tuner.choice_.before
    (True, True)
    """

    method: ClassVar[str] = "auto"
    similarity: ClassVar[str] = "cosine"
    _results: ClassVar[tuple[str, ...]] = (*Tuner._results, "map_", "sigma_", "side_", "n_held_out_")

    map_: LinearMap | None
    sigma_: float
    side_: Side
    n_held_out_: int

    def __init__(
        self,
        metric: str = "ndcg@10",
        *,
        side: str = "auto",
        guard: float = 1.0,
        folds: int = 5,
        engine: str | Engine = "auto",
    ) -> None:
        self.metric = metric
        self.side = side
        self.guard = guard
        self.folds = folds
        self.engine = engine

    def fit(
        self,
        documents: Corpus | npt.ArrayLike,
        train: LabelledQueries,
        validation: LabelledQueries | None = None,
        test: LabelledQueries | None = None,
    ) -> Self:
        """Learn the map and the step.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            Document vectors, as for ``NudgeN``. Up to 100,000 of them are read into memory.
        train, validation : (query vectors, labels)
            As for ``NudgeN``. Without enough validation queries, cross-validation chooses.
        test : (query vectors, labels), optional
            Queries to measure the result on, in ``test_``. They take no part in tuning.

        Returns
        -------
        self

        Raises
        ------
        VectorError
            If vectors are not finite, have no direction, or differ in their dimensions.
        LabelError
            If labels refer to documents that are not there, or there are too few of them.
        OptionError
            If an option is out of its range.
        """
        self._forget_results()
        self.check_options()
        metric, reader = Metric.parse(self.metric), Reader(documents)
        labelled, n_train, counts = read_labelled_set(reader, train, validation)
        tested = None if test is None else read_labelled_queries(test, reader, "test queries")
        self.side_ = _side(self.side, reader.n_rows)
        if self.side_ == "documents":
            reader = Reader(ArrayCorpus(in_memory(reader), reader.all_ids))
        splits = split_queries(labelled, n_train, self.folds)
        self.n_held_out_ = sum(len(split.held_out) for split in splits)
        learner = Learner(reader, labelled, self.side_, self.engine)

        trials = [[Trial(split, by) for by in (None, *learner.maps(split.train))] for split in splits]
        swept = learner.sweep([*zip(*trials, strict=True)], metric)
        candidates = [_Candidate(number, *each) for number, each in enumerate(swept)]
        chosen, self.choice_ = self._choose(candidates, metric, is_related=learner.is_related())
        self.gamma_, self.sigma_ = self.choice_.gamma, (0.0, *SIGMAS)[chosen.number]
        begin = trials[0][chosen.number].map
        self.map_ = None if begin is None else learner.final_map(self.sigma_, begin)
        self.curve_ = curve_of(chosen.steps, chosen.paths)
        self.query_curves_ = query_curves(chosen.steps, chosen.paths) if len(splits) == 1 else None
        self.patch_, self.test_ = self._result(learner, counts, tested, metric)
        return self

    def check_options(self) -> None:
        """Raise OptionError if an option is out of its range."""
        Metric.parse(self.metric)
        if self.side not in ("auto", "documents", "queries"):
            raise OptionError(f"side must be 'auto', 'documents' or 'queries', not {self.side!r}")
        if not (isinstance(self.guard, (int, float, np.number)) and 0 <= self.guard < np.inf):
            raise OptionError(f"guard must be a number of standard deviations, 0 or more, not {self.guard!r}")
        if not (isinstance(self.folds, (int, np.integer)) and self.folds >= 2):
            raise OptionError(f"folds must be a whole number of 2 or more, not {self.folds!r}")
        check_engine(self.engine)

    def adapt(self, queries: npt.ArrayLike) -> Array:
        """Return the vectors to search with: mapped for the side "queries", unchanged otherwise; see ``Patch.adapt``.

        Parameters
        ----------
        queries : array of shape (q, d) or (d,)
            Query vectors of the embedder.

        Returns
        -------
        array of the same shape
        """
        return self.patch_.adapt(queries)

    def __repr__(self) -> str:
        state = "not fitted"
        if "patch_" in vars(self):
            mapped = f"maps the {self.side_}, sigma {self.sigma_:g}" if self.map_ else "no map"
            state = f"{mapped}; gamma {self.gamma_:.4g}; moves {len(self.patch_)} documents"
        return f"Nudge(metric={self.metric!r}, side={self.side!r}, guard={self.guard}, folds={self.folds}): {state}"

    def _choose(self, candidates: list[_Candidate], metric: Metric, *, is_related: bool) -> tuple[_Candidate, Choice]:
        """Choose a map and a step.

        That is the best of them if the evidence is strong, else the most cautious map without a step if there is some
        evidence for it, else nothing.
        """
        none, cautious = candidates[:2]
        originals = none.values(0.0)
        best = max(candidates, key=lambda candidate: candidate.values(candidate.best_angle()).sum())
        choice = best.choice(best.best_angle(), originals)
        if is_related and choice.evidence > 2 * self.guard * (1 + 1e-9):
            return best, choice
        careful = cautious.choice(0.0, originals)
        if is_related and careful.evidence > self.guard * (1 + 1e-9):
            return cautious, careful
        n_queries = len(originals)
        if not is_related:
            reason = (
                "queries are no closer to their labelled documents than to those of other queries, so the labels seem "
                "to belong to other documents, or queries and documents to different models"
            )
        elif choice.after <= choice.before:
            reason = f"no map and no step raises {metric} on {n_queries} held-out queries; label more queries"
        else:
            needed = choice.queries_needed(n_queries, 2 * self.guard)
            reason = (
                f"the best map and step would raise {metric} on {n_queries} held-out queries from {choice.before:.4f} "
                f"to {choice.after:.4f}, but chance could do that (evidence {choice.evidence:.2f}, wanted "
                f"{2 * self.guard:g}); hold out about {needed:,} queries, or set guard=0 (--guard 0) to move anyway"
            )
        warnings.warn(f"nothing moves: {reason}", NudgeWarning, stacklevel=3)
        before = choice.before
        return none, Choice(0.0, (0.0, 0.0), before, before, choice.evidence, choice.best_gamma)

    def _result(
        self, learner: Learner, counts: dict[str, int], tested: tuple[Array, Labels] | None, metric: Metric
    ) -> tuple[Patch, BeforeAfter | None]:
        """Return the patch, and what was measured on test queries."""
        final = learner.final(self.map_, self.gamma_)
        counts = {**counts, "moved": len(final.rows)}
        names = ("before", "after", "evidence", "best_gamma")
        patch = Patch(
            rows=final.rows,
            ids=learner.reader.ids(final.rows),
            before=final.before,
            after=final.after,
            labels=learner.count_labels(final.rows),
            distance=_angles(final.before, final.after),
            method=self.method,
            similarity=self.similarity,
            gamma=self.gamma_,
            metric=str(metric),
            validation={name: getattr(self.choice_, name) for name in names},
            counts=counts,
            curve=self.curve_,
            query_map=None if self.map_ is None or self.side_ == "documents" else self.map_.matrix,
        )
        return patch, None if tested is None else learner.test(tested, final, patch, metric)


def _side(side: str, n_documents: int) -> Side:
    if side == "auto":
        return "documents" if n_documents <= MOST_DOCUMENTS else "queries"
    return "documents" if side == "documents" else "queries"


def _angles(before: Array, after: Array) -> Floats:
    """Return the angles between the rows of two arrays."""
    one, other = (vectors / np.maximum(norms(vectors), 1e-300)[:, None] for vectors in (before, after))
    chord: Floats = norms(np.asarray(one - other, np.float64))
    return 2 * np.arcsin(np.minimum(chord / 2, 1.0))
