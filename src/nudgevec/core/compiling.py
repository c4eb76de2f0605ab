"""Tell the user when numba compiles the loops of this package: once after installation, for each type of vectors."""

from __future__ import annotations

import logging

from numba.core import event

log = logging.getLogger("nudgevec")


class _Notice(event.Listener):
    """Logs one message in each process that compiles anything of this package."""

    given = False

    def on_start(self, event: event.Event) -> None:
        if not self.given and event.data["dispatcher"].py_func.__module__.startswith("nudgevec."):
            self.given = True
            log.warning("nudgevec: compiling the search loops (once after installation, about 15 seconds) ...")

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _Notice())  # type: ignore[no-untyped-call]
