"""A folder that is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A folder to write into, beside its place; it takes the place of what is there when all is written."""
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = draft.with_name(draft.name + "-old")
    try:
        yield draft
        draft.chmod(0o755)
        if target.exists():
            os.replace(target, old)
        os.replace(draft, target)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
