"""The static embedder: wordllama with 256 dimensions. Its weights are part of the package; it needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nudgevec.errors import MissingExtraError, VectorError
from nudgevec.text.collection import without_surrogates


class StaticEmbedder:
    """The wordllama model as an ``Embedder``. It is faster than a disk, so nothing is cached."""

    name = "static"
    cached = False
    batch_size = 4096
    prefixes = ("", "")

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return embed(texts)


def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return one unit vector per text, and all zeros for a text without a known token."""
    if isinstance(texts, str):
        raise VectorError("embed takes a list of texts, not a single text")
    with np.errstate(invalid="ignore", divide="ignore"):
        vectors = _model().embed([without_surrogates(text) for text in texts], norm=True)
    return np.nan_to_num(np.asarray(vectors, dtype=np.float32))


@cache
def _model() -> Any:
    try:
        import wordllama
    except ImportError:
        raise MissingExtraError("the static embedder", "static") from None
    # The tokenizer is inside the package, in the folder layout of a download cache.
    home = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=home, disable_download=True)
