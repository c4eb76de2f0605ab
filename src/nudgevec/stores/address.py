"""The address of a collection: the parts of a store url, shown without its password."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from nudgevec.errors import OptionError

_UNREADABLE = (
    "the store url cannot be parsed: expected scheme://user:password@host/database#collection, with / written as %2F "
    "and # as %23 in a password, and @ as %40 everywhere else"
)


@dataclass(frozen=True)
class Address:
    """Where a collection is.

    ``str(address)`` is the url without user, password and options, for messages and logs.

    Parameters
    ----------
    scheme : str
        Name of the store in the registry, for example "lancedb".
    path : str
        Path of a local store, or the database on a server, with its leading slash.
    collection : str
        Name of the table or collection; empty if the url has none.
    options : dict
        The query of the url.
    host, port, user, password : optional
        Empty or None for a store on this machine.

    Examples
    --------
    >>> address = Address.parse("postgresql://me:secret@localhost/shop?vector=embedding#docs")
    >>> address.host, address.path, address.collection, address.options
    ('localhost', '/shop', 'docs', {'vector': 'embedding'})
    >>> print(address)
    postgresql://localhost/shop#docs
    """

    scheme: str
    path: str
    collection: str
    options: dict[str, Any]
    host: str = ""
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Split a url ``scheme://user:password@host:port/path?option=value#collection``.

        Parameters
        ----------
        url : str
            Without ``//host``, the path is one on this machine.

        Returns
        -------
        Address
            The parts, percent-decoded.

        Raises
        ------
        OptionError
            If the url is malformed. The message does not repeat it, because it may contain a password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise OptionError(_UNREADABLE) from None
        # An unescaped password ends up here if it contains a slash or a #.
        if "@" in parts.path + parts.fragment:
            raise OptionError(_UNREADABLE)
        password = None if parts.password is None else unquote(parts.password)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        user = None if parts.username is None else unquote(parts.username)
        path, collection = unquote(parts.path), unquote(parts.fragment)
        host = parts.hostname or ""
        # urlsplit lowers the case of a host, which may be the first folder of a relative path.
        at = parts.netloc.lower().rfind(host)
        return cls(parts.scheme, path, collection, options, parts.netloc[at:][: len(host)], port, user, password)

    @property
    def local_path(self) -> str:
        """The path of a store on this machine; ``scheme://folder/name`` is read as a relative path."""
        return self.host + self.path

    def updated(self, collection: str | None, options: dict[str, Any]) -> Address:
        """Return the address with a collection and options that were passed beside the url."""
        if collection is not None and self.collection not in ("", collection):
            raise OptionError(f"{self}: collection={collection!r} contradicts the url")
        for name, value in options.items():
            if self.options.get(name, value) != value:
                raise OptionError(f"{self}: {name}={value!r} contradicts the url")
        return replace(self, collection=collection or self.collection, options={**self.options, **options})

    def require_collection(self, kind: str = "collection") -> str:
        """Return the name of the collection, or raise if the url has none."""
        if not self.collection:
            raise OptionError(f"{self}: no {kind} given: add it after a #, as in {self}#docs, or pass collection=")
        return self.collection

    def refuse_credentials(self, variable: str) -> None:
        """Raise if the url holds a key that belongs into an environment variable."""
        if self.host and (self.user or self.password):
            raise OptionError(f"{self}: put the key into the environment variable {variable}, not into the url")

    def hide_password(self, text: str) -> str:
        """Return a text with the password masked, which may also be an option of the url."""
        for password in (self.password, self.options.get("password")):
            for form in (password, quote(password or ""), quote(password or "", safe="")):
                if form:
                    text = text.replace(form, "***")
        return text

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        host = f"//{self.host or self.options.get('host', '')}{port}" if self.host or "host" in self.options else ""
        scheme = f"{self.scheme}:" if self.scheme else ""
        return f"{scheme}{host}{self.path}{'#' if self.collection else ''}{self.collection}"


def parse_flag(name: str, value: str | bool) -> bool:
    """Return a yes-or-no option as a bool."""
    if value not in ("yes", "no", True, False):
        raise OptionError(f"the option {name} must be yes or no, not {value!r}")
    return value in ("yes", True)
