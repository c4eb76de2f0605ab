"""What all tuners have in common.

A tuner works like a scikit-learn estimator: options in the constructor, data in ``fit``, results in attributes that end
in an underscore. A second ``fit`` starts afresh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy.typing as npt

from nudgevec.core.curve import Choice, Curve, QueryCurves
from nudgevec.corpus import Corpus
from nudgevec.engines import Engine
from nudgevec.estimator import Estimator
from nudgevec.labels import LabelledQueries
from nudgevec.patch import Patch
from nudgevec.search import BeforeAfter


class Tuner(Estimator, ABC):
    """What all tuners have in common: results, and documents moved by them.

    Examples
    --------
    >>> from nudgevec import Nudge, NudgeM, NudgeN
    >>> [issubclass(tuner, Tuner) for tuner in (Nudge, NudgeN, NudgeM)]
    [True, True, True]
    """

    method: ClassVar[str]
    """The name of the method, as on the command line."""
    similarity: ClassVar[str]
    """How tuned vectors are to be compared: "cosine" or "dot"."""

    metric: str
    guard: float
    engine: str | Engine
    gamma_: float
    curve_: Curve | None
    choice_: Choice | None
    query_curves_: QueryCurves | None
    test_: BeforeAfter | None
    patch_: Patch
    _results: ClassVar[tuple[str, ...]] = ("gamma_", "curve_", "choice_", "query_curves_", "test_", "patch_")

    @abstractmethod
    def fit(
        self,
        documents: Corpus | npt.ArrayLike,
        train: LabelledQueries,
        validation: LabelledQueries | None = None,
        test: LabelledQueries | None = None,
    ) -> Self:
        """Learn the patch from labelled queries.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            Document vectors.
        train : (query vectors, labels)
            Queries to learn from.
        validation : (query vectors, labels), optional
            Queries to choose on.
        test : (query vectors, labels), optional
            Queries to measure the result on.

        Returns
        -------
        self
        """

    @abstractmethod
    def check_options(self) -> None:
        """Check the values of all options, as ``fit`` does.

        Raises
        ------
        OptionError
            If an option is out of its range.
        """

    def transform(self, documents: Corpus | npt.ArrayLike) -> Any:
        """Return a copy of the documents with the patch applied; unmoved rows are bit-identical.

        Parameters
        ----------
        documents : array of shape (n, d), or Corpus
            The documents of ``fit``.

        Returns
        -------
        array or ArrayCorpus
            An array for an array; for a corpus with ids, an ``ArrayCorpus`` with the same ids.

        Raises
        ------
        PatchError
            If the documents have other vectors than those of ``fit``.
        """
        return self.patch_.apply(documents)
