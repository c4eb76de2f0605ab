"""Models of sentence-transformers, by name or folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import MissingExtraError, VectorError

# Prefixes for (documents, queries) that models were trained with but do not declare, by the start of their name.
_PREFIXES = {
    "bge-": ("", "Represent this sentence for searching relevant passages: "),
    "e5-": ("passage: ", "query: "),
    "nomic-embed-text": ("search_document: ", "search_query: "),
    "mxbai-embed": ("", "Represent this sentence for searching relevant passages: "),
}


class SentenceEmbedder:
    """A sentence-transformers model, loaded on first use."""

    cached = True
    batch_size = 256

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.name = f"st:{model_name}{_folder_fingerprint(Path(model_name))}"
        self._model: Any = None

    @property
    def prefixes(self) -> tuple[str, str]:
        """The prompts that the model declares, or the prefixes that it is known to be trained with."""
        prompts = {key: text for key, text in (getattr(self.model, "prompts", None) or {}).items() if text}
        document = prompts.get("document") or prompts.get("passage") or prompts.get("corpus")
        if document or prompts.get("query"):
            return document or "", prompts.get("query") or ""
        short_name = self.model_name.rstrip("/").rsplit("/", 1)[-1].lower()
        return next((pair for start, pair in _PREFIXES.items() if short_name.startswith(start)), ("", ""))

    @property
    def model(self) -> Any:
        """The model itself."""
        if self._model is None:
            try:
                from sentence_transformers import SentenceTransformer
                from transformers.utils import logging
            except ImportError:
                raise MissingExtraError(f"the embedder {self.name}", "st") from None
            untyped: Any = logging
            untyped.disable_progress_bar()
            try:
                # Models run only the code of sentence-transformers itself.
                self._model = SentenceTransformer(self.model_name, trust_remote_code=False)
            except (OSError, ValueError) as error:
                raise VectorError(
                    f"{self.name} could not be loaded, neither as a folder nor by name from a hub: "
                    f"{str(error).splitlines()[0]}"
                ) from None
        return self._model

    def embed(self, texts: Sequence[str]) -> Array:
        vectors = self.model.encode(
            list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=False, prompt=""
        )
        return np.asarray(vectors, dtype=np.float32)

    def embed_images(self, paths: Sequence[Path]) -> Array:
        """Return one float32 row per image file; for CLIP models."""
        from PIL import Image, UnidentifiedImageError

        images = []
        for path in paths:
            try:
                with Image.open(path) as image:
                    images.append(image.convert("RGB"))
            except UnidentifiedImageError:
                raise VectorError(f"{path} is not an image") from None
        try:
            vectors = self.model.encode(images, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
        except (TypeError, ValueError, AttributeError) as error:
            raise VectorError(f"{self.name} cannot embed images: {error}") from None
        return np.asarray(vectors, dtype=np.float32)


def _folder_fingerprint(folder: Path) -> str:
    """Return a hash of the path, sizes and dates of a model's files, so that a changed model gets another name."""
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return "#" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
