"""The paper's iterative variants: NUDGE-IM, NUDGE-IN and NUDGE-IM+R, by gradient descent with normalised gradients.

The loss is L = -sum_i G_i . D_i, plus ``penalty`` / 2 |D_i|^2 for IM+R, over the documents that have training labels;
G_i is the pull of the queries that document i answers. Each step moves every such document by ``rate`` against its own
gradient. The best iteration on the validation queries is kept; iteration 0 is one of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import normalize

from methods.protocol import Problem, Ranking, Settings, Tuned


def nudge_im(problem: Problem, settings: Settings) -> Tuned:
    return _descend(problem, settings)


def nudge_in(problem: Problem, settings: Settings) -> Tuned:
    return _descend(problem, settings, unit=True)


def nudge_imr(problem: Problem, settings: Settings) -> Tuned:
    return _descend(problem, settings, penalty=settings["penalty"])


def pulls(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that have training labels, and G on them."""
    labels = problem.labels(problem.train)
    pairs = [(row, query, grade) for query, entry in enumerate(labels) for row, grade in entry.items()]
    row, query, grade = np.array(pairs, dtype=np.float64).T
    rows, place = np.unique(row.astype(np.int64), return_inverse=True)
    queries = problem.queries(problem.train)
    pull = queries.new_zeros(len(rows), queries.shape[1])
    weighted = queries[problem.tensor(query.astype(np.int64))] * problem.tensor(grade).to(queries.dtype)[:, None]
    return problem.tensor(rows), pull.index_add_(0, problem.tensor(place), weighted)


def _descend(problem: Problem, settings: Settings, *, unit: bool = False, penalty: float = 0.0) -> Tuned:
    documents = problem.documents
    rows, pull = pulls(problem)
    held_out = _Watched(problem, problem.validation, settings["metric"], rows)
    learnt = _Watched(problem, problem.train, settings["metric"], rows) if settings.get("watch") else None
    moved = documents[rows]
    best, best_score, best_step = moved, held_out.score(moved), 0
    history = [{"step": 0, "validation": best_score, "train": learnt and learnt.score(moved)}]
    for step in range(1, settings["iterations"] + 1):
        gradient = penalty * moved - pull
        moved = moved - settings["rate"] * normalize(gradient)
        if unit:
            moved = normalize(moved)
        score = held_out.score(moved)
        history.append({"step": step, "validation": score, "train": learnt and learnt.score(moved)})
        if score > best_score:
            best, best_score, best_step = moved, score, step
    result = documents.clone()
    result[rows] = best
    facts = {"step": best_step, "history": history if learnt else []}
    similarity = "cosine" if unit else "dot"
    return Tuned(result.cpu().numpy(), problem.data.queries.__getitem__, similarity, best_score, facts)


class _Watched:
    """The metric of some queries while only ``rows`` move: other scores are computed once."""

    def __init__(self, problem: Problem, numbers: np.ndarray, metric: str, rows: torch.Tensor) -> None:
        self.ranking, self.rows = Ranking(problem.labels(numbers), metric), rows
        self.queries = problem.queries(numbers[self.ranking.answered])
        self.scores = self.queries @ problem.documents.T

    def score(self, moved: torch.Tensor) -> float:
        self.scores[:, self.rows] = self.queries @ moved.T
        return self.ranking.mean(self.scores)
