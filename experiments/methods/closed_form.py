"""The tuners of the library, and the baseline without fine-tuning."""

from __future__ import annotations

import warnings

import nudgevec
from methods.protocol import Problem, Ranking, Settings, Tuned
from nudgevec.errors import NudgeWarning


def nudge_n(problem: Problem, settings: Settings) -> Tuned:
    return _fit(nudgevec.NudgeN, problem, settings)


def nudge_m(problem: Problem, settings: Settings) -> Tuned:
    return _fit(nudgevec.NudgeM, problem, settings)


def nudge_mn(problem: Problem, settings: Settings) -> Tuned:
    return _fit(nudgevec.NudgeMN, problem, settings)


def nudge_nu(problem: Problem, settings: Settings) -> Tuned:
    return _fit(nudgevec.NudgeNU, problem, settings)


def none(problem: Problem, settings: Settings) -> Tuned:
    """Return the vectors unchanged."""
    ranking = Ranking(problem.labels(problem.validation), settings["metric"])
    scores = problem.queries(problem.validation[ranking.has_relevant]) @ problem.documents.T
    return Tuned(problem.data.documents, problem.data.queries.__getitem__, "cosine", ranking.mean(scores))


def _fit(tuner_class: type[nudgevec.NudgeN], problem: Problem, settings: Settings) -> Tuned:
    data = problem.data
    tuner = tuner_class(**settings, engine="auto" if problem.device == "cpu" else "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NudgeWarning)
        tuner.fit(data.documents, data.subset(problem.train), data.subset(problem.validation))
    # NUDGE-NU has no step to choose and measures no validation metric.
    validation = float("nan") if tuner.choice_ is None else tuner.choice_.after
    facts = {"gamma": tuner.gamma_, "moved": len(tuner.patch_)}
    return Tuned(tuner.transform(data.documents), data.queries.__getitem__, tuner.similarity, validation, facts)
