"""Damaged answers of embedding servers are refused with one of our errors, or are vectors that can be used."""

from __future__ import annotations

import json
import socketserver
import threading

import numpy as np
import pytest

from fuzzing import VALUES, attempt, cases, damaged
from nudgevec import http
from nudgevec.text.embedders.openai import OpenAIEmbedder

TEXTS = ["one", "two", "three"]
VECTORS = [[1.0, 0.5, -2.0], [0.25, 3.0, 1.0], [-1.0, 1.0, 0.125]]


@pytest.fixture
def server(monkeypatch):
    """A server whose attribute ``answer`` is what it sends, byte for byte, before it closes the connection."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            size = 0
            while (line := self.rfile.readline()).strip():
                name, _, value = line.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            self.rfile.read(size)
            self.wfile.write(self.server.answer)

    class Server(socketserver.ThreadingTCPServer):
        answer = b""

        def handle_error(self, *_):
            """The client may have left."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_address[1]}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        yield server
        server.shutdown()
        thread.join()


def rows():
    return [{"index": index, "embedding": vector} for index, vector in enumerate(VECTORS)]


def response(body):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def embed():
    """Embed the texts; what comes back must be vectors, or one of our errors without the key."""
    vectors, problem = attempt(lambda: OpenAIEmbedder("model", limits=http.Limits(max_attempts=1)).embed(TEXTS))
    if problem is None:
        assert vectors.shape[0] == len(TEXTS)
        assert vectors.ndim == 2
        assert vectors.dtype == np.float32
    else:
        assert "sk-secret" not in problem
    return vectors, problem


def test_a_damaged_response_is_refused_or_works(server):
    good = response(json.dumps({"data": rows()}).encode())
    server.answer = good
    assert embed()[0].tolist() == VECTORS
    refused = 0
    for chance in cases(400):
        server.answer = damaged(good, chance)
        refused += embed()[1] is not None
    assert refused > 100


def test_a_damaged_body_is_refused_or_works(server):
    body, refused = json.dumps({"data": rows()}).encode(), 0
    for chance in cases(400):
        server.answer = response(damaged(body, chance))
        refused += embed()[1] is not None
    assert refused > 100


def test_a_body_with_values_of_every_type_is_refused_or_works(server):
    for chance in cases(400):
        data = rows()
        match chance.randrange(4):
            case 0:
                data = chance.choice(VALUES)
            case 1:
                data[chance.randrange(3)] = chance.choice(VALUES)
            case 2:
                data[chance.randrange(3)][chance.choice(["index", "embedding"])] = chance.choice(VALUES)
            case _:
                data[chance.randrange(3)]["embedding"][chance.randrange(3)] = chance.choice(VALUES)
        server.answer = response(json.dumps({"data": data}).encode())
        embed()
