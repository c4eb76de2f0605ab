"""PTFT and PTFT-L: fine-tuning of the pre-trained model, all of it or its last layer, with sentence-transformers.

Embedding the whole corpus at every validation would dominate the run time. Validation therefore ranks a set of
candidate documents only: the ten nearest documents of each validation query before training, and all labelled documents
of the training and validation queries.
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

from methods.contrastive import best_checkpoint, train
from methods.protocol import Problem, Ranking, Settings, Tuned

CANDIDATES = 10


def ptft(problem: Problem, settings: Settings) -> Tuned:
    """Fine-tune ``settings["model"]``, a folder or a name known to sentence-transformers."""
    model = load_model(settings, problem.device)
    data = problem.data
    documents, queries = TokenizedTexts(model, data.document_texts), TokenizedTexts(model, data.query_texts)

    def similarity(query_rows: np.ndarray, document_rows: np.ndarray) -> Tensor:
        with torch.autocast(problem.device, torch.bfloat16, enabled=problem.device == "cuda"):
            query_vectors, document_vectors = queries.embed_batch(query_rows), documents.embed_batch(document_rows)
        return query_vectors.float() @ document_vectors.float().T

    candidate_rows = candidates(problem)
    evaluated = {"validation": problem.validation}
    if settings.get("watch"):
        evaluated["train"] = problem.train
    rankings = {
        part: _candidate_ranking(candidate_rows, problem, query_rows, settings["metric"])
        for part, query_rows in evaluated.items()
    }

    @torch.no_grad()
    def validate() -> dict[str, Any]:
        document_vectors = documents.embed(candidate_rows)
        query_vectors = {
            part: queries.embed(query_rows[rankings[part].has_relevant]) for part, query_rows in evaluated.items()
        }
        return {part: ranking.mean(query_vectors[part] @ document_vectors.T) for part, ranking in rankings.items()}

    history = train(model, similarity, problem, settings, validate)
    best = best_checkpoint(history)
    facts = {"step": best["step"], "history": history, "candidates": len(candidate_rows)}
    if best["step"] == 0:
        return Tuned(data.documents, data.queries.__getitem__, "cosine", best["validation"], facts)

    @torch.no_grad()
    def tuned_queries(query_rows: np.ndarray) -> np.ndarray:
        return queries.embed(query_rows).cpu().numpy()

    with torch.no_grad():
        tuned_documents = documents.embed(np.arange(len(data.documents))).cpu().numpy()
    return Tuned(tuned_documents, tuned_queries, "cosine", best["validation"], facts)


def load_model(settings: Settings, device: str) -> torch.nn.Module:
    """Load the model; with ``trained = "last layer"``, freeze all parameters but those of the last encoder layer."""
    from sentence_transformers import SentenceTransformer

    location = str(_model_location(settings["model"]))
    model = SentenceTransformer(location, device=device, model_kwargs={"dtype": torch.float32})
    model.max_seq_length = settings["tokens"]
    if settings["trained"] == "last layer":
        layers = model[0].auto_model.encoder.layer
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in layers[-1].parameters():
            parameter.requires_grad_(True)
    return model.eval()


class TokenizedTexts:
    """Texts that are tokenized once and embedded many times."""

    def __init__(self, model: Any, texts: list[str]) -> None:
        self.model = model
        token_ids = model[0].tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
        self.token_ids = [np.array(ids, dtype=np.int64) for ids in token_ids]
        self.padding = model[0].tokenizer.pad_token_id or 0

    def embed_batch(self, rows: np.ndarray) -> Tensor:
        """Embed one batch as unit vectors, with gradients if they are enabled."""
        batch = [self.token_ids[row] for row in rows]
        length = np.array([len(ids) for ids in batch])
        input_ids = np.full((len(batch), length.max()), self.padding)
        for ids, padded in zip(batch, input_ids, strict=True):
            padded[: len(ids)] = ids
        mask = (np.arange(input_ids.shape[1]) < length[:, None]).astype(np.int64)
        features = {"input_ids": input_ids, "attention_mask": mask}
        on_device = {name: torch.from_numpy(values).to(self.model.device) for name, values in features.items()}
        return normalize(self.model(on_device)["sentence_embedding"])

    def embed(self, rows: np.ndarray, batch_size: int = 256) -> Tensor:
        """Embed any number of texts in batches of similar length."""
        order = np.argsort([len(self.token_ids[row]) for row in rows], kind="stable")
        starts = range(0, len(order), batch_size)
        vectors = [self.embed_batch(rows[order[start : start + batch_size]]) for start in starts]
        return torch.cat(vectors)[torch.from_numpy(np.argsort(order)).to(vectors[0].device)]


def candidates(problem: Problem) -> np.ndarray:
    """Return the rows of the documents that are ranked in validation."""
    scores = problem.queries(problem.validation) @ problem.documents.T
    nearest = scores.topk(min(CANDIDATES, scores.shape[1]), dim=1).indices.cpu().numpy().ravel()
    query_sets = (problem.train, problem.validation)
    labelled = [row for query_rows in query_sets for entry in problem.labels(query_rows) for row in entry]
    return np.unique(np.concatenate([nearest, np.array(labelled, dtype=np.int64)]))


def _candidate_ranking(candidate_rows: np.ndarray, problem: Problem, query_rows: np.ndarray, metric: str) -> Ranking:
    """Create a metric of score matrices whose columns are the candidates."""
    column_of = {row: column for column, row in enumerate(candidate_rows.tolist())}
    labels = problem.labels(query_rows)
    return Ranking([{column_of[row]: grade for row, grade in entry.items()} for entry in labels], metric)


@functools.cache
def _model_location(model: str) -> str | Path:
    """Resolve "package:NAME" to the folder ``model`` of an installed package; return other names unchanged."""
    kind, _, name = model.partition(":")
    if kind != "package":
        return model
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The model package {name} is not installed: pip install {name.replace('_', '-')}.")
    return Path(spec.origin).parent / "model"
