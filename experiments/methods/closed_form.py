"""The library's tuners behind the common face, and the method that does nothing."""

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
    ranking = Ranking(problem.labels(problem.validation), settings["metric"])
    scores = problem.queries(problem.validation[ranking.answered]) @ problem.documents.T
    return Tuned(problem.data.documents, problem.data.queries.__getitem__, "cosine", ranking.mean(scores))


def _fit(kind: type[nudgevec.NudgeN], problem: Problem, settings: Settings) -> Tuned:
    data = problem.data
    tuner = kind(**settings, engine="auto" if problem.device == "cpu" else "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NudgeWarning)
        tuner.fit(data.documents, data.part(problem.train), data.part(problem.validation))
    # NUDGE-NU has no step to choose, and so nothing is measured on the validation queries.
    score = float("nan") if tuner.choice_ is None else tuner.choice_.after
    facts = {"gamma": tuner.gamma_, "moved": len(tuner.patch_)}
    return Tuned(tuner.transform(data.documents), data.queries.__getitem__, tuner.similarity, score, facts)
