"""sentence-transformers: any model of that library by its name or folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import MissingExtraError, VectorError

# (documents, queries): what models were trained to see before a text, where they do not say so themselves.
_PREFIXES = {
    "bge-": ("", "Represent this sentence for searching relevant passages: "),
    "e5-": ("passage: ", "query: "),
    "nomic-embed-text": ("search_document: ", "search_query: "),
    "mxbai-embed": ("", "Represent this sentence for searching relevant passages: "),
}


class SentenceEmbedder:
    """A model of sentence-transformers, loaded when it is first asked."""

    keep = True
    batch = 256

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"st:{model}{_state(Path(model))}"
        self._loaded: Any = None

    @property
    def prefixes(self) -> tuple[str, str]:
        prompts = {key: text for key, text in (getattr(self.loaded, "prompts", None) or {}).items() if text}
        document = prompts.get("document") or prompts.get("passage") or prompts.get("corpus")
        if document or prompts.get("query"):
            return document or "", prompts.get("query") or ""
        short = self.model.rstrip("/").rsplit("/", 1)[-1].lower()
        return next((known for start, known in _PREFIXES.items() if short.startswith(start)), ("", ""))

    @property
    def loaded(self) -> Any:
        """The model itself."""
        if self._loaded is None:
            try:
                from sentence_transformers import SentenceTransformer
                from transformers.utils import logging
            except ImportError:
                raise MissingExtraError(f"the embedder {self.name}", "st") from None
            quiet: Any = logging
            quiet.disable_progress_bar()
            try:
                self._loaded = SentenceTransformer(self.model)
            except (OSError, ValueError) as error:
                raise VectorError(
                    f"{self.name} could not be loaded, neither as a folder nor by name from a hub: "
                    f"{str(error).splitlines()[0]}"
                ) from None
        return self._loaded

    def embed_images(self, files: Sequence[Path]) -> Array:
        """One float32 row per image, for models that see (CLIP)."""
        from PIL import Image, UnidentifiedImageError

        images = []
        for path in files:
            try:
                with Image.open(path) as image:
                    images.append(image.convert("RGB"))
            except UnidentifiedImageError:
                raise VectorError(f"{path} is not an image") from None
        try:
            vectors = self.loaded.encode(images, batch_size=32, normalize_embeddings=True, show_progress_bar=False)
        except (TypeError, ValueError, AttributeError) as error:
            raise VectorError(f"{self.name} cannot embed images: {error}") from None
        return np.asarray(vectors, dtype=np.float32)

    def embed(self, texts: Sequence[str]) -> Array:
        vectors = self.loaded.encode(
            list(texts), batch_size=32, normalize_embeddings=True, show_progress_bar=False, prompt=""
        )
        return np.asarray(vectors, dtype=np.float32)


def _state(folder: Path) -> str:
    """What tells a model in a folder from what was there before: where it is, and its files with sizes and dates."""
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return "#" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
