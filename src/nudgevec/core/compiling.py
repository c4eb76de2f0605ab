"""How the loops of this package are compiled: by numba, once after installation for each type of vectors.

Compiled code is kept in the folder that ``NUMBA_CACHE_DIR`` names, or in the user's cache folder, under a hash of the
sources of the core: numba notices a change of the file that a function is in, but not of the functions that it calls.
Where no folder can be written, every process compiles anew.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config as numba_config
from numba.core import event

from nudgevec.files import cache_folder

log = logging.getLogger("nudgevec")
# Its attributes are not declared.
config: Any = numba_config


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function."""

    def decorate(function: Callable[..., Any]) -> Any:
        before, folder = config.CACHE_DIR, _folder()
        config.CACHE_DIR = folder
        try:
            return njit(parallel=parallel, cache=bool(folder))(function)
        finally:
            config.CACHE_DIR = before

    return decorate


@cache
def _folder() -> str:
    """Return the folder for compiled code; an empty text if none can be written."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    folder = Path(config.CACHE_DIR or cache_folder() / "compiled") / state
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError:
        return ""
    return str(folder)


class _Notice(event.Listener):
    """Logs one message in each process that compiles anything of this package."""

    given = False

    def on_start(self, event: event.Event) -> None:
        if not self.given and event.data["dispatcher"].py_func.__module__.startswith("nudgevec."):
            self.given = True
            often = "once after installation" if _folder() else "in every process, because no cache folder is writable"
            log.warning("compiling the search loops of nudgevec (%s, about 20 seconds) ...", often)

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]
