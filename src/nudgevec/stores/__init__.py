"""Vector stores: read them as a corpus, put a patch on, take it back. One file per store, found by ``open_store``."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from nudgevec.errors import OptionError
from nudgevec.stores.base import Status, Store

__all__ = ["SCHEMES", "Status", "Store", "is_store", "open_store"]

SCHEMES = ("lancedb",)


def is_store(text: str) -> bool:
    """True for something that looks like the url of a store."""
    return text.partition(":")[0] in SCHEMES


def open_store(url: str) -> Store:
    """The store at this url, for example ``lancedb:///data/db#docs``.

    The collection comes after the ``#``. Names that differ from the usual ones are options of the url:
    ``lancedb:///data/db?id=key&vector=embedding&metric=dot#docs``.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    if parts.scheme == "lancedb":
        from nudgevec.stores.lancedb_store import LanceStore

        return LanceStore(parts.netloc + parts.path, parts.fragment, **_known(url, options, ("id", "vector", "metric")))
    raise OptionError(f"unknown store {url!r}: urls begin with one of {', '.join(f'{name}:' for name in SCHEMES)}")


def _known(url: str, options: dict[str, str], names: tuple[str, ...]) -> dict[str, str]:
    odd = [name for name in options if name not in names]
    if odd:
        raise OptionError(f"{url}: unknown option {odd[0]!r}; this store takes {', '.join(names)}")
    return options
