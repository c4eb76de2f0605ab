"""The verbs and options of the command line, and nothing that takes time."""

from __future__ import annotations

import argparse


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    main = argparse.ArgumentParser(
        prog="nudgevec",
        description="Better vector search from a handful of labelled queries, without touching the embedding model.",
    )
    main.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = main.add_subparsers(dest="verb", metavar="COMMAND")

    tune = verbs.add_parser("tune", help="tune a collection and leave the result in a run folder")
    _data(tune)
    tune.add_argument("--out", required=True, metavar="RUN", help="the folder to write")
    tune.add_argument("--overwrite", action="store_true", help="replace RUN if it is there")
    tune.add_argument(
        "--method", default="N", metavar="N|M", help="N turns vectors (cosine), M moves them (inner product); M+N, NU"
    )
    tune.add_argument("--metric", default="ndcg@10", help="what to be best at: ndcg@k, recall@k, mrr@k, success@k ...")
    tune.add_argument("--guard", type=float, default=1.0, help="standard deviations of chance a gain must exceed")

    evaluate = verbs.add_parser("evaluate", help="measure a collection as it is, or with a run over it")
    _data(evaluate)
    evaluate.add_argument("--run", metavar="RUN", help="a run folder to look through")
    evaluate.add_argument("--metric", action="append", metavar="METRIC", help="a metric (may be repeated)")
    evaluate.add_argument("--similarity", choices=("cosine", "dot"), help="how to search (the run's, or cosine)")

    inspect = verbs.add_parser("inspect", help="which documents moved most, which queries won and lost")
    inspect.add_argument("run", metavar="RUN", help="a run folder")
    inspect.add_argument("--top", type=int, default=5, metavar="K", help="how many of each (default 5)")
    inspect.add_argument("--json", action="store_true", help="print JSON")

    index = verbs.add_parser("index", help="embed documents into a new LanceDB table")
    index.add_argument("data", metavar="DATA", help="a folder of text files, or any other layout with texts")
    index.add_argument("--store", required=True, metavar="URL", help="the table to make, like lancedb:db#docs")
    index.add_argument("--embedder", default="static", metavar="SPEC", help="static (default), st:NAME or openai:NAME")
    index.add_argument(
        "--document-prefix", metavar="TEXT", help="put before every document (the model's own by default)"
    )
    index.add_argument("--json", action="store_true", help="print JSON")
    index.add_argument("--quiet", action="store_true", help="no progress bars")

    for name, what in (
        ("apply", "put a run on a vector store"),
        ("revert", "take a run back from a vector store"),
        ("status", "see which run is in force in a vector store"),
    ):
        verb = verbs.add_parser(name, help=what)
        if name == "apply":
            verb.add_argument("run", metavar="RUN", help="a run folder")
        if name == "revert":
            verb.add_argument("run", metavar="RUN", nargs="?", help="a run folder; whatever is in force by default")
            verb.add_argument("--force", action="store_true", help="forget a patch that no row carries any more")
        verb.add_argument("--store", required=True, metavar="URL", help="for example lancedb:///data/db#docs")
        if name == "apply":
            verb.add_argument(
                "--check", type=int, default=200, metavar="N", help="try the store's search on N test queries (200)"
            )
        verb.add_argument("--json", action="store_true", help="print JSON")

    _labels(verbs.add_parser("labels", help="the label log: import events, see what they are good for"))

    _synthesize(verbs.add_parser("synthesize", help="let a language model write queries for documents without labels"))

    demo = verbs.add_parser("demo", help="tune an emoji search and see it before and after")
    demo.add_argument("--query", action="append", default=[], metavar="WORD", help="search for WORD (may be repeated)")
    demo.add_argument("--json", action="store_true", help="print JSON")

    completion = verbs.add_parser("completion", help="print a completion script for your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return main


def _labels(verb: argparse.ArgumentParser) -> None:
    tasks = verb.add_subparsers(dest="task", metavar="TASK", required=True)
    into = tasks.add_parser("import", help="append the events of a file (.jsonl, .csv, or qrels with --queries)")
    into.add_argument("log", metavar="LOG", help="the log, a file; made if it is not there")
    into.add_argument("file", metavar="FILE")
    into.add_argument("--source", help="where the events come from (their own source by default)")
    into.add_argument("--signal", default="judgement", help="of lines that name none (default judgement)")
    into.add_argument("--queries", metavar="FILE", help="queries.jsonl, for qrels")
    stats = tasks.add_parser("stats", help="coverage, usefulness, and what to collect next")
    stats.add_argument("log", metavar="LOG")
    stats.add_argument("--data", metavar="DATA", help="the documents, for the coverage")
    _folding(stats)
    export = tasks.add_parser("export", help="write the folded labels as queries.jsonl and qrels")
    export.add_argument("log", metavar="LOG")
    export.add_argument("--out", required=True, metavar="FOLDER")
    _folding(export)
    signals = tasks.add_parser("signals", help="show what signals weigh, or set it")
    signals.add_argument("log", metavar="LOG")
    signals.add_argument("--set", action="append", default=[], metavar="NAME=WEIGHT")
    for task in (into, stats, export, signals):
        task.add_argument("--json", action="store_true", help="print JSON")


def _synthesize(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("data", metavar="DATA", help="the documents: texts in any layout, or a folder of text files")
    verb.add_argument("--labels", required=True, metavar="LOG", help="the label log to write to")
    verb.add_argument(
        "--llm", required=True, metavar="URL", help="an OpenAI-compatible server, like http://host:8000/v1"
    )
    verb.add_argument("--model", required=True, metavar="NAME")
    verb.add_argument("--per-document", type=int, default=3, metavar="N", help="queries per document (default 3)")
    verb.add_argument("--language", action="append", metavar="NAME", help="English by default (may be repeated)")
    verb.add_argument("--prompt", metavar="FILE", help="your own prompt, with {document}, {n} and {language}")
    verb.add_argument(
        "--top", type=int, default=10, metavar="K", help="keep queries that find their document in the top K"
    )
    verb.add_argument("--limit", type=int, metavar="N", help="ask for at most N documents")
    verb.add_argument("--embedder", default="static", metavar="SPEC", help="for the round trip (default static)")
    verb.add_argument(
        "--price", type=float, nargs=2, metavar=("IN", "OUT"), help="of a million tokens, for the estimate"
    )
    verb.add_argument("--dry-run", action="store_true", help="say what would be asked and what it would cost")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("--quiet", action="store_true", help="no progress bars")


def _folding(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--half-life", type=float, metavar="DAYS", help="events count half after so many days")
    verb.add_argument("--cap", type=float, metavar="WEIGHT", help="the most one source can give to one document")


def _data(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("data", metavar="DATA", nargs="?", help="BEIR, vectors, Hugging Face, LlamaIndex, or a store")
    verb.add_argument("--store", metavar="URL", help="a vector store in place of DATA, like lancedb:///data/db#docs")
    verb.add_argument(
        "--embedder", metavar="SPEC", help="static (default for texts), st:NAME, openai:NAME or precomputed:NAME"
    )
    verb.add_argument(
        "--document-prefix", metavar="TEXT", help="put before every document (the model's own by default)"
    )
    verb.add_argument("--labels", metavar="LOG", help="queries and labels: a label log, or events in .jsonl or .csv")
    _folding(verb)
    verb.add_argument("--query-prefix", metavar="TEXT", help="put before every query (the model's own by default)")
    verb.add_argument("--seed", type=int, help="of the split, where the data has none (default 0)")
    verb.add_argument("--resplit", action="store_true", help="make the paper's split even where the data has one")
    verb.add_argument("--engine", default="auto", choices=("auto", "cpu", "torch"), help="where products run")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("--quiet", action="store_true", help="no progress bars")


class _Version(argparse.Action):
    """Reads the installed version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nudgevec import __version__

        print(f"nudgevec {__version__}")
        parser.exit()
