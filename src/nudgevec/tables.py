"""Tables that people read: styled on a terminal, aligned plain text in files and pipes.

This is the only module that uses rich, which is imported when a table is printed.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    heading : str
    number : bool
        Align to the right.
    min_width : int
        Keeps the layout stable when cells are short.
    """

    heading: str
    number: bool = False
    min_width: int = 0


COMPARISON = (
    Column("metric", min_width=11),
    Column("before", number=True),
    Column("after", number=True, min_width=6),
    Column("change", number=True),
    Column("95% interval of the change"),
)
"""Columns of a table of metrics before and after tuning."""


# Control characters, which a terminal obeys, and those that change the direction of a text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return a text with control characters made visible, so that a terminal shows them and does not obey them.

    >>> print(visible("\x1b[2Jempty screen"))
    \x1b[2Jempty screen
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def comparison_row(name: str, before: float, after: float, change: float, low: float, high: float) -> tuple[str, ...]:
    """Return the cells of a metric in a table with the columns ``COMPARISON``, times 100.

    >>> comparison_row("ndcg@10", 0.645, 0.823, 0.178, 0.142, 0.215)
    ('ndcg@10', '64.5', '82.3', '+17.8', '+14.2 to +21.5')
    """
    return (
        name,
        f"{100 * before:.1f}",
        f"{100 * after:.1f}",
        f"{100 * change:+.1f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
    )


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], file: TextIO | None = None) -> None:
    """Print a table to a file, standard output by default.

    >>> print_table([Column("city"), Column("people", number=True)], [("Ghent", "265,086"), ("Oslo", "709,037")])
    city     people
    Ghent   265,086
    Oslo    709,037
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    file = sys.stdout if file is None else file
    terminal = file.isatty()
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        padding=(0, 1) if terminal else (0, 3, 0, 0),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for column in columns:
        # Only the last column may be wrapped: a number on two lines is unreadable.
        table.add_column(
            Text(column.heading),
            justify="right" if column.number else "left",
            min_width=column.min_width,
            no_wrap=column is not columns[-1],
            overflow="fold",
        )
    for row in rows:
        # Text, because rich would read square brackets in a string as markup.
        table.add_row(*(Text(visible(cell)) for cell in row))
    if terminal:
        Console(file=file, force_jupyter=False).print(table)
        return
    # Rendered without a width limit, so that rows stay on one line; the padding at their ends is removed.
    buffer = io.StringIO()
    Console(file=buffer, width=1_000_000, force_terminal=False, force_jupyter=False).print(table)
    for line in buffer.getvalue().splitlines():
        print(line.rstrip(), file=file)
