"""The command ``demo``."""

from __future__ import annotations

import argparse

from nudgevec import demo as emoji
from nudgevec.cli.output import print_json


def demo(options: argparse.Namespace) -> None:
    """Tune the emoji search and print the result."""
    if options.json:
        print_json(emoji.facts(options.query))
    else:
        emoji.main(options.query)
