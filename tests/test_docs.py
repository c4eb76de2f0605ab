"""What the README shows is what happens."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

from nudgevec import demo

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def shown(marker):
    """The text blocks after a marker in the README."""
    return re.findall(r"```\w+\n(.*?)```", README.split(f"<!-- {marker} -->")[1], re.DOTALL)


def test_the_example_prints_what_the_readme_says():
    code, output = shown("example")[:2]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_the_demo_prints_what_the_readme_says():
    out = io.StringIO()
    demo.run([], out)

    def untimed(text):
        return re.sub(r"in \d+\.\d\d s", "in ... s", text.strip())

    assert untimed(out.getvalue()) == untimed(shown("demo")[0])
