"""A server on loopback that speaks OpenAI's protocol, and fails on demand."""

from __future__ import annotations

import hashlib
import json
import re
import socketserver
import threading
from contextlib import contextmanager, suppress
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
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def answering(answer):
    """Serve HTTP responses as bytes: ``answer(head, body)`` yields those of a request, to be sent one by one."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = self.rfile.readline()
                if not line:
                    return
                head += line
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            body = self.rfile.read(length)
            with suppress(ConnectionError):
                for chunk in answer(head.decode(), body):
                    if stopped.is_set():
                        return
                    self.wfile.write(chunk)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    stopped = threading.Event()
    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def response(body, status="200 OK", headers=""):
    """Return an HTTP response as bytes."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body
