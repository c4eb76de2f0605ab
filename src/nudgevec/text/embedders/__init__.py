"""Embedders turn texts into vectors. One file per kind; ``make_embedder`` makes one from a spec.

A spec is the name of an embedder in ``EMBEDDERS``, with an argument after a colon where it needs one: ``static``,
``st:NAME`` (sentence-transformers) or ``openai:NAME`` (any OpenAI-compatible server). Other packages add embedders
through the entry-point group ``nudgevec.embedders``. ``precomputed:NAME`` stands for files of vectors beside the data.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from nudgevec.arrays import Array
from nudgevec.corpus import Corpus
from nudgevec.errors import OptionError, VectorError
from nudgevec.registry import Registry
from nudgevec.text.collection import Collection, Items, without_surrogates
from nudgevec.text.embedders.cache import Cache

_PRECOMPUTED = "precomputed"


class Embedder(Protocol):
    """A model that turns texts into vectors.

    An embedder for images as well has a method ``embed_images(paths)`` that returns one row per image file.

    Attributes
    ----------
    name : str
        Identifies the model. Vectors of embedders with different names are never mixed.
    cached : bool
        Whether vectors are kept on disk; False for models that are faster than a disk.
    batch_size : int
        Number of texts to pass to ``embed`` at once.
    prefixes : (str, str)
        Texts to put before every document and before every query.

    Examples
    --------
    >>> import numpy as np
    >>> class Letters:
    ...     name, cached, batch_size, prefixes = "letters", False, 1000, ("", "")
    ...
    ...     def embed(self, texts):
    ...         counts = [[text.count(letter) for letter in "abc"] for text in texts]
    ...         return np.array(counts, dtype=np.float32)
    >>> EMBEDDERS.register("letters", Letters)
    >>> make_embedder("letters").embed(["abba"]).tolist()
    [[2.0, 2.0, 0.0]]
    """

    @property
    def name(self) -> str: ...

    @property
    def cached(self) -> bool: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def prefixes(self) -> tuple[str, str]: ...

    def embed(self, texts: Sequence[str]) -> Array:
        """Return one float32 row per text."""


EMBEDDERS: Registry[Callable[..., Embedder]] = Registry(
    "embedder",
    {
        "static": "nudgevec.text.embedders.static:StaticEmbedder",
        "st": "nudgevec.text.embedders.sentence:SentenceEmbedder",
        "openai": "nudgevec.text.embedders.openai:OpenAIEmbedder",
    },
)
"""Functions that make embedders, by name. They take the argument of the spec, or nothing if there is none."""


def make_embedder(spec: str) -> Embedder:
    """Make the embedder of a spec.

    Parameters
    ----------
    spec : str
        ``NAME`` or ``NAME:ARGUMENT``, with a name from ``EMBEDDERS``: for example ``"static"`` or
        ``"st:all-MiniLM-L6-v2"``.

    Returns
    -------
    Embedder
        Models are loaded when they are first used.

    Raises
    ------
    OptionError
        If the name is unknown, or the argument is missing or superfluous.

    Examples
    --------
    >>> make_embedder("static").embed(["what is a vector"]).shape
    (1, 256)
    """
    name, _, argument = spec.partition(":")
    known = f"use one of {', '.join(EMBEDDERS)}, as NAME or NAME:ARGUMENT"
    if name == _PRECOMPUTED:
        raise OptionError(f"{spec!r} names vectors, but a model is needed that embeds other texts: {known}")
    if name not in EMBEDDERS:
        raise OptionError(f"unknown embedder {spec!r}: {known}; or {_PRECOMPUTED}:NAME for vectors beside the data")
    factory, arguments = EMBEDDERS[name], [argument] if argument else []
    try:
        inspect.signature(factory).bind(*arguments)
    except TypeError:
        problem = f"{name} takes no argument" if argument else f"{name} needs an argument, {name}:ARGUMENT"
        raise OptionError(f"embedder {spec!r}: {problem}") from None
    return factory(*arguments)


def names_local_model(spec: str) -> bool:
    """Whether a spec names files or a folder on this machine, and not a model on a hub or server.

    >>> names_local_model("st:all-MiniLM-L6-v2"), names_local_model("st:/models/mine")
    (False, True)
    """
    name, _, argument = spec.partition(":")
    if name == _PRECOMPUTED or not argument:
        return False
    path = Path(argument).expanduser()
    return argument[0] in "./\\~" or path.is_absolute() or path.exists()


def embed_collection(
    collection: Collection,
    spec: str | None = None,
    *,
    prefixes: tuple[str | None, str | None] = (None, None),
) -> tuple[Array | Corpus, Array, str]:
    """Return the document vectors and query vectors of a collection, and the name of the embedder.

    Parameters
    ----------
    collection : Collection
        Vectors that it has already are returned as they are.
    spec : str, optional
        The embedder, or ``precomputed:NAME``; ``static`` by default.
    prefixes : (str or None, str or None)
        Texts to put before documents and queries in place of the prefixes of the model.
    """
    documents, queries = collection.documents, collection.queries
    if documents.vectors is not None and queries.vectors is not None:
        if spec is not None:
            raise OptionError(f"{collection.source} has vectors, so there is nothing to embed: omit --embedder")
        _check_dimensions(documents.vectors, queries.vectors, collection)
        return documents.vectors, _as_array(queries.vectors), "given"
    if documents.vectors is not None and spec is None:
        raise OptionError(
            f"{collection.source}: the documents are vectors, but the queries are texts: "
            "name the model that made the vectors with --embedder, so that it embeds the queries too"
        )
    spec = spec or "static"
    if spec.startswith(f"{_PRECOMPUTED}:"):
        from nudgevec.text.embedders import precomputed

        vectors = precomputed.read_vectors(collection, spec.removeprefix(f"{_PRECOMPUTED}:"))
        _check_dimensions(*vectors, collection)
        return *vectors, spec
    model = make_embedder(spec)
    chosen = [default if prefix is None else prefix for prefix, default in zip(prefixes, model.prefixes, strict=True)]
    document_vectors = _embed_items(model, documents, chosen[0], "documents", collection.source)
    query_vectors = _embed_items(model, queries, chosen[1], "queries", collection.source)
    _check_dimensions(document_vectors, query_vectors, collection)
    return document_vectors, _as_array(query_vectors), model.name


def embed_documents(items: Items, source: str, spec: str, prefix: str | None = None) -> tuple[Array, str]:
    """Return the vectors of documents without queries, and the name of the embedder."""
    model = make_embedder(spec)
    prefix = model.prefixes[0] if prefix is None else prefix
    return _as_array(_embed_items(model, items, prefix, "documents", source)), model.name


def embed_texts(model: Embedder, texts: Sequence[str], prefix: str, kind: str) -> Array:
    """Return the vectors of texts, from the cache where possible."""
    clean = [without_surrogates(prefix + text) for text in texts]
    with Cache(model.name if model.cached else None) as cache:
        return cache.get_or_embed(clean, model.embed, model.batch_size, f"embedding {kind}")


def _embed_items(model: Embedder, items: Items, prefix: str, kind: str, source: str | Path) -> Array | Corpus:
    if items.vectors is not None:
        return items.vectors
    if items.images is not None:
        return _embed_images(model, items.images, kind)
    if items.texts is None:
        raise VectorError(f"{source}: the {kind} have neither texts nor vectors")
    return embed_texts(model, items.texts, prefix, kind)


def _embed_images(model: Embedder, images: Sequence[Path], kind: str) -> Array:
    embed = getattr(model, "embed_images", None)
    if embed is None:
        raise OptionError(
            f"{model.name} embeds texts, but the {kind} are images: use a CLIP model, for example st:clip-ViT-B-32"
        )
    with Cache(model.name) as cache:
        return cache.get_or_embed(list(images), embed, model.batch_size, f"embedding {kind}")


def _as_array(vectors: Array | Corpus) -> Array:
    if isinstance(vectors, Corpus):
        raise VectorError("these vectors must be an array in memory or a .npy file, not a store or a Parquet corpus")
    return vectors


def _check_dimensions(documents: Array | Corpus, queries: Array | Corpus, collection: Collection) -> None:
    dims = [vectors.dim if isinstance(vectors, Corpus) else vectors.shape[1] for vectors in (documents, queries)]
    if dims[0] != dims[1]:
        raise VectorError(
            f"{collection.source}: documents have {dims[0]} dimensions and queries {dims[1]}: "
            "they are not from the same model"
        )
