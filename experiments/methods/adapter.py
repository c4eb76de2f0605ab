"""Adapter and Adapter-L: a small network on the query vectors, which is the identity before it is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from methods.contrastive import best_of, train
from methods.protocol import Problem, Ranking, Settings, Tuned


class Adapter(torch.nn.Module):
    """Linear for one layer, ReLU between several.

    All weights start as the identity. For several layers the first bias is +1 and the last -1: a unit vector has no
    entry below -1, so that no ReLU cuts anything off.
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
    """Train an adapter; documents stay as they are."""
    documents, queries = problem.documents, problem.tensor(problem.data.queries)
    module = Adapter(documents.shape[1], settings["layers"]).to(problem.device)

    def similarity(numbers: np.ndarray, rows: np.ndarray) -> torch.Tensor:
        return normalize(module(queries[problem.tensor(numbers)])) @ documents[problem.tensor(rows)].T

    watched = {"validation": problem.validation}
    if settings.get("watch"):
        watched["train"] = problem.train
    rankings = {name: Ranking(problem.labels(numbers), settings["metric"]) for name, numbers in watched.items()}
    asked = {name: problem.queries(numbers[rankings[name].answered]) for name, numbers in watched.items()}

    @torch.no_grad()
    def validate() -> dict[str, Any]:
        return {name: ranking.mean(module(asked[name]) @ documents.T) for name, ranking in rankings.items()}

    history = train(module, similarity, problem, settings, validate)
    kept = best_of(history)

    @torch.no_grad()
    def adapted(numbers: np.ndarray) -> np.ndarray:
        return normalize(module(problem.queries(numbers))).cpu().numpy()

    facts = {"step": kept["step"], "history": history}
    return Tuned(problem.data.documents, adapted, "cosine", kept["validation"], facts)
