"""Names of metrics, stores, embedders and engines, built in or added by other packages.

A package adds its own by an entry point in the group ``nudgevec.metrics``, ``nudgevec.stores``, ``nudgevec.embedders``
or ``nudgevec.engines``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry")


class Registry(Mapping[str, Entry], Generic[Entry]):
    """A mapping from names to objects.

    Parameters
    ----------
    kind : str
        What the objects are, for example "metric"; entry points are in the group ``nudgevec.<kind>s``.
    builtin : dict
        The objects of this package, or where to import them from when they are asked for: ``"module:name"``.

    Examples
    --------
    >>> registry = Registry("number", {"two": 2, "pi": "math:pi"})
    >>> sorted(registry), registry["two"]
    (['pi', 'two'], 2)
    >>> registry.register("pi", 3)
    >>> registry["pi"]
    3
    >>> registry.unregister("pi")
    >>> round(registry["pi"], 2)
    3.14
    """

    def __init__(self, kind: str, builtin: Mapping[str, Entry | str]) -> None:
        self.kind = kind
        self._builtin: dict[str, Any] = dict(builtin)
        self._registered: dict[str, Entry] = {}

    def register(self, name: str, entry: Entry) -> None:
        """Add an object under a name, in place of any other of that name."""
        self._registered[name] = entry

    def unregister(self, name: str) -> None:
        """Remove what was registered under a name. A built-in object that it replaced is found again.

        Raises
        ------
        KeyError
            If nothing was registered under this name.
        """
        del self._registered[name]

    def __getitem__(self, name: str) -> Entry:
        if name in self._registered:
            return self._registered[name]
        if name in self._builtin:
            entry = self._builtin[name]
            if isinstance(entry, str):
                module, _, attribute = entry.partition(":")
                entry = self._builtin[name] = getattr(import_module(module), attribute)
            return entry  # type: ignore[no-any-return]
        return self._added[name].load()  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._builtin or name in self._added

    def __iter__(self) -> Iterator[str]:
        return iter({**self._builtin, **self._registered, **self._added})

    def __len__(self) -> int:
        return len({**self._builtin, **self._registered, **self._added})

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"nudgevec.{self.kind}s")}
