"""Contrastive training, common to adapters and to fine-tuning the model: pairs, loss, and the loop with its early stop.

Two readings of the paper favour its baselines: a document that answers a query is never a negative of it, and a pair
below the threshold of the -L loss stays in as the positive it is (the formula would give log 0 there).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.protocol import Problem, Settings

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Numbers of queries, rows of their answers, and which row also answers which query (queries x rows)."""


def ranking_loss(similarity: Tensor, known: Tensor, temperature: float, threshold: float | None = None) -> Tensor:
    """Multiple-negatives ranking: row i is query i against the answers of all pairs of the batch.

    With a threshold (the -L loss), negatives whose similarity is below it leave the loss.
    """
    left_out = known if threshold is None else known | (similarity < threshold)
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    logits = (temperature * similarity).masked_fill(left_out & ~own, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def pairs(problem: Problem, batch: int, seed: int) -> Iterator[Pairs]:
    """Batches of (query, answer) pairs without end, every epoch in a new order."""
    relevant = [
        (number, row) for number in problem.train for row, grade in problem.data.labels[number].items() if grade > 0
    ]
    query, row = np.array(relevant, dtype=np.int64).T
    width = len(problem.data.documents)
    answers = np.sort(query * width + row)
    random = np.random.default_rng(seed)
    size = min(batch, len(query))
    while True:
        order = random.permutation(len(query))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            asked = query[chosen, None] * width + row[None, chosen]
            place = np.minimum(np.searchsorted(answers, asked), len(answers) - 1)
            yield query[chosen], row[chosen], answers[place] == asked


def train(
    module: torch.nn.Module,
    similarity: Callable[[np.ndarray, np.ndarray], Tensor],
    problem: Problem,
    settings: Settings,
    validate: Callable[[], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Train the module, leave its best weights in it, and return what was measured on the way.

    ``similarity(queries, rows)`` gives the cosines of a batch; ``validate()`` gives the scores of the module as it
    is, of which "validation" decides. Training stops when that falls by more than ``stop_drop`` of its maximum.
    """
    torch.manual_seed(settings["seed"])
    steps, warm_up = settings["steps"], max(1, round(settings["warm_up"] * settings["steps"]))
    weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=settings["rate"], weight_decay=settings["weight_decay"])
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
    )
    history = [{"step": 0, "loss": None, **validate()}]
    best, best_weights = history[0]["validation"], copy.deepcopy(module.state_dict())
    losses: list[Tensor] = []
    batches = pairs(problem, settings["batch"], settings["seed"])
    for step, (query, row, known) in zip(range(1, steps + 1), batches, strict=False):
        module.train()
        cosines = similarity(query, row)
        loss = ranking_loss(cosines, problem.tensor(known), settings["temperature"], settings.get("threshold"))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        if step % settings["validate_every"] == 0 or step == steps:
            module.eval()
            history.append({"step": step, "loss": float(torch.stack(losses).mean()), **validate()})
            losses.clear()
            score = history[-1]["validation"]
            if score > best:
                best, best_weights = score, copy.deepcopy(module.state_dict())
            elif score < (1 - settings["stop_drop"]) * best:
                break
    module.load_state_dict(best_weights)
    module.eval()
    return history


def best_of(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The first line with the best validation score: the one whose weights were kept."""
    return max(history, key=lambda line: line["validation"])
