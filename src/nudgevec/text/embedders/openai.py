"""Servers with OpenAI's embeddings API: OpenAI, Azure, vLLM, Ollama, text-embeddings-inference and others.

``OPENAI_BASE_URL`` is the address of the server (OpenAI by default) and ``OPENAI_API_KEY`` the key. The key, and a
password in the address, appear in no message or file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import VectorError
from nudgevec.http import post_json, public_url


class OpenAIEmbedder:
    """An embedding model on a server."""

    cached = True
    batch_size = 128
    prefixes = ("", "")

    def __init__(self, model: str) -> None:
        self.model = model
        self._base_url = (os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1").rstrip("/")
        # The same model name may mean another model on another server.
        self.name = f"openai:{model}@{public_url(self._base_url).split('://')[-1]}"

    def embed(self, texts: Sequence[str]) -> Array:
        # Servers reject empty texts.
        inputs = [text if text.strip() else " " for text in texts]
        request = {"model": self.model, "input": inputs, "encoding_format": "float"}
        response = post_json(f"{self._base_url}/embeddings", request)
        server = public_url(self._base_url)
        try:
            rows = sorted(response["data"], key=lambda row: row["index"])
            vectors = np.array([row["embedding"] for row in rows], dtype=np.float32)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise VectorError(f"{server} sent a response without embeddings: {str(response)[:200]}") from None
        if vectors.ndim != 2 or len(vectors) != len(inputs):
            raise VectorError(f"{server} sent {len(vectors)} embeddings for {len(inputs)} texts")
        return vectors
