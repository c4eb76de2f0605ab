"""JSON requests to OpenAI-compatible servers: bounded answers, retries, and care that the API key goes nowhere else."""

from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import random
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from html.entities import html5
from math import isfinite
from typing import IO, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from nudgevec.errors import OptionError, RemoteError

_KEY = "OPENAI_API_KEY"
# Failures that a few seconds do not mend: no such host, no server there, a silent one, an answer that is not JSON.
_FEW_ATTEMPTS = 3
# Seconds without a byte.
_IDLE_TIMEOUT = 120.0
_CHUNK = 1 << 16
_MAX_DETAIL = 500
_MAX_RETRY_AFTER = 60.0
_MALFORMED = "a malformed address"
# Request timeout, conflict, too early, too many requests, and errors on the side of the server.
_TRANSIENT_STATUS = {408, 409, 425, 429, 500, 502, 503, 504, 529}

log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """How long to wait for a server, and how much to read."""

    max_attempts: int = 7
    initial_delay: float = 0.5
    """Seconds before the second attempt; they double with every attempt."""
    total_timeout: float = 300.0
    """Seconds of one attempt in all, however slowly a server sends. There is no second attempt after that."""
    max_answer: int = 1 << 26
    """Bytes; 128 vectors of 8,192 dimensions have a third of them."""


LIMITS = Limits()
"""The usual limits."""


def post_json(url: str, payload: dict[str, Any], limits: Limits = LIMITS) -> Any:
    """Send a JSON request and return the JSON response; transient failures are retried with growing delays.

    Raises
    ------
    RemoteError
        If the server cannot be reached, refuses the request, fails in every attempt, or sends too much or too slowly.
    """
    body, headers = json.dumps(payload).encode(), _headers(url)
    attempts = Retrying(
        retry=retry_if_exception_type(_TransientError),
        stop=lambda state: state.attempt_number >= _attempts(_error_of(state), limits),
        wait=lambda state: _delay(state, limits),
        before_sleep=lambda state: _log_retry(url, state, limits),
        reraise=True,
    )
    try:
        return attempts(_post_once, url, body, headers, limits)
    except _TransientError as error:
        problem = f"did not answer in {_attempts(error, limits)} attempts; the last error: {mask(str(error))}"
        raise RemoteError(f"{public_url(url)} {problem}; {_key_state()}") from None


def check_server(url: str, name: str) -> str:
    """Return the address of a server without a slash at its end.

    Parameters
    ----------
    url : str
    name : str
        The option or environment variable that holds the address, for messages.

    Raises
    ------
    OptionError
        If the address has no scheme, holds a password, or has a query, where keys are often put.
    """
    if "@" in url or "?" in url or "#" in url:
        # The address is not repeated, because it may hold a password.
        raise OptionError(f"{name} holds a user, a password or a query: put the key into {_KEY}, not into the address")
    if "://" not in url:
        raise OptionError(f"{name} has no scheme: write http://{mask(url)} or https://{mask(url)}")
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    if not is_server or not url.isprintable() or " " in url:
        raise OptionError(f"{name} is not the address of a server, like http://host:8000/v1: {mask(url)!r}")
    return url.rstrip("/")


def public_url(url: str) -> str:
    """Return a URL without user, password, query and key; "a malformed address" where these cannot be told apart."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return _MALFORMED
    if "@" in parts.path:
        # A password with a slash in it ends the host early.
        return _MALFORMED
    return mask(f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}")


def mask(text: str) -> str:
    """Return a text with the API key masked, in every form that a server or an address may repeat it in."""
    key = _api_key()
    return _pattern(key).sub("***", text) if key else text


@cache
def _pattern(key: str) -> re.Pattern[str]:
    """Return a pattern for a key, each of whose characters may be encoded, also more than once."""
    return re.compile("".join(f"(?:{'|'.join(_forms(character))})" for character in key), re.IGNORECASE)


def _forms(character: str) -> list[str]:
    """Return patterns for a character: as it is, and as JSON, URLs and HTML write it."""
    code = ord(character)
    percent = "".join(rf"%(?:25){{0,4}}{byte:02x}" for byte in character.encode(errors="surrogateescape"))
    forms = [rf"\\{{0,8}}{re.escape(character)}", percent, rf"\\{{1,8}}(?:u{code:04x}|x{code:02x})"]
    entities = [name for name, text in html5.items() if text == character]
    entities += [f"#0{{0,6}}{code};?", f"#x0{{0,6}}{code:x};?"]
    forms += [rf"&(?:amp;){{0,4}}{name}" for name in entities]
    return [*forms, " "] if character == "+" else forms


def excerpt(answer: object, length: int = 200) -> str:
    """Return the beginning of a server's answer on one line, for messages. The key is masked before the text is cut."""
    return " ".join(mask(str(answer)).split())[:length]


class _TransientError(Exception):
    """A failure that is worth a retry, with the delay that the server asks for."""

    def __init__(self, problem: str, retry_after: float = 0.0, *, is_lasting: bool = False) -> None:
        super().__init__(problem)
        self.retry_after, self.is_lasting = retry_after, is_lasting


class _TooSlowError(Exception):
    """An attempt took longer than the total time-out."""


def _error_of(state: RetryCallState) -> _TransientError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _TransientError)
    return error


def _attempts(error: _TransientError, limits: Limits) -> int:
    """Return the number of attempts that an error is worth."""
    return min(_FEW_ATTEMPTS, limits.max_attempts) if error.is_lasting else limits.max_attempts


def _delay(state: RetryCallState, limits: Limits) -> float:
    """Return the seconds to the next attempt: exponential backoff, or longer if the server asks for it."""
    backoff = limits.initial_delay * 2 ** (state.attempt_number - 1) * random.uniform(0.75, 1.25)
    return float(max(_error_of(state).retry_after, backoff))


def _log_retry(url: str, state: RetryCallState, limits: Limits) -> None:
    error, seconds = _error_of(state), state.next_action.sleep if state.next_action else 0.0
    attempt = f"attempt {state.attempt_number + 1} of {_attempts(error, limits)}"
    log.warning("%s: %s; %s in %.1f seconds", public_url(url), mask(str(error)), attempt, seconds)


def _post_once(url: str, body: bytes, headers: dict[str, str], limits: Limits) -> Any:
    request = urllib.request.Request(url, body, headers)
    try:
        answer = _within(limits.total_timeout, lambda: _send(request, limits))
    except (OSError, http.client.HTTPException) as error:
        # No server at this address, a dropped connection, or an incomplete response.
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise _TransientError(excerpt(f"{type(cause).__name__}: {cause}"), is_lasting=_is_lasting(cause)) from None
    except _TooSlowError:
        seconds = f"{limits.total_timeout:g} seconds"
        raise RemoteError(f"{public_url(url)} did not send a whole answer within {seconds}") from None
    except ValueError as error:
        # Its text may hold a part of an address, and that a part of a password.
        problem = f"the answer or the address of a proxy is malformed ({type(error).__name__})"
        raise RemoteError(f"{public_url(url)}: {problem}") from None
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _TransientError(f"the answer is not JSON: {excerpt(error)}", is_lasting=True) from None


def _send(request: urllib.request.Request, limits: Limits) -> bytes:
    """Return the answer to a request; raise RemoteError or _TransientError if the server reports an error."""
    url, deadline = public_url(request.full_url), time.monotonic() + limits.total_timeout
    try:
        with _opener.open(request, timeout=min(_IDLE_TIMEOUT, limits.total_timeout)) as response:
            answer = _read(response, limits.max_answer, deadline)
    except urllib.error.HTTPError as error:
        problem = excerpt(f"{error.code} {error.reason}")
        with error:
            detail = excerpt(_read(error, _CHUNK, deadline).decode(errors="replace"), _MAX_DETAIL)
        if error.code in _TRANSIENT_STATUS:
            raise _TransientError(problem, _retry_after(error.headers.get("Retry-After"))) from None
        key = f" ({_key_state()})" if error.code in (401, 403) else ""
        raise RemoteError(f"{url} refused the request: {problem}{key}. {detail}") from None
    if len(answer) > limits.max_answer:
        raise RemoteError(f"{url} sent more than {limits.max_answer:,} bytes, which no answer to this request has")
    return answer


def _read(response: Any, limit: int, deadline: float) -> bytes:
    """Read a response to its end, or a little more than ``limit`` bytes of it."""
    chunks: list[bytes] = []
    n_bytes = 0
    # read1 returns with what has come, where read would wait for the whole chunk.
    while n_bytes <= limit and (chunk := response.read1(_CHUNK)):
        chunks.append(chunk)
        n_bytes += len(chunk)
        if time.monotonic() > deadline:
            raise _TooSlowError
    if n_bytes <= limit and response.length:
        raise http.client.IncompleteRead(b"".join(chunks), response.length)
    return b"".join(chunks)


def _within(seconds: float, call: Callable[[], bytes]) -> bytes:
    """Return what a call returns, or raise _TooSlowError after ``seconds``.

    The timeout of a socket begins anew with every byte of the headers, and looking up a host has none. The thread of a
    call that takes longer is left behind; it does not keep the process alive.
    """
    outcome: Future[bytes] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise _TooSlowError from None


def _is_lasting(cause: object) -> bool:
    """Whether there is no server to talk to, or none that says anything, so that many attempts are of no use."""
    if isinstance(cause, OSError) and cause.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return True
    return isinstance(
        cause, (socket.gaierror, ConnectionRefusedError, TimeoutError, ssl.SSLError, http.client.InvalidURL)
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would send the API key to another host, and turn POST into GET."""

    def http_error_302(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage
    ) -> None:
        """Raise RemoteError, before urllib reads the address."""
        # urllib leaves the response to this method, so nothing else closes its socket.
        fp.close()
        try:
            new = public_url(urljoin(req.full_url, headers.get("Location", "")))
        except ValueError:
            new = _MALFORMED
        advice = "redirects are not followed" if new == _MALFORMED else "use that address instead"
        raise RemoteError(f"{public_url(req.full_url)} redirects to {excerpt(new)}: {advice}")

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


_opener = urllib.request.build_opener(_NoRedirect)


def _api_key() -> str:
    return os.environ.get(_KEY, "").strip()


def _key_state() -> str:
    return f"{_KEY} is {'set' if _api_key() else 'not set'}"


def _headers(url: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "nudgevec"}
    key = _api_key()
    if not (key.isascii() and key.isprintable()):
        raise OptionError(f"{_KEY} has characters that a key cannot have, such as line breaks: copy the key once more")
    if key:
        headers["Authorization"] = f"Bearer {key}"
        if (urlsplit(url).hostname or "").endswith(".azure.com"):
            headers["api-key"] = key
    return headers


def _retry_after(header: str | None) -> float:
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return min(seconds, _MAX_RETRY_AFTER) if isfinite(seconds) else 0.0
