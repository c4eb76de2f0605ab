"""Where a collection is: the parts of a store's url, and how it is shown, which is without a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from nudgevec.errors import OptionError

_UNREADABLE = (
    "the url of the store cannot be read: it looks like scheme://user:password@host/database#collection, with %2F for "
    "/ and %23 for # in a password, and %40 for @ anywhere else"
)


@dataclass(frozen=True)
class Address:
    """``scheme://user:password@host:port/path?option=value#collection``; without a host, a path on this machine."""

    scheme: str
    path: str
    collection: str
    options: dict[str, str]
    host: str = ""
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise OptionError(_UNREADABLE) from None
        if "@" in parts.path + parts.fragment:
            # A password may have ended up here: the text is not repeated.
            raise OptionError(_UNREADABLE)
        password = None if parts.password is None else unquote(parts.password)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        user = None if parts.username is None else unquote(parts.username)
        path, collection = unquote(parts.path), unquote(parts.fragment)
        return cls(parts.scheme, path, collection, options, parts.hostname or "", port, user, password)

    def named(self, what: str) -> str:
        """The collection; an error where the url has none."""
        if not self.collection:
            raise OptionError(f"{self}: which {what}? add it after a #, as in {self}#docs")
        return self.collection

    def hidden(self, text: str) -> str:
        """A text without the password."""
        return text.replace(self.password, "***") if self.password else text

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        host = f"//{self.host or self.options.get('host', '')}{port}" if self.host or "host" in self.options else ""
        scheme = f"{self.scheme}:" if self.scheme else ""
        return f"{scheme}{host}{self.path}{'#' if self.collection else ''}{self.collection}"
