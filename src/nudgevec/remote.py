"""Talking to OpenAI-compatible servers: JSON there and back, patiently, without giving the key away."""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from nudgevec.errors import RemoteError

_TRIES = 7
_TIMEOUT = 120.0
# Too many requests, conflicts, time-outs and whatever is wrong over there may pass.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
first_pause = 0.5


def post(url: str, payload: dict[str, Any]) -> Any:
    """The answer of a server to a JSON request. What may pass is tried again, after longer and longer pauses."""
    body = json.dumps(payload).encode()
    problem = ""
    for turn in range(_TRIES):
        wait = first_pause * 2**turn * random.uniform(0.75, 1.25)
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
            wait = max(wait, _asked_to_wait(error.headers.get("Retry-After")))
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            # Nobody there, a dropped connection, half an answer.
            problem = f"{type(error).__name__}: {error}"
        if turn < _TRIES - 1:
            time.sleep(wait)
    raise RemoteError(f"{shown(url)} did not answer in {_TRIES} tries; the last time: {_without_key(problem)}")


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
