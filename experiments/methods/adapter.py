"""Adapter and Adapter-L: a small network on the query vectors, initialised as the identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from methods.contrastive import best_checkpoint, train
from methods.protocol import Problem, Ranking, Settings, Tuned


class Adapter(torch.nn.Module):
    """A stack of square linear layers with ReLU between them, initialised as the identity.

    With several layers, the first bias is initialised as +1 and the last as -1. The entries of a unit vector are at
    least -1, so that every ReLU has a non-negative input.
    """

    def __init__(self, dim: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(dim, dim) for _ in range(layers))
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.copy_(torch.eye(dim))
                layer.bias.zero_()
            if layers > 1:
                self.layers[0].bias.fill_(1.0)
                self.layers[-1].bias.fill_(-1.0)

    def forward(self, queries: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            queries = torch.relu(layer(queries))
        return self.layers[-1](queries)


def adapter(problem: Problem, settings: Settings) -> Tuned:
    """Train an adapter of the queries; the documents do not change."""
    documents, queries = problem.documents, problem.tensor(problem.data.queries)
    module = Adapter(documents.shape[1], settings["layers"]).to(problem.device)

    def similarity(query_rows: np.ndarray, document_rows: np.ndarray) -> torch.Tensor:
        return normalize(module(queries[problem.tensor(query_rows)])) @ documents[problem.tensor(document_rows)].T

    evaluated = {"validation": problem.validation}
    if settings.get("watch"):
        evaluated["train"] = problem.train
    rankings = {part: Ranking(problem.labels(query_rows), settings["metric"]) for part, query_rows in evaluated.items()}
    inputs = {part: problem.queries(query_rows[rankings[part].has_relevant]) for part, query_rows in evaluated.items()}

    @torch.no_grad()
    def validate() -> dict[str, Any]:
        return {part: ranking.mean(module(inputs[part]) @ documents.T) for part, ranking in rankings.items()}

    history = train(module, similarity, problem, settings, validate)
    best = best_checkpoint(history)

    @torch.no_grad()
    def adapted_queries(query_rows: np.ndarray) -> np.ndarray:
        return normalize(module(problem.queries(query_rows))).cpu().numpy()

    facts = {"step": best["step"], "history": history}
    return Tuned(problem.data.documents, adapted_queries, "cosine", best["validation"], facts)
