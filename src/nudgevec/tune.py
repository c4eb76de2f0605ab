"""The tuners: NudgeN and NudgeM, and the paper's two variants built from the same parts.

A tuner works in the manner of scikit-learn: options in the constructor, data in ``fit``, what was learned
in attributes that end in an underscore, and a second ``fit`` starts afresh.
"""

from __future__ import annotations

import logging
import warnings
from math import isfinite
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from nudgevec.arithmetic.parallel import SOME, everywhere, single_threaded
from nudgevec.arithmetic.rows import Floats, lengths, unit_rows
from nudgevec.arithmetic.scratch import keep_what_is_freed
from nudgevec.arithmetic.sorting import begins
from nudgevec.corpus import Corpus, Reader
from nudgevec.cut.cutter import Cutter
from nudgevec.engines import ENGINES, pick
from nudgevec.errors import LabelError, NotFittedError, NudgeWarning, OptionError, VectorError
from nudgevec.gather import gather
from nudgevec.judged import Judged, count_shared, judged
from nudgevec.labels import Labels
from nudgevec.metrics import Metric
from nudgevec.motion import Motion, packed, sliding, turning
from nudgevec.patch import Patch
from nudgevec.queries import Queries
from nudgevec.scan.scan import Scan
from nudgevec.sweep.curve import Choice, Curve, choose, trace
from nudgevec.sweep.sweep import sweep

log = logging.getLogger(__name__)


class NudgeN:
    """NUDGE-N: turn labelled documents toward their queries, keeping their length.

    Right for cosine similarity, and for inner product where all vectors have unit length. Rows are
    normalised for the arithmetic and keep their own length in the result, so vectors of different
    lengths must be searched by cosine similarity.

    Parameters
    ----------
    metric : the metric to be best at on the validation queries: ``"recall@k"``, ``"capped_recall@k"``,
        ``"success@k"``, ``"mrr@k"`` or ``"ndcg@k"``.
    gamma : take this step instead of choosing one; no validation queries are needed then.
    guard : the gain on the validation queries must exceed this many standard deviations of chance, or
        nothing moves; 0 takes the plain optimum. See ``nudgevec.sweep.curve.choose``.
    refit : once gamma is chosen, pull with the training and the validation labels together.
    engine : where the scan runs, ``"numpy"``, ``"torch"`` or ``"auto"``; the answer is the same.

    Attributes (after ``fit``)
    --------------------------
    gamma_ : the step, in the paper's units: |change|^2 <= gamma on unit vectors.
    curve_ : the exact metric as a function of gamma (None with a fixed gamma).
    choice_ : which plateau was chosen and how strong the evidence is (None with a fixed gamma).
    patch_ : the moved rows.

    >>> import numpy as np
    >>> documents = np.eye(3, dtype=np.float32)
    >>> query = np.array([[0.8, 0.6, 0.0]], dtype=np.float32)
    >>> tuner = NudgeN(gamma=0.1).fit(documents, train=(query, [[1]]))
    >>> [int(row) for row in tuner.patch_.rows]
    [1]
    """

    method: ClassVar[str] = "N"
    similarity: ClassVar[str] = "cosine"

    def __init__(
        self,
        metric: str = "ndcg@10",
        *,
        gamma: float | None = None,
        guard: float = 1.0,
        refit: bool = False,
        engine: str = "auto",
    ) -> None:
        self.metric = metric
        self.gamma = gamma
        self.guard = guard
        self.refit = refit
        self.engine = engine

    gamma_: float
    curve_: Curve | None
    choice_: Choice | None

    def fit(
        self,
        documents: Corpus | npt.ArrayLike,
        train: Judged,
        validation: Judged | None = None,
    ) -> Self:
        """Learn the patch from training labels and choose its size on validation labels.

        documents : an (n, d) array of float16/32/64, in memory or memory-mapped, or a corpus with ids
            (``ArrayCorpus``, ``ParquetCorpus``, anything with ``ids``, ``dim``, ``take``, ``blocks``).
        train, validation : (query vectors, labels), with one label entry per query: a list of rows (ids where
            the corpus has ids), or a dict row -> grade; or one (queries, documents) matrix of grades. A query
            vector twice as long pulls twice as hard. Without validation, ``gamma`` must be given.

        Nothing is written into the arrays passed in.
        """
        for name in [*self._learned, "_patch"]:
            self.__dict__.pop(name, None)
        metric = Metric.parse(self.metric)
        self._check_options()
        if self.refit and validation is None:
            raise OptionError("refit=True pulls with the validation labels too, and no validation queries were given")
        keep_what_is_freed()
        reader = Reader(documents)
        train_queries, train_labels = judged(train, reader, "training queries")
        if len(train_labels) == 0:
            raise LabelError("training queries: none of them has a label; there is nothing to learn from")
        counts = {
            "documents": reader.rows,
            "train_queries": train_labels.queries,
            "train_queries_without_labels": train_labels.queries - int(begins(train_labels.query).sum()),
            "train_labels": len(train_labels),
        }

        if validation is not None:
            held_out, held_labels = judged(validation, reader, "validation queries")
            used, answers = held_labels.answered()
            counts["validation_queries"] = held_labels.queries
            counts["validation_queries_without_labels"] = held_labels.queries - len(used)
            counts["validation_labels"] = len(held_labels)
            counts["validation_queries_in_train"] = count_shared(train_queries, held_out)

        curve: Curve | None = None
        choice: Choice | None = None
        if self.gamma is not None:
            gamma = float(self.gamma)
            motion = self._motion(train_queries, train_labels, reader)
        elif validation is None or len(used) == 0:
            reason = "none were given" if validation is None else "none of them has a relevant label"
            raise LabelError(
                f"validation queries: {reason}, so no gamma can be chosen; "
                "hold some labelled queries out, or pass gamma="
            )
        else:
            with self._scan(reader, unit_rows(held_out.some(used)), metric, train_labels) as scan:
                motion = self._motion(train_queries, train_labels, reader)
                curve, choice = self._choose(scan, motion, answers, metric)
            gamma = choice.gamma

        if self.refit and validation is not None:
            motion = self._motion(train_queries.joined(held_out), train_labels.joined(held_labels), reader)
        patch = self._make_patch(reader, motion, gamma, str(metric), counts, curve, choice)
        log.debug("%s: gamma %.6g moves %d of %d documents", self.method, gamma, len(patch), reader.rows)
        self.gamma_, self.curve_, self.choice_, self._patch = gamma, curve, choice, patch
        return self

    @property
    def patch_(self) -> Patch:
        """The moved rows."""
        return self._patch

    _learned: ClassVar[tuple[str, ...]] = ("gamma_", "curve_", "choice_")

    def __getattr__(self, name: str) -> Any:
        if name in (*self._learned, "_patch", "patch_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __repr__(self) -> str:
        options = f"metric={self.metric!r}, gamma={self.gamma}, guard={self.guard}, refit={self.refit}"
        state = "not fitted"
        if "_patch" in vars(self):
            state = f"moves {len(self._patch)} documents by gamma {self.gamma_:.4g}"
        return f"{type(self).__name__}({options}): {state}"

    def transform(self, documents: Corpus | npt.ArrayLike) -> Any:
        """The documents with the patch applied, as a new array; untouched rows are bit-identical.

        For a corpus with ids, an ``ArrayCorpus`` with the same ids.
        """
        return self.patch_.apply(documents)

    def _check_options(self) -> None:
        limit = self._largest_gamma
        if self.gamma is not None and not (_is_number(self.gamma) and 0 <= self.gamma <= limit):
            raise OptionError(f"gamma must be None or a number between 0 and {limit:g}, not {self.gamma!r}")
        if not (_is_number(self.guard) and self.guard >= 0):
            raise OptionError(f"guard must be a number of standard deviations, 0 or more, not {self.guard!r}")
        if self.engine not in ENGINES:
            raise OptionError(f"unknown engine {self.engine!r}: use one of {', '.join(ENGINES)}")

    _largest_gamma: ClassVar[float] = 4.0
    _turns: ClassVar[bool] = True

    def _motion(self, queries: Queries, labels: Labels, reader: Reader) -> Motion:
        return turning(gather(labels, queries), reader)

    def _scan(self, reader: Reader, queries: Floats, metric: Metric, labels: Labels) -> Scan:
        engine = pick(self.engine, float(len(queries)) * reader.rows * reader.dim)
        return Scan(reader, queries, metric.k + 1, labels.row, cosine=self._turns, engine=engine)

    def _choose(self, scan: Scan, motion: Motion, answers: Labels, metric: Metric) -> tuple[Curve, Choice]:
        """Sweep, choose."""
        with single_threaded():
            cutter = Cutter(motion, scan, answers, metric.k, flat=metric.flat)
            steps = sweep(cutter, answers, metric, motion.end)
        curve, angles = trace(steps, motion)
        choice = choose(curve, angles, steps, motion, self.guard)
        if choice.gamma == 0 and choice.best_gamma > 0:
            message = (
                f"nothing moves: gamma {choice.best_gamma:.4g} would raise validation {metric} from "
                f"{curve.at_zero:.4f} to {curve(choice.best_gamma):.4f}, but with {answers.queries} validation queries "
                f"chance could do that (evidence {choice.evidence:.2f}, guard {self.guard:g}); "
                "hold out more queries, or set guard=0 (--guard 0) to move all the same"
            )
            warnings.warn(message, NudgeWarning, stacklevel=3)
        return curve, choice

    def _moved(self, motion: Motion, gamma: float, part: slice) -> Floats:
        return motion.moved(motion.phi(gamma), part)

    def _make_patch(
        self,
        reader: Reader,
        motion: Motion,
        gamma: float,
        metric: str,
        counts: dict[str, int],
        curve: Curve | None,
        choice: Choice | None,
    ) -> Patch:
        """The rows that changed. The motion is used up."""
        after = np.empty_like(motion.start)
        fits, changed = (np.zeros(len(motion), np.bool_) for _ in range(2))

        def move(part: slice) -> None:
            with np.errstate(over="ignore"):
                after[part] = self._moved(motion, gamma, part)
            fits[part] = np.isfinite(after[part]).all(axis=1)
            changed[part] = (after[part] != motion.start[part]).any(axis=1)

        if gamma > 0:
            everywhere(move, len(motion), threads=SOME)
            if not fits.all():
                where = reader.name(int(motion.rows[~fits][0]))
                raise VectorError(f"{where} would not fit into {after.dtype} after a step of gamma {gamma:g}")
        distance = np.minimum(motion.phi(gamma), motion.stop) if motion.turns else np.full(len(motion), gamma)
        return Patch(
            rows=motion.rows[changed],
            ids=reader.ids(motion.rows[changed]),
            before=packed(motion.start, changed),
            after=packed(after, changed),
            labels=motion.labels[changed],
            distance=distance[changed],
            method=self.method,
            similarity=self.similarity,
            gamma=gamma,
            metric=None if choice is None else metric,
            validation={} if choice is None else _summary(choice),
            counts={**counts, "moved": int(changed.sum())},
            curve=curve,
        )


class NudgeM(NudgeN):
    """NUDGE-M: move labelled documents along a straight ray toward their queries.

    Right for inner product. The moved vectors change their length, so under cosine similarity the
    result is another one than the one tuned for; use ``NudgeN`` there. ``gamma_`` is the length of the
    step, in the units of the documents. Parameters and attributes are those of ``NudgeN``.

    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeM(gamma=0.5).fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.4, 1.3, 0.0]
    """

    method: ClassVar[str] = "M"
    similarity: ClassVar[str] = "dot"
    _largest_gamma: ClassVar[float] = float("inf")
    _turns: ClassVar[bool] = False

    def _motion(self, queries: Queries, labels: Labels, reader: Reader) -> Motion:
        return sliding(gather(labels, queries), reader)


class NudgeMN(NudgeM):
    """NUDGE-M+N of the paper's ablation: NUDGE-M, then each moved vector is given its old length back.

    The step is chosen as for NUDGE-M, so ``curve_`` and ``choice_`` are those of NUDGE-M.

    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeMN(gamma=0.5).fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.294, 0.956, 0.0]
    """

    method: ClassVar[str] = "M+N"
    similarity: ClassVar[str] = "cosine"

    def _moved(self, motion: Motion, gamma: float, part: slice) -> Floats:
        moved = super()._moved(motion, gamma, part)
        length, size = motion.length[part], lengths(moved)
        # A step that ends in the origin has no direction to keep: that document stays.
        stays = size <= 1e-12 * length
        moved[stays] = motion.start[part][stays]
        return np.where(stays, 1.0, length / np.where(stays, 1.0, size))[:, None] * moved


class NudgeNU(NudgeN):
    """NUDGE-NU of the paper's ablation: no bound, every document goes all the way to its pull.

    >>> documents, query = np.eye(3), np.array([[0.8, 0.6, 0.0]])
    >>> NudgeNU().fit(documents, train=(query, [[1]])).transform(documents)[1].round(3).tolist()
    [0.8, 0.6, 0.0]
    """

    method: ClassVar[str] = "NU"

    def __init__(
        self,
        metric: str = "ndcg@10",
        *,
        gamma: float = 4.0,
        guard: float = 1.0,
        refit: bool = False,
        engine: str = "auto",
    ) -> None:
        super().__init__(metric, gamma=gamma, guard=guard, refit=refit, engine=engine)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and isfinite(value)


def _summary(choice: Choice) -> dict[str, Any]:
    return {
        "before": choice.before,
        "after": choice.after,
        "evidence": choice.evidence,
        "best_gamma": choice.best_gamma,
    }
