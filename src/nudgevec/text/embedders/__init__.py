"""Embedders: texts to vectors. One file per kind, all behind ``embedder(spec)``.

A spec is ``static``, ``st:NAME`` (sentence-transformers), ``openai:NAME`` (any OpenAI-compatible server) or
``precomputed:NAME`` (files beside the data). What takes time is kept on disk (``cache``), text by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nudgevec.arrays import Array
from nudgevec.corpus import Corpus
from nudgevec.errors import OptionError, VectorError
from nudgevec.text.collection import Collection, Items
from nudgevec.text.embedders.cache import Cache


class Embedder(Protocol):
    """A model that turns texts into vectors."""

    @property
    def name(self) -> str:
        """The spec it came from; vectors of different names are never mixed."""

    @property
    def keep(self) -> bool:
        """True where embedding takes longer than reading vectors back."""

    @property
    def batch(self) -> int:
        """How many texts to pass at a time."""

    @property
    def prefixes(self) -> tuple[str, str]:
        """What to put before every document and before every query."""

    def embed(self, texts: Sequence[str]) -> Array:
        """One float32 row per text."""


def embedder(spec: str) -> Embedder:
    """The embedder of this spec."""
    kind, _, name = spec.partition(":")
    if kind == "static" and not name:
        from nudgevec.text.embedders.static import StaticEmbedder

        return StaticEmbedder()
    if kind == "st" and name:
        from nudgevec.text.embedders.sentence import SentenceEmbedder

        return SentenceEmbedder(name)
    if kind == "openai" and name:
        from nudgevec.text.embedders.openai import OpenAIEmbedder

        return OpenAIEmbedder(name)
    raise OptionError(f"unknown embedder {spec!r}: use static, st:NAME, openai:NAME or precomputed:NAME")


def embedded(
    collection: Collection,
    spec: str | None = None,
    *,
    prefixes: tuple[str | None, str | None] = (None, None),
) -> tuple[Array | Corpus, Array, str]:
    """Vectors of all documents and all queries of a collection, in its order, and the name of what made them.

    Where the collection has vectors of its own, these are taken. ``prefixes`` (for documents, for queries) replace the
    model's own.
    """
    documents, queries = collection.documents, collection.queries
    if documents.vectors is not None and queries.vectors is not None:
        if spec is not None:
            raise OptionError(f"{collection.where} holds vectors, so there is nothing to embed: leave --embedder out")
        _check(documents.vectors, queries.vectors, collection)
        return documents.vectors, _array(queries.vectors), "given"
    if documents.vectors is not None and spec is None:
        raise OptionError(
            f"{collection.where}: the documents are vectors and the queries are texts: "
            "say with --embedder what made the vectors, so that queries go the same way"
        )
    spec = spec or "static"
    if spec.startswith("precomputed:"):
        from nudgevec.text.embedders import precomputed

        vectors = precomputed.read(collection, spec.removeprefix("precomputed:"))
        _check(*vectors, collection)
        return *vectors, spec
    model = embedder(spec)
    own = tuple(given if given is not None else usual for given, usual in zip(prefixes, model.prefixes, strict=True))
    made, asked = (
        _made(model, items, prefix, what, collection.where)
        for what, items, prefix in zip(("documents", "queries"), (documents, queries), own, strict=True)
    )
    _check(made, asked, collection)
    return made, _array(asked), model.name


def embedded_documents(items: Items, where: str, spec: str, prefix: str | None = None) -> Array:
    """Vectors of documents alone."""
    model = embedder(spec)
    made = _made(model, items, model.prefixes[0] if prefix is None else prefix, "documents", where)
    return _array(made)


def embed_texts(model: Embedder, texts: Sequence[str], prefix: str, what: str) -> Array:
    """Vectors of texts, from the cache where they are there."""
    with Cache(model.name if model.keep else None) as cache:
        return cache.filled([prefix + text for text in texts], model.embed, model.batch, f"embedding {what}")


def _made(model: Embedder, items: Items, prefix: str, what: str, where: str | Path) -> Array | Corpus:
    if items.vectors is not None:
        return items.vectors
    if items.images is None:
        return embed_texts(model, _texts(items, what, where), prefix, what)
    embed = getattr(model, "embed_images", None)
    if embed is None:
        raise OptionError(f"{model.name} reads texts, and the {what} are images: use a CLIP model, st:clip-ViT-B-32")
    with Cache(model.name) as cache:
        return cache.filled(list(items.images), embed, model.batch, f"embedding {what}")


def _texts(items: Items, what: str, where: str | Path) -> Sequence[str]:
    if items.texts is None:
        raise VectorError(f"{where}: the {what} have neither texts nor vectors")
    return items.texts


def _array(vectors: Array | Corpus) -> Array:
    if isinstance(vectors, Corpus):
        raise VectorError("these vectors must be an array in memory or a .npy file, not a store or a Parquet corpus")
    return vectors


def _check(documents: Array | Corpus, queries: Array | Corpus, collection: Collection) -> None:
    """Refuse to mix vectors that cannot come from one model."""
    dims = [each.dim if isinstance(each, Corpus) else each.shape[1] for each in (documents, queries)]
    if dims[0] != dims[1]:
        raise VectorError(
            f"{collection.where}: documents have {dims[0]} dimensions and queries {dims[1]}: "
            "they are not from the same model"
        )
