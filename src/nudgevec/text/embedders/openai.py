"""Servers with OpenAI's embeddings API: OpenAI, Azure, vLLM, Ollama, text-embeddings-inference and others.

``OPENAI_BASE_URL`` is the address of the server (OpenAI by default) and ``OPENAI_API_KEY`` the key. The key appears in
no message or file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nudgevec.arrays import Array
from nudgevec.errors import VectorError
from nudgevec.http import LIMITS, Limits, check_server, excerpt, post_json, public_url


class OpenAIEmbedder:
    """An embedding model on a server.

    Parameters
    ----------
    model : str
        Its name on the server.
    batch_size : int
        Number of texts per request.
    limits : Limits
        How long to wait for the server, and how much to read.
    """

    cached = True
    prefixes = ("", "")

    def __init__(self, model: str, *, batch_size: int = 128, limits: Limits = LIMITS) -> None:
        self.model, self.batch_size, self._limits = model, batch_size, limits
        url = os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        self._base_url = check_server(url, "OPENAI_BASE_URL")
        # The same model name may mean another model on another server.
        self.name = f"openai:{model}@{public_url(self._base_url).split('://')[-1]}"

    def embed(self, texts: Sequence[str]) -> Array:
        # Servers reject empty texts.
        inputs = [text if text.strip() else " " for text in texts]
        request = {"model": self.model, "input": inputs, "encoding_format": "float"}
        response = post_json(f"{self._base_url}/embeddings", request, self._limits)
        try:
            vectors = _read_vectors(response, len(inputs))
        except VectorError as error:
            raise VectorError(f"{public_url(self._base_url)} sent {error}: {excerpt(response)}") from None
        return vectors


def _read_vectors(response: Any, count: int) -> Array:
    """Return the vectors of a response in the order of the texts; the error is the object of "the server sent"."""
    try:
        rows = {row["index"]: row["embedding"] for row in response["data"]}
        n_rows = len(response["data"])
        numbers = {type(number) for row in rows.values() for number in row}
        dims = {len(row) for row in rows.values()}
    except (KeyError, TypeError, AttributeError):
        raise VectorError("a response without embeddings") from None
    if n_rows != count:
        raise VectorError(f"{n_rows} embeddings for {count} texts")
    if any(type(index) is not int for index in rows) or set(rows) != set(range(count)):
        raise VectorError(f"embeddings whose indices are not 0 to {count - 1}, each once")
    if len(dims) != 1 or 0 in dims or numbers - {int, float}:
        raise VectorError("embeddings that are empty, of different lengths, or not numbers")
    with np.errstate(over="ignore"):
        try:
            vectors = np.array([rows[index] for index in range(count)], dtype=np.float32)
        except OverflowError:
            raise VectorError("numbers that are too large for float32") from None
    if not np.isfinite(vectors).all():
        raise VectorError("a vector with NaN, or with numbers that are too large for float32")
    if not vectors.any(axis=1).all():
        raise VectorError("a vector of zeros")
    return vectors
