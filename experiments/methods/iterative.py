"""The iterative variants of the paper: NUDGE-IM, NUDGE-IN and NUDGE-IM+R, gradient descent with normalised gradients.

The loss is L = -sum_i G_i . D_i over the labelled documents, where G_i is the pull of document i; NUDGE-IM+R adds
``penalty`` / 2 |D_i|^2. Each iteration moves every labelled document by ``rate`` against its own normalised gradient.
The best iteration on the validation queries is kept, with iteration 0 (no change) among the choices.
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
    """Return the rows of the labelled documents and their pulls G."""
    labels = problem.labels(problem.train)
    triples = [(row, query, grade) for query, entry in enumerate(labels) for row, grade in entry.items()]
    row, query, grade = np.array(triples, dtype=np.float64).T
    rows, position = np.unique(row.astype(np.int64), return_inverse=True)
    queries = problem.queries(problem.train)
    pull = queries.new_zeros(len(rows), queries.shape[1])
    weighted = queries[problem.tensor(query.astype(np.int64))] * problem.tensor(grade).to(queries.dtype)[:, None]
    return problem.tensor(rows), pull.index_add_(0, problem.tensor(position), weighted)


def _descend(problem: Problem, settings: Settings, *, unit: bool = False, penalty: float = 0.0) -> Tuned:
    """Run gradient descent; ``unit`` normalises the documents after every iteration (NUDGE-IN)."""
    documents = problem.documents
    rows, pull = pulls(problem)
    validation = _PartialRanking(problem, problem.validation, settings["metric"], rows)
    train = _PartialRanking(problem, problem.train, settings["metric"], rows) if settings.get("watch") else None
    moved = documents[rows]
    best, best_value, best_step = moved, validation.mean(moved), 0
    history = [{"step": 0, "validation": best_value, "train": train and train.mean(moved)}]
    for step in range(1, settings["iterations"] + 1):
        gradient = penalty * moved - pull
        moved = moved - settings["rate"] * normalize(gradient)
        if unit:
            moved = normalize(moved)
        value = validation.mean(moved)
        history.append({"step": step, "validation": value, "train": train and train.mean(moved)})
        if value > best_value:
            best, best_value, best_step = moved, value, step
    result = documents.clone()
    result[rows] = best
    facts = {"step": best_step, "history": history if train else []}
    similarity = "cosine" if unit else "dot"
    return Tuned(result.cpu().numpy(), problem.data.queries.__getitem__, similarity, best_value, facts)


class _PartialRanking:
    """A metric that recomputes the scores of the moved documents only."""

    def __init__(self, problem: Problem, query_rows: np.ndarray, metric: str, moved_rows: torch.Tensor) -> None:
        self.ranking, self.moved_rows = Ranking(problem.labels(query_rows), metric), moved_rows
        self.queries = problem.queries(query_rows[self.ranking.has_relevant])
        self.scores = self.queries @ problem.documents.T

    def mean(self, moved: torch.Tensor) -> float:
        """Average the metric over the queries, given the vectors of the moved documents."""
        self.scores[:, self.moved_rows] = self.queries @ moved.T
        return self.ranking.mean(self.scores)
