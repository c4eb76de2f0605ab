"""PTFT and PTFT-L: fine-tuning the pre-trained model itself, all of it or its last layer, with sentence-transformers.

Re-embedding the corpus at every validation is what would take the time, so validation sees only the documents that can
matter: the ten nearest of each validation query before training, and all answers of training and validation queries.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.contrastive import best_of, train
from methods.protocol import Problem, Ranking, Settings, Tuned

CANDIDATES = 10


def ptft(problem: Problem, settings: Settings) -> Tuned:
    """Fine-tune the model of ``settings["model"]``, a folder or a name that sentence-transformers knows."""
    model = pretrained(settings, problem.device)
    data = problem.data
    documents, queries = Texts(model, data.document_texts), Texts(model, data.query_texts)

    def similarity(numbers: np.ndarray, rows: np.ndarray) -> Tensor:
        with torch.autocast(problem.device, torch.bfloat16, enabled=problem.device == "cuda"):
            asked, found = queries.vectors(numbers), documents.vectors(rows)
        return asked.float() @ found.float().T

    rows = candidates(problem)
    watched = {"validation": problem.validation}
    if settings.get("watch"):
        watched["train"] = problem.train
    rankings = {name: _among(rows, problem, numbers, settings["metric"]) for name, numbers in watched.items()}

    @torch.no_grad()
    def validate() -> dict[str, Any]:
        found = documents.embedded(rows)
        asked = {name: queries.embedded(numbers[rankings[name].answered]) for name, numbers in watched.items()}
        return {name: ranking.mean(asked[name] @ found.T) for name, ranking in rankings.items()}

    history = train(model, similarity, problem, settings, validate)
    kept = best_of(history)
    facts = {"step": kept["step"], "history": history, "candidates": len(rows)}
    if kept["step"] == 0:
        return Tuned(data.documents, data.queries.__getitem__, "cosine", kept["validation"], facts)

    @torch.no_grad()
    def asked(numbers: np.ndarray) -> np.ndarray:
        return queries.embedded(numbers).cpu().numpy()

    with torch.no_grad():
        after = documents.embedded(np.arange(len(data.documents))).cpu().numpy()
    return Tuned(after, asked, "cosine", kept["validation"], facts)


def pretrained(settings: Settings, device: str) -> torch.nn.Module:
    """The model, with only its last layer (and what comes after it) trainable where the settings say so."""
    from sentence_transformers import SentenceTransformer

    kinds = {"dtype": torch.float32}
    model = SentenceTransformer(str(_found(settings["model"])), device=device, model_kwargs=kinds)
    model.max_seq_length = settings["tokens"]
    if settings["trained"] == "last layer":
        layers = model[0].auto_model.encoder.layer
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in layers[-1].parameters():
            parameter.requires_grad_(True)
    return model.eval()


class Texts:
    """Texts of one kind with their tokens, which are made once."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model = model
        tokens = model[0].tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
        self.tokens = [np.array(line, dtype=np.int64) for line in tokens]
        self.pad = model[0].tokenizer.pad_token_id or 0

    def vectors(self, numbers: np.ndarray) -> Tensor:
        """Unit vectors of a batch, with gradients where they are on."""
        lines = [self.tokens[number] for number in numbers]
        ids = np.full((len(lines), max(map(len, lines))), self.pad)
        for line, place in zip(lines, ids, strict=True):
            place[: len(line)] = line
        length = np.array([len(line) for line in lines])
        mask = (np.arange(ids.shape[1]) < length[:, None]).astype(np.int64)
        features = {"input_ids": ids, "attention_mask": mask}
        on_device = {name: torch.from_numpy(values).to(self.model.device) for name, values in features.items()}
        return normalize(self.model(on_device)["sentence_embedding"])

    def embedded(self, numbers: np.ndarray, batch: int = 256) -> Tensor:
        """The same for many texts, those of similar length together."""
        order = np.argsort([len(self.tokens[number]) for number in numbers], kind="stable")
        made = [self.vectors(numbers[order[start : start + batch]]) for start in range(0, len(order), batch)]
        return torch.cat(made)[torch.from_numpy(np.argsort(order)).to(made[0].device)]


def candidates(problem: Problem) -> np.ndarray:
    """The rows that validation looks at."""
    scores = problem.queries(problem.validation) @ problem.documents.T
    near = scores.topk(min(CANDIDATES, scores.shape[1]), dim=1).indices.cpu().numpy().ravel()
    known = [row for part in (problem.train, problem.validation) for entry in problem.labels(part) for row in entry]
    return np.unique(np.concatenate([near, np.array(known, dtype=np.int64)]))


def _among(rows: np.ndarray, problem: Problem, numbers: np.ndarray, metric: str) -> Ranking:
    place = {row: number for number, row in enumerate(rows.tolist())}
    return Ranking([{place[row]: grade for row, grade in entry.items()} for entry in problem.labels(numbers)], metric)


@functools.cache
def _found(model: str) -> str | Path:
    """A model that is installed as a package ("package:NAME") is in the folder ``model`` of that package."""
    kind, _, name = model.partition(":")
    if kind != "package":
        return model
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The model package {name} is not installed: pip install {name.replace('_', '-')}.")
    return Path(spec.origin).parent / "model"
