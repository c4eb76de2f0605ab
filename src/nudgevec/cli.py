"""The command line. Each verb imports what it needs, so that ``nudgevec --help`` is instant."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``nudgevec`` command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.verb is None:
        parser.print_help()
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show an emoji shows a "?"
    from nudgevec.errors import NudgeError

    try:
        if options.verb == "demo":
            from nudgevec import demo

            demo.main(options.query)
    except NudgeError as error:
        print(f"nudgevec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nudgevec",
        description="Better vector search from a handful of labelled queries, without touching the embedding model.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")
    demo = verbs.add_parser("demo", help="tune an emoji search and see it before and after")
    demo.add_argument("--query", action="append", default=[], metavar="WORD", help="search for WORD (may be repeated)")
    return parser


class _Version(argparse.Action):
    """Reads the installed version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from nudgevec import __version__

        print(f"nudgevec {__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
