"""JSON requests to OpenAI-compatible servers: retries, and care that the API key goes nowhere else."""

from __future__ import annotations

import http.client
import json
import os
import random
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from nudgevec.errors import RemoteError

max_attempts = 7
initial_delay = 0.5  # seconds; doubles with every attempt
_TIMEOUT = 120.0
_MAX_RETRY_AFTER = 60.0
# Request timeout, conflict, too early, too many requests, and errors on the side of the server.
_TRANSIENT_STATUS = {408, 409, 425, 429, 500, 502, 503, 504, 529}


def post_json(url: str, payload: dict[str, Any]) -> Any:
    """Send a JSON request and return the JSON response; transient failures are retried with growing delays."""
    attempts = Retrying(
        retry=retry_if_exception_type(_TransientError), stop=stop_after_attempt(max_attempts), wait=_delay, reraise=True
    )
    try:
        return attempts(_post_once, url, json.dumps(payload).encode())
    except _TransientError as error:
        problem = " ".join(_without_key(str(error)).split())
        raise RemoteError(
            f"{public_url(url)} did not answer in {max_attempts} attempts; the last error: {problem}"
        ) from None


def public_url(url: str) -> str:
    """Return a URL without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


class _TransientError(Exception):
    """A failure that is worth a retry, with the delay that the server asks for."""

    def __init__(self, problem: str, retry_after: float = 0.0) -> None:
        super().__init__(problem)
        self.retry_after = retry_after


def _delay(state: RetryCallState) -> float:
    """Return the seconds to the next attempt: exponential backoff, or longer if the server asks for it."""
    error = state.outcome.exception() if state.outcome else None
    retry_after = error.retry_after if isinstance(error, _TransientError) else 0.0
    return float(max(retry_after, initial_delay * 2 ** (state.attempt_number - 1) * random.uniform(0.75, 1.25)))


def _post_once(url: str, body: bytes) -> Any:
    try:
        request = urllib.request.Request(url, body, _headers(url))
        with _opener.open(request, timeout=_TIMEOUT) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        problem = " ".join(f"{error.code} {error.reason}".split())
        with error:
            detail = " ".join(error.read()[:500].decode(errors="replace").split())
        if error.code not in _TRANSIENT_STATUS:
            raise RemoteError(f"{public_url(url)} refused the request: {problem}. {_without_key(detail)}") from None
        raise _TransientError(problem, _retry_after(error.headers.get("Retry-After"))) from None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        # No server at this address, a dropped connection, or an incomplete response.
        raise _TransientError(f"{type(error).__name__}: {error}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: they would send the API key to another host, and turn POST into GET."""

    def redirect_request(self, request: Any, file: Any, code: int, message: str, headers: Any, new: str) -> None:
        # urllib leaves the response to this method, so nothing else closes its socket.
        file.close()
        raise RemoteError(f"{public_url(request.full_url)} redirects to {public_url(new)}: use that address instead")


_opener = urllib.request.build_opener(_NoRedirect)


def _headers(url: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "nudgevec"}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
        if (urlsplit(url).hostname or "").endswith(".azure.com"):
            headers["api-key"] = key
    return headers


def _retry_after(header: str | None) -> float:
    try:
        return min(float(header or 0), _MAX_RETRY_AFTER)
    except ValueError:
        return 0.0


def _without_key(text: str) -> str:
    key = os.environ.get("OPENAI_API_KEY")
    return text.replace(key, "***") if key else text
