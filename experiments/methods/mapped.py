"""Nudge, and its map without the step."""

from __future__ import annotations

import warnings

import numpy as np

import nudgevec
from methods.protocol import Problem, Ranking, Settings, Tuned
from nudgevec.corpus import Reader
from nudgevec.errors import NudgeWarning
from nudgevec.tuners.held_out import read_labelled_set
from nudgevec.tuners.learner import SIGMAS, Learner


def nudge(problem: Problem, settings: Settings) -> Tuned:
    data = problem.data
    tuner = nudgevec.Nudge(**settings, engine="auto" if problem.device == "cpu" else "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NudgeWarning)
        tuner.fit(data.documents, data.subset(problem.train), data.subset(problem.validation))
    facts = {"gamma": tuner.gamma_, "sigma": tuner.sigma_, "moved": len(tuner.patch_)}

    def queries(rows: np.ndarray) -> np.ndarray:
        return tuner.adapt(data.queries[rows])

    return Tuned(tuner.transform(data.documents), queries, tuner.similarity, tuner.choice_.after, facts)


def map_alone(problem: Problem, settings: Settings) -> Tuned:
    """Take the best map on the validation queries, without a step, and learn it again from all labels."""
    data = problem.data
    reader = Reader(data.documents)
    labelled, n_train, _ = read_labelled_set(reader, data.subset(problem.train), data.subset(problem.validation))
    learner = Learner(reader, labelled, settings["side"], "cpu")
    maps = [None, *learner.maps(np.arange(n_train))]
    ranking = Ranking(problem.labels(problem.validation), settings["metric"])
    queries = problem.queries(problem.validation[ranking.has_relevant])
    values = [
        ranking.mean(queries @ problem.tensor(data.documents if by is None else by(data.documents)).T) for by in maps
    ]
    best = int(np.argmax(values))
    begin = maps[best]
    documents = data.documents if begin is None else learner.final_map(SIGMAS[best - 1], begin)(data.documents)
    facts = {"sigma": (0.0, *SIGMAS)[best]}
    return Tuned(documents, data.queries.__getitem__, "cosine", values[best], facts)
