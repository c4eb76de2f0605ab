"""The whole pipeline in one call: read, embed, split, tune, measure, and write the run folder."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from nudgevec.engines import Engine
from nudgevec.errors import InputError, NudgeWarning, OptionError, VectorError
from nudgevec.feedback.events import read_labelled_documents
from nudgevec.feedback.log import LabelLog
from nudgevec.runs import folder
from nudgevec.runs.pipeline import Prepared, Run, fit, make_tuner, prepare
from nudgevec.runs.same_model import model_doubt, model_mismatch
from nudgevec.stores import Store, is_store
from nudgevec.text import readers


def tune(
    data: str | os.PathLike[str] | Store,
    *,
    labels: str | os.PathLike[str] | LabelLog | None = None,
    embedder: str | None = None,
    method: str | None = None,
    metric: str = "ndcg@10",
    side: str | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    half_life: float | None = None,
    cap: float | None = None,
    document_prefix: str | None = None,
    query_prefix: str | None = None,
    seed: int = 0,
    resplit: bool = False,
    gamma: float | None = None,
    guard: float = 1.0,
    refit: bool = False,
    engine: str | Engine = "auto",
    check_embedder: bool = True,
) -> Run:
    """Tune a collection and measure the result on queries it never saw, as ``nudgevec tune`` does.

    Parameters
    ----------
    data : str, path or Store
        A folder or file in a known layout (BEIR, vectors, Hugging Face, LlamaIndex), or a vector store or its url.
    labels : path or LabelLog, optional
        A label log, or a file of events, with the queries and labels of documents that have none themselves.
    embedder : str, optional
        What turns texts into vectors: ``"static"`` (the default), ``"st:NAME"``, ``"openai:NAME"`` or
        ``"precomputed:NAME"``.
    method : {"auto", "N", "M", "M+N", "NU"}, optional
        The tuner: ``Nudge`` ("auto"), or one of the methods of the paper. By default "N" if gamma is given, and "auto"
        otherwise.
    metric : str
        The metric to maximise on the validation queries.
    side : {"auto", "documents", "queries"}, optional
        What the map of ``Nudge`` moves.
    out : path, optional
        The run folder to write.
    overwrite : bool
        Replace a run folder that exists.
    half_life, cap : float, optional
        How the events of a label log are weighted; see ``LabelLog.labels``.
    document_prefix, query_prefix : str, optional
        Texts to put before documents and queries in place of those of the model.
    seed : int
        Seed of the split, where the data has none.
    resplit : bool
        Make a new split even where the data has one.
    gamma : float, optional
        Take this step instead of choosing one on the validation queries.
    guard : float
        Standard deviations of chance that the gain on the validation queries must exceed.
    refit : bool
        Once gamma is chosen, move the documents with the validation labels too.
    engine : str or Engine
        Where products run.
    check_embedder : bool
        Refuse queries and documents that seem to be embedded with different models.

    Returns
    -------
    Run
        The fitted tuner, its patch, and the figures of the test queries.

    Raises
    ------
    NudgeError
        If the data cannot be read, labels are missing, the folder exists, or queries and documents seem to be embedded
        with different models.

    Examples
    --------
    >>> import json, tempfile
    >>> from pathlib import Path
    >>> topics = [f"{colour} {thing}" for colour in ("red", "blue", "green") for thing in ("car", "house", "apple")]
    >>> words = "old new big small fast slow cheap nice my your".split()
    >>> queries = {f"q{n}": f"{words[n // 9]} {topics[n % 9]}" for n in range(90)}
    >>> pairs = {
    ...     "corpus": {f"d{n}": text for n, text in enumerate(topics)},
    ...     "queries": queries,
    ...     "relevant_docs": {query: [f"d{int(query[1:]) % 9 // 3 * 3}"] for query in queries},
    ... }
    >>> path = Path(tempfile.mkdtemp()) / "pairs.json"
    >>> _ = path.write_text(json.dumps(pairs))
    >>> run = tune(path, metric="mrr@3")
    >>> run.test.after["mrr@3"].mean > run.test.before["mrr@3"].mean
    True
    """
    method = method or ("auto" if gamma is None else "N")
    tuner = make_tuner(method, metric, side=side, gamma=gamma, guard=guard, refit=refit, engine=engine)
    claim: AbstractContextManager[None] = nullcontext()
    if out is not None:
        if not os.fspath(out):
            raise OptionError("out (--out) needs the name of a folder")
        claim = folder.claim(Path(out), overwrite, _input_files(data, labels, Path(out)))
    with claim:
        prepared = read_and_prepare(
            data,
            labels=labels,
            embedder=embedder,
            half_life=half_life,
            cap=cap,
            document_prefix=document_prefix,
            query_prefix=query_prefix,
            seed=seed,
            resplit=resplit,
        )
        if check_embedder:
            _check_embedder(prepared)
        run = fit(prepared, tuner)
        if out is not None:
            folder.write(run, Path(out))
    return run


def read_and_prepare(
    data: str | os.PathLike[str] | Store,
    *,
    labels: str | os.PathLike[str] | LabelLog | None = None,
    embedder: str | None = None,
    half_life: float | None = None,
    cap: float | None = None,
    document_prefix: str | None = None,
    query_prefix: str | None = None,
    seed: int = 0,
    resplit: bool = False,
) -> Prepared:
    """Read, embed and split a collection; see ``tune``."""
    if labels is None and (half_life is not None or cap is not None):
        raise OptionError("a half-life and a cap need a label log: pass labels= (--labels)")
    if labels is None:
        if isinstance(data, Store):
            raise InputError(f"{data.url} is a store and has no labels: pass a label log with labels=")
        collection = readers.read(data)
    else:
        source = data if isinstance(data, Store) else os.fspath(data)
        log = labels if isinstance(labels, LabelLog) else Path(labels)
        collection = read_labelled_documents(source, log, half_life=half_life, cap=cap, seed=seed)
    prefixes = (document_prefix, query_prefix)
    return prepare(collection, embedder, seed=seed, use_given_split=not resplit, prefixes=prefixes)


def _check_embedder(data: Prepared) -> None:
    """Refuse queries and documents of different models, and warn where this is uncertain."""
    mismatch = model_mismatch(data)
    if mismatch:
        raise VectorError(f"{mismatch}; to tune anyway, pass check_embedder=False (--no-embedder-check)")
    doubt = model_doubt(data)
    if doubt:
        warnings.warn(doubt, NudgeWarning, stacklevel=3)


def _input_files(
    data: str | os.PathLike[str] | Store, labels: str | os.PathLike[str] | LabelLog | None, out: Path
) -> list[str]:
    """Return the files and folders that a run reads, and the links in these folders, for a run folder ``out``."""
    paths = [] if isinstance(data, Store) else [os.fspath(data)]
    if labels is not None:
        paths.append(os.fspath(labels.path if isinstance(labels, LabelLog) else labels))
    paths = [path for path in paths if not is_store(path)]
    if out.exists():
        paths += [link for path in paths for link in _links(path, out.resolve())]
    return paths


def _links(folder: str, skipped: Path) -> Iterator[str]:
    """Yield the symbolic links in a folder and its subfolders, except for one of these."""
    for parent, subfolders, files in os.walk(folder):
        for name in [*subfolders, *files]:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                yield path
        subfolders[:] = [name for name in subfolders if Path(parent, name).resolve() != skipped]
