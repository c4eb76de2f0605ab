"""The command line. Commands are imported when they run, so that ``nudgevec --help`` is instant."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from nudgevec.cli.parser import build_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``nudgevec`` command and return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show an emoji shows a "?"
    _show_log_messages()
    from nudgevec import progress
    from nudgevec.errors import NudgeError, NudgeWarning

    try:
        silent = getattr(options, "quiet", False) or getattr(options, "json", False)
        with warnings.catch_warnings(), progress.show_bars(not silent):
            warnings.simplefilter("always", NudgeWarning)
            warnings.showwarning = _print_warning
            module, _, function = options.handler.partition(":")
            getattr(import_module(f"nudgevec.cli.{module}"), function)(options)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (NudgeError, OSError) as error:
        print(f"nudgevec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nudgevec: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        from nudgevec.stores import Address, error_text, is_store

        # Client libraries of stores raise exceptions of their own.
        url = getattr(options, "store", None) or getattr(options, "data", None) or ""
        if not is_store(url):
            raise
        address = Address.parse(url)
        print(f"nudgevec: {address}: {address.hide_password(error_text(error))}", file=sys.stderr)
        return 1
    return 0


def _show_log_messages() -> None:
    """Print log messages of nudgevec to stderr in one form, whatever other libraries do to the root logger."""
    logger = logging.getLogger("nudgevec")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("nudgevec: %(message)s"))
        logger.addHandler(handler)
    logger.propagate = False


def _print_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print warnings about the user's data on one line; those of libraries are for developers."""
    from nudgevec.errors import NudgeWarning

    if issubclass(category, NudgeWarning):
        print(f"nudgevec: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
