"""The command line. Commands are imported when they run, so that ``nudgevec --help`` is instant."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from nudgevec.cli.output import print_text
from nudgevec.cli.parser import build_parser
from nudgevec.tables import visible


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``nudgevec`` command and return its exit code."""
    for name in ("stdout", "stderr"):
        # Python has no stream for a descriptor that is closed. Without this the next file would take its number.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    options = None
    try:
        parser = build_parser()
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help()
        else:
            _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 0
    except KeyboardInterrupt:
        print_text("nudgevec: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = _describe(error, options)
        if message is None:
            raise
        _discard_output()
        print_text(f"nudgevec: {message}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    """Run a command, with its warnings, log messages and progress on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show an emoji shows a "?"
    from nudgevec import progress
    from nudgevec.errors import NudgeWarning

    silent = getattr(options, "quiet", False) or getattr(options, "json", False)
    with _shown_log_messages(), warnings.catch_warnings(), progress.show_bars(not silent):
        warnings.simplefilter("always", NudgeWarning)
        warnings.showwarning = _print_warning
        module, _, function = options.handler.partition(":")
        getattr(import_module(f"nudgevec.cli.{module}"), function)(options)


def _describe(error: Exception, options: argparse.Namespace | None) -> str | None:
    """Return the message for an error that users can cause, None for one that is a mistake in nudgevec."""
    from nudgevec.errors import NudgeError

    if isinstance(error, (NudgeError, OSError)):
        return str(error)
    from nudgevec.stores import Address, error_text, is_store

    # Client libraries of stores raise exceptions of their own.
    url = getattr(options, "store", None) or getattr(options, "data", None) or ""
    if not is_store(url):
        return None
    address = Address.parse(url)
    return f"{address}: {address.hide_password(error_text(error))}"


def _discard_output() -> None:
    """Drop what cannot be written to standard output, or Python tries again at its end and reports that it failed."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _shown_log_messages() -> Iterator[None]:
    """Print log messages of nudgevec to stderr in one form, whatever other libraries do to the root logger."""
    logger, handler = logging.getLogger("nudgevec"), logging.StreamHandler()
    handler.setFormatter(_LineFormatter("nudgevec: %(message)s"))
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _print_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print warnings about the user's data on one line; those of libraries are for developers."""
    from nudgevec.errors import NudgeWarning

    if issubclass(category, NudgeWarning):
        print_text(f"nudgevec: warning: {message}", file=sys.stderr)


class _LineFormatter(logging.Formatter):
    """Log messages without control characters for the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


if __name__ == "__main__":
    sys.exit(main())
