"""The methods of the paper: NUDGE-N, NUDGE-M, and two variants built from the same parts."""

from __future__ import annotations

import logging
import warnings
from abc import abstractmethod
from math import inf, isfinite
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from nudgevec.arrays import Array
from nudgevec.core.curve import Choice, Curve, choose, curve_of, query_curves
from nudgevec.core.exact import norms
from nudgevec.core.paths import Paths, RowName, rays, rotations
from nudgevec.core.pull import Pull, sum_pulls
from nudgevec.corpus import Corpus, Reader
from nudgevec.engines import Engine, check_engine
from nudgevec.errors import LabelError, NudgeWarning, OptionError, VectorError
from nudgevec.labels import LabelledQueries, Labels, count_shared, read_labelled_queries
from nudgevec.metrics import Metric
from nudgevec.patch import Patch
from nudgevec.search import Queries, Search, reported_metrics, with_relevant_labels
from nudgevec.tuners.base import Tuner

log = logging.getLogger(__name__)


class StepTuner(Tuner):
    """The methods of the paper: labelled documents move along their paths, all by the same step.

    Subclasses say which paths documents take (``_paths``) and how far they may go (``_largest_gamma``).

    Parameters
    ----------
    metric : str
        The metric to maximise on the validation queries.
    gamma : float, optional
        Take this step instead of choosing one.
    guard : float
        How many standard deviations of chance the gain on the validation queries must exceed.
    refit : bool
        Once gamma is chosen, move the documents with the validation labels too.
    engine : str or Engine
        Where products run.
    """

    _rotates: ClassVar[bool]
    _largest_gamma: ClassVar[float]

    def __init__(
        self,
        metric: str = "ndcg@10",
        *,
        gamma: float | None = None,
        guard: float = 1.0,
        refit: bool = False,
        engine: str | Engine = "auto",
    ) -> None:
        self.metric = metric
        self.gamma = gamma
        self.guard = guard
        self.refit = refit
        self.engine = engine

    def fit(
        self,
        documents: Corpus | npt.ArrayLike,
        train: LabelledQueries,
        validation: LabelledQueries | None = None,
        test: LabelledQueries | None = None,
    ) -> Self:
        """Learn the patch from training labels and choose its size on validation labels.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            Document vectors in float16, float32 or float64, in memory or memory-mapped; or a corpus with ids. They are
            not changed. One pass over them finds what validation and test queries need. Test queries need another one
            where equal documents are tied for the last place of a ranking, and another one with ``NudgeMN``.
        train : (query vectors, labels)
            Labels have one entry per query: a list of rows (ids where the corpus has ids), a dict row -> grade, or a
            single row; or they are a matrix of grades of shape (queries, documents). Negative grades push documents
            away. A query vector twice as long pulls twice as hard.
        validation : (query vectors, labels), optional
            Needed unless ``gamma`` is given.
        test : (query vectors, labels), optional
            Queries to measure the result on, in ``test_``. They take no part in tuning.

        Returns
        -------
        self

        Raises
        ------
        VectorError
            If vectors that are read are not finite, have no direction, or differ in their dimensions.
        LabelError
            If labels refer to documents that are not there, or there are none.
        OptionError
            If an option of the tuner is out of its range.
        """
        self._forget_results()
        self.check_options()
        if self.refit and validation is None:
            raise OptionError("refit=True uses the validation labels too, and no validation queries were given")
        metric, reader = Metric.parse(self.metric), Reader(documents)
        queries, labels = read_labelled_queries(train, reader, "training queries")
        if len(labels) == 0:
            raise LabelError("training queries: none of them has a label; there is nothing to learn from")
        more_queries, more_labels = _read_or_none(validation, reader, "validation queries")
        chosen_on = None if validation is None else with_relevant_labels(more_queries, more_labels)
        if self.gamma is None:
            _check_validation(chosen_on)
        tested = None if test is None else with_relevant_labels(*read_labelled_queries(test, reader, "test queries"))
        counts = {"documents": reader.n_rows, **_counts("train", labels, labels)}
        if chosen_on is not None:
            counts |= _counts("validation", more_labels, chosen_on.relevant)
            counts["validation_queries_in_train"] = count_shared(queries, more_queries)
        if self.gamma is not None:
            chosen_on = None

        # Gamma is chosen with the pull of the training labels. With refit, documents are then moved by that gamma with
        # the pull of all labels.
        train_pull = final_pull = sum_pulls(labels, queries)
        if self.refit:
            all_queries = np.concatenate([queries.astype(np.float64), more_queries])
            final_pull = sum_pulls(labels.joined(more_labels), all_queries)

        k = metric.k if tested is None else max(each.k for each in reported_metrics(metric))
        # Why one more than k: see core.candidates, and evaluation.rank_documents.
        search = Search(reader, final_pull.rows, [chosen_on, tested], k + 1, cosine=self._rotates, engine=self.engine)
        best, best_of_test = search.found
        paths = final_paths = self._paths(train_pull, search.vectors_of(train_pull.rows), reader.name)
        if self.refit:
            final_paths = self._paths(final_pull, search.vectors, reader.name)

        curve = choice = by_query = None
        if chosen_on is not None:
            steps = search.sweep(chosen_on, best, paths, metric)
            curve = curve_of(steps, paths)
            # With refit, other paths are taken in the end, and their vectors have to fit into their type too.
            largest = min(paths.largest_gamma, final_paths.largest_gamma)
            choice = choose(curve, steps, paths, self.guard, largest)
            by_query = query_curves(steps, paths)
            self._warn_if_nothing_moves(choice, curve, metric, len(chosen_on.used), len(paths))
        gamma = float(self.gamma) if choice is None else choice.gamma  # type: ignore[arg-type]

        patch = self._patch(reader, final_paths, gamma, metric, counts, curve, choice)
        result = None if tested is None else search.test(tested, best_of_test, final_paths, patch, metric)
        log.debug("%s: gamma %.6g moves %d of %d documents", self.method, gamma, len(patch), reader.n_rows)
        self.gamma_, self.curve_, self.choice_, self.query_curves_ = gamma, curve, choice, by_query
        self.test_, self.patch_ = result, patch
        return self

    def __repr__(self) -> str:
        options = f"metric={self.metric!r}, gamma={self.gamma}, guard={self.guard}, refit={self.refit}"
        state = "not fitted"
        if "patch_" in vars(self):
            state = f"moves {len(self.patch_)} documents by gamma {self.gamma_:.4g}"
        return f"{type(self).__name__}({options}): {state}"

    @abstractmethod
    def _paths(self, pull: Pull, start: Array, name: RowName) -> Paths:
        """Return the paths of the documents that move; ``start`` are the vectors of the pulled rows."""

    def _moved(self, paths: Paths, gamma: float) -> Array:
        """Return the vectors of the movers after the step."""
        return paths.moved(gamma)

    def check_options(self) -> None:
        """Check the values of all options, as ``fit`` does.

        Raises
        ------
        OptionError
            If an option is out of its range.
        """
        Metric.parse(self.metric)
        if self.gamma is not None and not (_is_number(self.gamma) and 0 <= self.gamma <= self._largest_gamma):
            raise OptionError(
                f"gamma must be None or a number between 0 and {self._largest_gamma:g}, not {self.gamma!r}"
            )
        if not (_is_number(self.guard) and self.guard >= 0):
            raise OptionError(f"guard must be a number of standard deviations, 0 or more, not {self.guard!r}")
        check_engine(self.engine)

    def _warn_if_nothing_moves(
        self, choice: Choice, curve: Curve, metric: Metric, n_queries: int, n_movers: int
    ) -> None:
        if choice.gamma > 0:
            return
        if n_movers == 0:
            message = (
                "no document can move: those with training labels are at their queries already, have labels that "
                "cancel, or are pulled in the opposite direction; label other documents"
            )
        elif choice.best_gamma == 0:
            message = (
                f"no step raises validation {metric} above {curve.at_zero:.4f} ({n_queries} validation queries); label "
                "more training queries for the documents that validation queries ask for, or pass gamma= (--gamma) to "
                "move anyway"
            )
        else:
            needed = choice.queries_needed(n_queries, self.guard)
            estimate = "hold out more queries" if needed is None else f"hold out about {needed:,} queries"
            message = (
                f"gamma {choice.best_gamma:.4g} would raise validation {metric} from "
                f"{curve.at_zero:.4f} to {curve(choice.best_gamma):.4f}, but with {n_queries} validation queries "
                f"chance could do that (evidence {choice.evidence:.2f}, guard {self.guard:g}); "
                f"{estimate}, or set guard=0 (--guard 0) to move anyway"
            )
        warnings.warn(f"nothing moves: {message}", NudgeWarning, stacklevel=3)

    def _patch(
        self,
        reader: Reader,
        paths: Paths,
        gamma: float,
        metric: Metric,
        counts: dict[str, int],
        curve: Curve | None,
        choice: Choice | None,
    ) -> Patch:
        """Return the rows that change."""
        after = self._moved(paths, gamma) if gamma > 0 else paths.start
        not_finite = np.flatnonzero(~np.isfinite(after).all(axis=1))
        if len(not_finite):
            where = reader.name(int(paths.rows[not_finite[0]]))
            raise VectorError(f"{where} would not fit into {after.dtype} after a step of gamma {gamma:g}")
        changed = (after != paths.start).any(axis=1)
        distance = np.minimum(paths.phi(gamma), paths.stop) if paths.rotates else np.full(len(paths), gamma)
        validation = {}
        if choice is not None:
            names = ("before", "after", "evidence", "best_gamma")
            validation = {name: getattr(choice, name) for name in names}
        return Patch(
            rows=paths.rows[changed],
            ids=reader.ids(paths.rows[changed]),
            before=paths.start[changed],
            after=after[changed],
            labels=paths.labels[changed],
            distance=distance[changed],
            method=self.method,
            similarity=self.similarity,
            gamma=gamma,
            metric=None if choice is None else str(metric),
            validation=validation,
            counts={**counts, "moved": int(changed.sum())},
            curve=curve,
        )


class NudgeN(StepTuner):
    """NUDGE-N: rotate labelled documents toward their queries, keeping their length.

    For cosine similarity, and for inner product where all vectors have unit length.

    Parameters
    ----------
    metric : str
        The metric to maximise on the validation queries: ``"recall@k"``, ``"capped_recall@k"``, ``"success@k"``,
        ``"mrr@k"`` or ``"ndcg@k"``.
    gamma : float, optional
        Take this step instead of choosing one; no validation queries are needed then.
    guard : float
        The gain on the validation queries must exceed this many standard deviations of chance, or nothing moves. 0
        takes the plain optimum.
    refit : bool
        Once gamma is chosen, compute the pull from the training and the validation labels together.
    engine : str or Engine
        Where products run: ``"cpu"``, ``"torch"`` or ``"auto"``. The result is the same.

    Attributes
    ----------
    gamma_ : float
        The step, as the paper measures it: |change|^2 <= gamma for unit vectors.
    patch_ : Patch
        The moved documents.
    curve_ : Curve or None
        The exact validation metric as a function of gamma; None with a fixed gamma.
    choice_ : Choice or None
        The chosen plateau, and how strong the evidence for it is.
    query_curves_ : QueryCurves or None
        The metric of every validation query as a function of gamma.
    test_ : BeforeAfter or None
        What was measured on the test queries.

    Examples
    --------
    >>> import numpy as np
    >>> documents = np.eye(3, dtype=np.float32)
    >>> query = np.array([[0.8, 0.6, 0.0]], dtype=np.float32)
    >>> tuner = NudgeN(gamma=0.1).fit(documents, train=(query, [[1]]))
    >>> [int(row) for row in tuner.patch_.rows]
    [1]
    """

    method: ClassVar[str] = "N"
    similarity: ClassVar[str] = "cosine"
    _rotates: ClassVar[bool] = True
    _largest_gamma: ClassVar[float] = 4.0

    def _paths(self, pull: Pull, start: Array, name: RowName) -> Paths:
        return rotations(pull, start, name)


class NudgeM(StepTuner):
    """NUDGE-M: move labelled documents along a straight ray toward their queries.

    For inner product. Moved vectors change their length, so cosine similarity needs ``NudgeN``.

    Parameters
    ----------
    metric : str
        The metric to maximise on the validation queries, as in ``NudgeN``.
    gamma : float, optional
        Take a step of this length instead of choosing one; no validation queries are needed then.
    guard : float
        The gain on the validation queries must exceed this many standard deviations of chance, or nothing moves.
    refit : bool
        Once gamma is chosen, compute the pull from the training and the validation labels together.
    engine : str or Engine
        Where products run: ``"cpu"``, ``"torch"`` or ``"auto"``. The result is the same.

    Attributes
    ----------
    gamma_ : float
        The length of the step.
    patch_, curve_, choice_, query_curves_, test_
        As in ``NudgeN``.

    Examples
    --------
    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeM(gamma=0.5).fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.4, 1.3, 0.0]
    """

    method: ClassVar[str] = "M"
    similarity: ClassVar[str] = "dot"
    _rotates: ClassVar[bool] = False
    _largest_gamma: ClassVar[float] = inf

    def _paths(self, pull: Pull, start: Array, name: RowName) -> Paths:
        return rays(pull, start, name)


class NudgeMN(NudgeM):
    """NUDGE-M+N of the paper's ablation: NUDGE-M, then every moved vector is scaled back to its length.

    For cosine similarity. The step is chosen as for NUDGE-M, by inner product.

    Parameters
    ----------
    metric : str
        The metric to maximise on the validation queries, as in ``NudgeN``.
    gamma : float, optional
        Take a step of this length instead of choosing one; no validation queries are needed then.
    guard : float
        The gain on the validation queries must exceed this many standard deviations of chance, or nothing moves.
    refit : bool
        Once gamma is chosen, compute the pull from the training and the validation labels together.
    engine : str or Engine
        Where products run: ``"cpu"``, ``"torch"`` or ``"auto"``. The result is the same.

    Attributes
    ----------
    gamma_ : float
        The length of the step, before the vectors are scaled back.
    curve_, choice_, query_curves_
        Those of NUDGE-M: the scaling is not part of them.
    patch_, test_
        As in ``NudgeN``, without ``test_.query_curves``.

    Examples
    --------
    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeMN(gamma=0.5).fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.294, 0.956, 0.0]
    """

    method: ClassVar[str] = "M+N"
    similarity: ClassVar[str] = "cosine"

    def _moved(self, paths: Paths, gamma: float) -> Array:
        moved = super()._moved(paths, gamma)
        length = norms(moved)
        # A step that ends in the origin leaves no direction: such a document does not move.
        ends_at_origin = length <= 1e-12 * paths.length
        factor = paths.length / np.where(ends_at_origin, 1.0, length)
        scaled = (moved * factor[:, None]).astype(moved.dtype)
        return np.where(ends_at_origin[:, None], paths.start, scaled)


class NudgeNU(NudgeN):
    """NUDGE-NU of the paper's ablation: no bound, every document goes all the way to its pull.

    For cosine similarity. No validation queries are needed, unless ``gamma`` is None.

    Parameters
    ----------
    metric : str
        The metric to maximise on the validation queries if gamma is chosen on them.
    gamma : float or None
        The step. The default of 4 is the largest, half a turn, so that every document reaches its pull. None chooses a
        step on the validation queries, as ``NudgeN`` does.
    guard : float
        How many standard deviations of chance the gain must exceed, if gamma is chosen.
    refit : bool
        Compute the pull from the training and the validation labels together.
    engine : str or Engine
        Where products run: ``"cpu"``, ``"torch"`` or ``"auto"``. The result is the same.

    Attributes
    ----------
    gamma_, patch_, curve_, choice_, query_curves_, test_
        As in ``NudgeN``.

    Examples
    --------
    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeNU().fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.8, 0.6, 0.0]
    """

    method: ClassVar[str] = "NU"

    def __init__(
        self,
        metric: str = "ndcg@10",
        *,
        gamma: float | None = 4.0,
        guard: float = 1.0,
        refit: bool = False,
        engine: str | Engine = "auto",
    ) -> None:
        super().__init__(metric, gamma=gamma, guard=guard, refit=refit, engine=engine)


def _read_or_none(pair: LabelledQueries | None, reader: Reader, what: str) -> tuple[Any, Any]:
    return (None, None) if pair is None else read_labelled_queries(pair, reader, what)


def _check_validation(queries: Queries | None) -> None:
    """Raise LabelError if there is nothing to choose gamma on."""
    if queries is None or len(queries.used) == 0:
        reason = "none were given" if queries is None else "none of them has a relevant label"
        raise LabelError(
            f"validation queries: {reason}, so no gamma can be chosen; hold some labelled queries out, or pass gamma="
        )


def _counts(split: str, labels: Labels, used: Labels) -> dict[str, int]:
    return {
        f"{split}_queries": labels.n_queries,
        f"{split}_queries_without_labels": labels.n_queries - len(np.unique(used.query)),
        f"{split}_labels": len(labels),
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and isfinite(value)
