"""The commands ``index``, ``apply``, ``revert`` and ``status``."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nudgevec.cli.output import print_json, print_text
from nudgevec.errors import NudgeWarning, OptionError, VectorError
from nudgevec.patch import Patch
from nudgevec.runs import folder
from nudgevec.runs.pipeline import warn_dropped
from nudgevec.stores import Address, Store, error_text, open_store, recall
from nudgevec.text import readers
from nudgevec.text.embedders import embed_documents


def index(options: argparse.Namespace) -> None:
    """Embed documents into a new LanceDB table."""
    from nudgevec.stores.lancedb_store import create

    address = Address.parse(options.store)
    if address.scheme != "lancedb":
        raise OptionError(f"{address}: index creates LanceDB tables only; fill other stores with their own tools")
    documents = readers.read_documents(options.data)
    vectors, embedder = embed_documents(documents, options.data, options.embedder, options.document_prefix)
    rows = np.flatnonzero(vectors.any(axis=1)).tolist()
    if not rows:
        raise VectorError(f"{options.data}: all document vectors are zeros")
    warn_dropped(len(vectors) - len(rows), "documents")
    texts = None if documents.texts is None else [documents.texts[row] for row in rows]
    create(address, [documents.ids[row] for row in rows], texts, vectors[rows], embedder)
    if options.json:
        print_json({"documents": len(rows), "dim": vectors.shape[1], "embedder": options.embedder})
    else:
        print_text(
            f"{address}: {len(rows):,} documents, {vectors.shape[1]} dimensions, embedded with {options.embedder}"
        )


def apply(options: argparse.Namespace) -> None:
    """Apply the patch of a run, and check the search of the store before and after."""
    run = folder.SavedRun(Path(options.run))
    patch = run.patch
    queries: Any = patch.adapt(run.query_vectors()[: options.check]) if options.check > 0 else ()
    found: dict[str, float] = {}
    with _open_for_writing(options) as store:
        if len(queries) and store.status().metadata is None:
            found["before"] = recall(store, queries)
        status = store.apply(patch)
        if status.metadata is not None and len(queries):
            try:
                found["after"] = recall(store, queries)
            except Exception as error:
                message = f"the patch is applied, but the search of the store could not be checked: {error_text(error)}"
                warnings.warn(message, NudgeWarning, stacklevel=2)
    if options.json:
        print_json({**asdict(status), "search": {"queries": len(queries), "recall@10": found}})
        return
    if status.metadata is None:
        print_text(f"{store.url}: nothing to apply: this run moved no documents")
        _print_query_map(patch, options.run)
        return
    print_text(f"{store.url}: {status}")
    if "after" in found:
        before = f" ({found['before']:.1%} before)" if "before" in found else ""
        print_text(
            f"The store's own search finds {found['after']:.1%}{before} of the true 10 nearest documents of "
            f"{len(queries):,} test queries."
        )
    _print_query_map(patch, options.run)


def _print_query_map(patch: Patch, run: str) -> None:
    """Say what queries need, where the patch has a map of them."""
    if patch.query_map is not None:
        print_text(
            f"Every query vector q needs the map of this run before its search: q + q @ A, with A from "
            f"{run}/query_map.npy, or Patch.adapt(q)."
        )


def revert(options: argparse.Namespace) -> None:
    """Revert the patch that is applied to a store."""
    patch = None if options.run is None else folder.SavedRun(Path(options.run)).patch
    with _open_for_writing(options) as store:
        status = store.revert(patch, force=options.force)
    if options.json:
        print_json(asdict(status))
    else:
        print_text(f"{store.url}: {status}")


def status(options: argparse.Namespace) -> None:
    """Show which patch is applied to a store."""
    with open_store(options.store) as store:
        status = store.status()
    if options.json:
        print_json(asdict(status))
    else:
        print_text(f"{store.url}: {status}")


def _open_for_writing(options: argparse.Namespace) -> Store:
    return open_store(options.store, **({"vacuum": "no"} if options.no_vacuum else {}))
