"""A server on loopback that speaks OpenAI's protocol, and fails on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np


def vector(text, dim=16):
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return np.random.default_rng(seed).standard_normal(dim).round(4).tolist()


@contextmanager
def running(troubles=(), dim=lambda n_requests: 16, chat=lambda prompt: prompt):
    """Serve embeddings and chat. The first requests meet ``troubles``, one each: a status code, "drop" (the
    connection), "half" (a response), "rate" (429 with Retry-After) or "redirect URL". Later requests succeed."""
    troubles = list(troubles)
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, body, dict(self.headers)))
            trouble = troubles.pop(0) if troubles else None
            if trouble == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if str(trouble).startswith("redirect"):
                self.send_response(302)
                self.send_header("Location", trouble.split()[1])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status = {None: 200, "half": 200, "rate": 429}.get(trouble, trouble)
            if "messages" in body:
                self._answer(status, {"choices": [{"message": {"content": chat(body["messages"][-1]["content"])}}]})
                return
            rows = [
                {"index": index, "embedding": vector(text, dim(len(seen)))} for index, text in enumerate(body["input"])
            ]
            answer = (
                {"data": rows[::-1]}
                if status == 200
                else {"error": {"message": f"no: {self.headers['Authorization']}"}}
            )
            self._answer(status, answer, trouble)

        def _answer(self, status, answer, trouble=None):
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            if trouble == "rate":
                self.send_header("Retry-After", "0.2")
            self.end_headers()
            self.wfile.write(payload[: len(payload) // 2] if trouble == "half" else payload)
            if trouble == "half":
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
