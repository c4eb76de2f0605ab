"""Contrastive training for adapters and PTFT: batches, loss, and a training loop with early stopping.

The paper leaves two points open, which are resolved in favour of its baselines: a document that is relevant to a query
is never a negative of that query, and the -L loss keeps the positive pair even if its similarity is below the threshold
(the formula in the paper would be log 0).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.protocol import Problem, Settings

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Query row and document row of each pair, and a boolean matrix: is document j of the batch relevant to query i?"""


def ranking_loss(similarity: Tensor, relevant: Tensor, temperature: float, threshold: float | None = None) -> Tensor:
    """Compute the multiple-negatives ranking loss of a batch of pairs.

    Parameters
    ----------
    similarity : tensor of shape (b, b)
        Cosine of query i and document j; the positives are on the diagonal.
    relevant : tensor of bool of shape (b, b)
        Whether document j is relevant to query i; such documents are not used as negatives.
    temperature : float
        Factor of the similarities.
    threshold : float, optional
        The -L loss: negatives below this similarity are not used either.
    """
    excluded = relevant if threshold is None else relevant | (similarity < threshold)
    positive = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    logits = (temperature * similarity).masked_fill(excluded & ~positive, float("-inf"))
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def batches(problem: Problem, batch_size: int, seed: int) -> Iterator[Batch]:
    """Yield shuffled batches of relevant (query, document) pairs of the training set, without end."""
    pairs = [(query, row) for query in problem.train for row, grade in problem.data.labels[query].items() if grade > 0]
    query, row = np.array(pairs, dtype=np.int64).T
    n_documents = len(problem.data.documents)
    relevant_keys = np.sort(query * n_documents + row)
    random = np.random.default_rng(seed)
    size = min(batch_size, len(query))
    while True:
        order = random.permutation(len(query))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            keys = query[chosen, None] * n_documents + row[None, chosen]
            position = np.minimum(np.searchsorted(relevant_keys, keys), len(relevant_keys) - 1)
            yield query[chosen], row[chosen], relevant_keys[position] == keys


def train(
    module: torch.nn.Module,
    similarity: Callable[[np.ndarray, np.ndarray], Tensor],
    problem: Problem,
    settings: Settings,
    validate: Callable[[], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Train a module and load its best checkpoint.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place.
    similarity : callable
        Function from query rows and document rows to the matrix of their cosines.
    problem : Problem
    settings : dict
        Training stops when the validation metric falls by more than ``stop_drop`` of its maximum.
    validate : callable
        Function that returns the metrics of the current weights; "validation" selects the checkpoint.

    Returns
    -------
    list of dict
        Step, mean loss and metrics at every validation.
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
    stream = batches(problem, settings["batch"], settings["seed"])
    for step, (query, row, relevant) in zip(range(1, steps + 1), stream, strict=False):
        module.train()
        cosines = similarity(query, row)
        loss = ranking_loss(cosines, problem.tensor(relevant), settings["temperature"], settings.get("threshold"))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        if step % settings["validate_every"] == 0 or step == steps:
            module.eval()
            history.append({"step": step, "loss": float(torch.stack(losses).mean()), **validate()})
            losses.clear()
            current = history[-1]["validation"]
            if current > best:
                best, best_weights = current, copy.deepcopy(module.state_dict())
            elif current < (1 - settings["stop_drop"]) * best:
                break
    module.load_state_dict(best_weights)
    module.eval()
    return history


def best_checkpoint(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first entry of a history with the best validation metric."""
    return max(history, key=lambda entry: entry["validation"])
