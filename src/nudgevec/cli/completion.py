"""The command ``completion``."""

from __future__ import annotations

import argparse

import shtab

from nudgevec.cli.parser import build_parser


def completion(options: argparse.Namespace) -> None:
    """Print a completion script."""
    print(shtab.complete(build_parser(), options.shell), end="")
