"""The command line. Each verb imports what it needs when it runs, so that ``nudgevec --help`` is instant."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from nudgevec.cli.parser import parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``nudgevec`` command; returns the exit code."""
    known = parser()
    options = known.parse_args(arguments)
    if options.verb is None:
        known.print_help()
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show an emoji shows a "?"
    from nudgevec import progress
    from nudgevec.cli import verbs
    from nudgevec.errors import NudgeError, NudgeWarning

    try:
        silent = getattr(options, "quiet", False) or getattr(options, "json", False)
        with warnings.catch_warnings(), progress.shown(not silent):
            warnings.simplefilter("always", NudgeWarning)
            warnings.showwarning = _warn
            getattr(verbs, options.verb)(options)
    except NudgeError as error:
        print(f"nudgevec: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"nudgevec: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("nudgevec: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        from nudgevec.stores import Address, error_text, is_store

        # The library of a store has errors of its own.
        place = getattr(options, "store", None) or getattr(options, "data", None) or ""
        if not is_store(place):
            raise
        address = Address.parse(place)
        print(f"nudgevec: {address}: {address.hide_password(error_text(error))}", file=sys.stderr)
        return 1
    return 0


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Warnings about the user's data are one line; those of libraries are for developers."""
    from nudgevec.errors import NudgeWarning

    if issubclass(category, NudgeWarning):
        print(f"nudgevec: note: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
