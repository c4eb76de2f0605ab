"""Commands and options of the command line. Nothing slow is imported here."""

from __future__ import annotations

import argparse
from typing import Any


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; ``handler`` of the parsed options is the "module:function" that runs one."""
    parser = argparse.ArgumentParser(
        prog="nudgevec",
        description="Better vector search from labelled queries, without touching the embedding model.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_runs(commands)
    _add_stores(commands)
    _add_labels(commands)
    _add_synthesize(commands)

    demo = _add(commands, "demo", "demo:demo", "tune an emoji search and show it before and after")
    demo.add_argument("--query", action="append", default=[], metavar="WORD", help="search for WORD (may be repeated)")
    _add_json(demo)

    completion = _add(commands, "completion", "completion:completion", "print a completion script for a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def _add_runs(commands: Any) -> None:
    tune = _add(commands, "tune", "runs:tune", "tune a collection and write the result to a run folder")
    _add_data(tune)
    tune.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    tune.add_argument("--overwrite", action="store_true", help="replace RUN if it exists")
    _add_method(tune)
    tune.add_argument(
        "--no-embedder-check",
        action="store_false",
        dest="check_embedder",
        help="tune even if queries and documents seem to be embedded with different models",
    )

    evaluate = _add(commands, "evaluate", "runs:evaluate", "measure a collection on its test queries")
    _add_data(evaluate)
    evaluate.add_argument("--run", metavar="RUN", help="run folder whose patch is applied to the documents")
    evaluate.add_argument(
        "--metric",
        action="append",
        metavar="METRIC",
        help="metric to measure (may be repeated; default ndcg@10, recall@10, mrr@10, success@1)",
    )
    evaluate.add_argument(
        "--similarity", choices=("cosine", "dot"), help="how vectors are compared (that of the run or store, or cosine)"
    )
    evaluate.add_argument(
        "--original", action="store_true", help="measure the original vectors, whatever patch is applied to the store"
    )
    evaluate.add_argument(
        "--through-index", action="store_true", help="measure the search of the store itself, with its index"
    )

    inspect = _add(commands, "inspect", "runs:inspect", "show which queries gained and lost, and which documents moved")
    inspect.add_argument("run", metavar="RUN", help="run folder")
    inspect.add_argument("--top", type=int, default=5, metavar="K", help="number of queries and documents (default 5)")
    _add_json(inspect)


def _add_method(tune: Any) -> None:
    tune.add_argument(
        "--method",
        metavar="auto|N|M",
        help="auto maps all vectors and rotates labelled documents (cosine similarity; the default, unless --gamma is "
        "given), N only rotates, M moves along a ray (inner product); variants: M+N, NU",
    )
    tune.add_argument(
        "--side",
        choices=("auto", "documents", "queries"),
        help="what the map of the method auto moves: all documents, once, or every query before its search (by default "
        "the documents if there are at most 100,000)",
    )
    tune.add_argument(
        "--metric",
        default="ndcg@10",
        help="metric to maximise: ndcg@k, recall@k, mrr@k, success@k (default ndcg@10)",
    )
    tune.add_argument(
        "--gamma", type=float, metavar="X", help="step to take (by default the best one on the validation queries)"
    )
    tune.add_argument(
        "--guard",
        type=float,
        default=1.0,
        metavar="X",
        help="standard deviations of chance that a gain must exceed (default 1)",
    )
    tune.add_argument(
        "--refit", action="store_true", help="once gamma is chosen, move documents with the validation labels too"
    )


def _add_stores(commands: Any) -> None:
    index = _add(commands, "index", "stores:index", "embed documents into a new LanceDB table")
    index.add_argument("data", metavar="DATA", help="folder of text files, or any other layout with texts")
    index.add_argument("--store", required=True, metavar="URL", help="table to create, for example lancedb:db#docs")
    index.add_argument("--embedder", default="static", metavar="SPEC", help="static (default), st:NAME or openai:NAME")
    index.add_argument(
        "--document-prefix", metavar="TEXT", help="text to put before every document (the model's own by default)"
    )
    _add_json(index)
    index.add_argument("--quiet", action="store_true", help="hide progress bars")

    apply = _add(commands, "apply", "stores:apply", "apply the patch of a run to a vector store")
    apply.add_argument("run", metavar="RUN", help="run folder")
    _add_store(apply)
    _add_no_vacuum(apply)
    apply.add_argument(
        "--check",
        type=int,
        default=200,
        metavar="N",
        help="check the search of the store with N test queries (default 200)",
    )
    _add_json(apply)

    revert = _add(commands, "revert", "stores:revert", "revert the patch of a vector store")
    revert.add_argument("run", metavar="RUN", nargs="?", help="run folder; the applied patch by default")
    revert.add_argument("--force", action="store_true", help="revert what can be reverted, and drop the rest")
    _add_store(revert)
    _add_no_vacuum(revert)
    _add_json(revert)

    status = _add(commands, "status", "stores:status", "show which patch is applied to a vector store")
    _add_store(status)
    _add_json(status)


def _add_labels(commands: Any) -> None:
    labels = commands.add_parser("labels", help="manage a label log: import events, show statistics, export labels")
    tasks = labels.add_subparsers(dest="task", metavar="TASK", required=True)

    events = _add(tasks, "import", "labels:import_events", "append the events of a file")
    events.add_argument("log", metavar="LOG", help="label log; created if it does not exist")
    events.add_argument(
        "file",
        metavar="FILE",
        help="events as JSON or a table, or a label file (qrels) with --queries; - for standard input",
    )
    events.add_argument("--source", metavar="NAME", help="source of all events (by default their own)")
    events.add_argument(
        "--signal", default="judgement", metavar="NAME", help="signal of lines without one (default judgement)"
    )
    events.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME=COLUMN,...",
        help="columns that are called otherwise, for example query=q,document=item_id",
    )
    events.add_argument("--queries", metavar="FILE", help="queries.jsonl with the texts of the queries of a label file")
    _add_json(events)

    stats = _add(tasks, "stats", "labels:stats", "show the coverage, the expected usefulness, and what to collect next")
    stats.add_argument("log", metavar="LOG", help="label log, or a file of events")
    stats.add_argument("--data", metavar="DATA", help="documents, to measure the coverage")
    _add_aggregation(stats)
    _add_json(stats)

    export = _add(tasks, "export", "labels:export", "write the labels as queries.jsonl and qrels")
    export.add_argument("log", metavar="LOG", help="label log, or a file of events")
    export.add_argument("--out", required=True, metavar="FOLDER", help="folder to write")
    _add_aggregation(export)
    _add_json(export)

    signals = _add(tasks, "signals", "labels:signals", "show or set the weights of signals")
    signals.add_argument("log", metavar="LOG", help="label log")
    signals.add_argument("--set", action="append", default=[], metavar="NAME=WEIGHT", help="weight (may be repeated)")
    _add_json(signals)


def _add_synthesize(commands: Any) -> None:
    command = _add(
        commands,
        "synthesize",
        "synthesize:synthesize",
        "let a language model write queries for documents without labels",
    )
    command.add_argument("data", metavar="DATA", help="documents: texts in any layout, or a folder of text files")
    command.add_argument("--labels", required=True, metavar="LOG", help="label log to write to")
    command.add_argument(
        "--llm", required=True, metavar="URL", help="OpenAI-compatible server, for example http://host:8000/v1"
    )
    command.add_argument("--model", required=True, metavar="NAME", help="name of the language model")
    command.add_argument("--per-document", type=int, default=3, metavar="N", help="queries per document (default 3)")
    command.add_argument(
        "--language", action="append", metavar="NAME", help="language of the queries (default English; may be repeated)"
    )
    command.add_argument("--prompt", metavar="FILE", help="prompt with {document}, {n} and {language}")
    command.add_argument(
        "--top", type=int, default=10, metavar="K", help="keep queries whose document is in the top K (default 10)"
    )
    command.add_argument("--limit", type=int, metavar="N", help="request queries for at most N documents")
    command.add_argument("--embedder", default="static", metavar="SPEC", help="embedder of this check (default static)")
    command.add_argument(
        "--price", type=float, nargs=2, metavar=("IN", "OUT"), help="price of a million tokens, for the estimate"
    )
    command.add_argument("--dry-run", action="store_true", help="print the number of requests and their cost, and stop")
    _add_json(command)
    command.add_argument("--quiet", action="store_true", help="hide progress bars")


def _add(commands: Any, name: str, handler: str, description: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=description, description=f"{description[0].upper()}{description[1:]}."
    )
    command.set_defaults(handler=handler)
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store", required=True, metavar="URL", help="vector store, for example lancedb:///data/db#docs"
    )


def _add_no_vacuum(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--no-vacuum", action="store_true", help="PostgreSQL: do not vacuum the table after writing its vectors"
    )


def _add_aggregation(command: argparse.ArgumentParser) -> None:
    command.add_argument("--half-life", type=float, metavar="DAYS", help="days in which the weight of an event halves")
    command.add_argument(
        "--cap", type=float, metavar="WEIGHT", help="largest total weight that one source can give to one document"
    )


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "data", metavar="DATA", nargs="?", help="BEIR, vectors, Hugging Face or LlamaIndex data, or the URL of a store"
    )
    command.add_argument("--store", metavar="URL", help="vector store in place of DATA, like lancedb:///data/db#docs")
    command.add_argument(
        "--embedder",
        metavar="SPEC",
        help="static (default for texts), st:NAME, openai:NAME, precomputed:NAME, or an embedder of another package",
    )
    command.add_argument(
        "--document-prefix", metavar="TEXT", help="text to put before every document (the model's own by default)"
    )
    command.add_argument(
        "--query-prefix", metavar="TEXT", help="text to put before every query (the model's own by default)"
    )
    command.add_argument("--labels", metavar="LOG", help="queries and labels: a label log, or a file of events")
    _add_aggregation(command)
    command.add_argument("--seed", type=int, metavar="N", help="seed of the split, where the data has none (default 0)")
    command.add_argument("--resplit", action="store_true", help="split the queries anew even if the data has a split")
    command.add_argument(
        "--engine",
        default="auto",
        metavar="NAME",
        help="where the search runs: auto (default), cpu, torch, or an engine of another package",
    )
    _add_json(command)
    command.add_argument("--quiet", action="store_true", help="hide progress bars")


class _Version(argparse.Action):
    """Import the package for its version only when it is requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nudgevec import __version__

        print(f"nudgevec {__version__}")
        parser.exit()
