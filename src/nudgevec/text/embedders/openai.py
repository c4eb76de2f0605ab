"""Any server that speaks OpenAI's embeddings protocol: OpenAI, Azure, vLLM, Ollama, text-embeddings-inference ...

``OPENAI_BASE_URL`` says where (OpenAI itself by default), ``OPENAI_API_KEY`` is the key. The key is never written
anywhere, and neither is a password in the address.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import VectorError
from nudgevec.http import post_json, public_url


class OpenAIEmbedder:
    """An embedding model behind such a server."""

    keep = True
    batch = 128
    prefixes = ("", "")

    def __init__(self, model: str) -> None:
        self.model = model
        self.base = (os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        # The same name on another server may be another model.
        self.name = f"openai:{model}@{public_url(self.base).split('://')[-1]}"

    def embed(self, texts: Sequence[str]) -> Array:
        # An empty text is an error there.
        asked = [text if text.strip() else " " for text in texts]
        answer = post_json(f"{self.base}/embeddings", {"model": self.model, "input": asked, "encoding_format": "float"})
        try:
            rows = sorted(answer["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
        except (KeyError, TypeError, ValueError):
            raise VectorError(f"{public_url(self.base)} did not answer with embeddings: {str(answer)[:200]}") from None
        if vectors.ndim != 2 or len(vectors) != len(asked):
            raise VectorError(f"{public_url(self.base)} sent {len(vectors)} embeddings for {len(asked)} texts")
        return vectors
