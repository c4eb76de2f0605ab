"""Talking to OpenAI-compatible servers: JSON there and back, patiently, without giving the key away."""

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

_TRIES = 7
_TIMEOUT = 120.0
# Too many requests, conflicts, time-outs and whatever is wrong over there may pass.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
first_pause = 0.5


def post(url: str, payload: dict[str, Any]) -> Any:
    """The answer of a server to a JSON request. What may pass is tried again, after longer and longer pauses."""
    tries = Retrying(
        retry=retry_if_exception_type(_PassingError), stop=stop_after_attempt(_TRIES), wait=_pause, reraise=True
    )
    try:
        return tries(_post_once, url, json.dumps(payload).encode())
    except _PassingError as error:
        problem = _without_key(str(error))
        raise RemoteError(f"{shown(url)} did not answer in {_TRIES} tries; the last time: {problem}") from None


class _PassingError(Exception):
    """A failure that may pass, and how long the server asks to wait."""

    def __init__(self, problem: str, wait: float = 0.0) -> None:
        super().__init__(problem)
        self.wait = wait


def _pause(state: RetryCallState) -> float:
    """Return how long to wait before the next try: twice as long each time, or as the server asks."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait if isinstance(error, _PassingError) else 0.0
    return float(max(asked, first_pause * 2 ** (state.attempt_number - 1) * random.uniform(0.75, 1.25)))


def _post_once(url: str, body: bytes) -> Any:
    try:
        request = urllib.request.Request(url, body, _headers(url))
        with _opener.open(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        problem = f"{error.code} {error.reason}"
        with error:
            detail = error.read()[:500].decode(errors="replace").strip()
        if error.code not in _PASSING:
            raise RemoteError(f"{shown(url)} refused: {problem}. {_without_key(detail)}") from None
        raise _PassingError(problem, _asked_to_wait(error.headers.get("Retry-After"))) from None
    except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
        # Nobody there, a dropped connection, half an answer.
        raise _PassingError(f"{type(error).__name__}: {error}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key to another host, and turn the question into another one."""

    def redirect_request(self, request: Any, file: Any, code: int, message: str, headers: Any, new: str) -> None:
        raise RemoteError(f"{shown(request.full_url)} points elsewhere, to {shown(new)}: use that address")


_opener = urllib.request.build_opener(_NoRedirect)


def _headers(url: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "User-Agent": "nudgevec"}
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
        if (urlsplit(url).hostname or "").endswith(".azure.com"):
            headers["api-key"] = key
    return headers


def _asked_to_wait(header: str | None) -> float:
    try:
        return min(float(header or 0), 60.0)
    except ValueError:
        return 0.0


def shown(url: str) -> str:
    """The address without a user, a password or a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _without_key(text: str) -> str:
    key = os.environ.get("OPENAI_API_KEY")
    return text.replace(key, "***") if key else text
