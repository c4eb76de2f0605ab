"""Servers that send nonsense, too much or too slowly, that echo the key, or that are not there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import collections_on_disk as disk
import servers
from fuzzing import VALUES, attempt, cases, damaged
from nudgevec import LabelLog, cli, http
from nudgevec.errors import OptionError, RemoteError, VectorError
from nudgevec.feedback import synthetic
from nudgevec.text.embedders import make_embedder
from nudgevec.text.embedders.cache import Cache
from nudgevec.text.embedders.openai import OpenAIEmbedder

KEY = "sk-s3cret/+key"
QUICK = http.Limits(initial_delay=0.001)


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NUDGEVEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def row(index, vector=(1.0, 2.0)):
    return {"index": index, "embedding": vector}


BAD_ANSWERS = [
    ([row(0)], "1 embeddings for 2 texts"),
    ([row(0), row(0)], "embeddings whose indices are not 0 to 1, each once"),
    ([row(1), row(2)], "embeddings whose indices are not 0 to 1, each once"),
    ([row(-1), row(0)], "embeddings whose indices are not 0 to 1, each once"),
    ([row("0"), row("1")], "embeddings whose indices are not 0 to 1, each once"),
    ([row(0), row(True)], "embeddings whose indices are not 0 to 1, each once"),
    ([row(0), row([1])], "a response without embeddings"),
    ([row(0), {"index": 1}], "a response without embeddings"),
    ([{"embedding": [1.0]}, {"embedding": [1.0]}], "a response without embeddings"),
    ([row(0), row(1, None)], "a response without embeddings"),
    ([row(0), row(1, [])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0, []), row(1, [])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, [1.0])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, ["1", "2"])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, [True, False])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, [None, 1.0])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, [[1.0], [2.0]])], "embeddings that are empty, of different lengths, or not numbers"),
    ([row(0), row(1, [0.0, 0])], "a vector of zeros"),
    ([row(0), row(1, [1e39, 1.0])], "a vector with NaN, or with numbers that are too large"),
    ([row(0), row(1, [float("nan"), 1.0])], "a vector with NaN, or with numbers that are too large"),
    ([row(0), row(1, [10**400, 1.0])], "numbers that are too large for float32"),
    ("none", "a response without embeddings"),
    (None, "a response without embeddings"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_embeddings_that_do_not_fit_are_refused_and_not_cached(monkeypatch, tmp_path, rows, message):
    answers = [json.dumps({"data": rows}).encode(), json.dumps({"data": [row(1, [3, 4]), row(0)]}).encode()]
    with servers.answering(lambda head, body: [servers.response(answers.pop(0))]) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        model = make_embedder("openai:m")
        with Cache(model.name) as cache:
            with pytest.raises(VectorError, match=f"^{url}/? sent {message}"):
                cache.get_or_embed(["a", "b"], model.embed, 8, "task")
            assert cache.get_or_embed(["a", "b"], model.embed, 8, "task").tolist() == [[1, 2], [3, 4]]


def test_any_answer_is_a_vector_or_one_line(monkeypatch):
    """Damaged answers, and good answers with one value of another type."""
    good = {"object": "list", "data": [row(0), row(1)], "model": "m"}
    now = [b""]
    with servers.answering(lambda head, body: [servers.response(now[0])]) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        model = OpenAIEmbedder("m", limits=QUICK._replace(max_attempts=1))
        for chance in cases(150):
            if chance.random() < 0.5:
                now[0] = damaged(json.dumps(good).encode(), chance)
            else:
                answer = json.loads(json.dumps(good))
                place, key = chance.choice(
                    [
                        (answer, "data"),
                        (answer["data"], 0),
                        (answer["data"][1], "index"),
                        (answer["data"][1], "embedding"),
                    ]
                )
                place[key] = chance.choice(VALUES)
                now[0] = json.dumps(answer).encode()
            vectors, problem = attempt(lambda: model.embed(["a", "b"]))
            assert problem or (vectors.dtype == np.float32 and vectors.shape[0] == 2 and vectors.any(axis=1).all())


def refused(url, **limits):
    with pytest.raises(RemoteError) as raised:
        http.post_json(url, {}, QUICK._replace(**limits))
    return str(raised.value)


def test_too_large_answers_are_not_read_to_their_end():
    sent = []

    def endless(head, body):
        yield b"HTTP/1.1 200 OK\r\n\r\n["
        while True:
            sent.append(1 << 16)
            yield b" " * (1 << 16)

    with servers.answering(endless) as url:
        problem = refused(url, max_answer=1 << 20)
        assert problem == f"{url} sent more than 1,048,576 bytes, which no answer to this request has"
    # What fits into the buffers of the connection may have been sent as well.
    assert sum(sent) < 100 << 20


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 404 No\r\n\r\n"])
def test_a_dripping_answer_is_given_up(start):
    """Each byte comes in time, the whole answer never."""

    def drip(head, body):
        yield start
        while True:
            time.sleep(0.05)
            yield b"x"

    requests = []
    with servers.answering(lambda head, body: requests.append(head) or drip(head, body)) as url:
        assert refused(url, total_timeout=0.5) == f"{url} did not send a whole answer within 0.5 seconds"
    assert len(requests) == 1, "a second attempt would take as long"


@pytest.mark.parametrize(
    "answer", [b"\xff\xfe\xfa", '{"café"}'.encode("latin-1"), b"[" * 100_000, b"9" * 5000, b"<html>", b""]
)
def test_answers_that_are_not_json_are_one_line(answer):
    with servers.answering(lambda head, body: [servers.response(answer)]) as url:
        assert f"{url} did not answer in 3 attempts; the last error: the answer is not JSON: " in refused(url)


@pytest.mark.parametrize("header", ["nan", "inf", "-5", "soon", "1e999"])
def test_odd_delays_are_not_waited_for(header):
    answers = [servers.response(b"", "503 Busy", f"Retry-After: {header}\r\n"), servers.response(b"{}")]
    with servers.answering(lambda head, body: [answers.pop(0)]) as url:
        assert http.post_json(url, {}, QUICK._replace(max_attempts=2)) == {}


PAD = "x" * 490
# Ways to write the key that are not how Python writes them.
ENCODED = {
    "upper case": KEY.upper(),
    "JSON": json.dumps(KEY).replace("/", "\\u002F").replace("+", "\\u002b"),
    "JSON in JSON": json.dumps(json.dumps(KEY).replace("/", "\\/").replace("+", "\\u002B")),
    "JavaScript": KEY.replace("/", "\\x2F").replace("+", "\\x2b"),
    "URL": "sk-s3cret%2f%2bkey",
    "URL in a URL": "sk%2Ds3cret%252F%252bkey",
    "every character of a URL": "".join(f"%{ord(character):02x}" for character in KEY),
    "form": "sk-s3cret%2F key",
    "HTML": "".join(f"&#{ord(character)};" for character in KEY),
    "hexadecimal HTML": "".join(f"&#x{ord(character):04X};" for character in KEY),
    "names of HTML": KEY.replace("/", "&sol;").replace("+", "&plus;"),
    "HTML in HTML": KEY.replace("/", "&amp;sol;").replace("+", "&amp;#43;"),
}
ECHOES = {
    **{
        name: lambda text=text: servers.response(f"{text} is unknown".encode(), "400 No")
        for name, text in ENCODED.items()
    },
    "detail": lambda: servers.response(f"{PAD}{KEY} is unknown".encode(), "401 Unauthorized"),
    "escaped detail": lambda: servers.response(json.dumps(KEY).replace("/", "\\/").encode(), "400 No"),
    "reason": lambda: servers.response(b"", f"403 {KEY} may not"),
    "retried reason": lambda: servers.response(b"", f"500 {KEY} broke it"),
    "redirect": lambda: servers.response(b"", "302 Found", f"Location: http://{KEY}@other/{KEY}?key={KEY}\r\n"),
    "quoted redirect": lambda: servers.response(b"", "302 Found", "Location: http://other/sk-s3cret%2F%2Bkey\r\n"),
    "status line": lambda: f"{KEY} what is this\r\n\r\n".encode(),
    "answer": lambda: servers.response(json.dumps({"error": "y" * 150 + KEY}).encode()),
}


@pytest.mark.parametrize("where", ECHOES)
def test_a_key_that_a_server_repeats_is_masked(monkeypatch, where, caplog):
    with servers.answering(lambda head, body: [ECHOES[where]()]) as url:
        # A gateway may have the key in its path.
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/{KEY}")
        model = OpenAIEmbedder("m", limits=QUICK)
        with pytest.raises((RemoteError, VectorError)) as raised:
            model.embed(["a"])
    shown = f"{raised.value} {caplog.text} {model.name}"
    assert "s3cret" not in shown
    assert "***" in shown
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "location",
    [
        f"http://u:{KEY}@127.0.0.1:1/",  # the host ends at the slash of the key
        f"http://{KEY}@127.0.0.1:1/",
        "http://u:1/+key@127.0.0.1/",
        "http://[::1",
        f"http://[{KEY}",
        f"//[{KEY}",
        f"http://host:{KEY}/",
        f"http://host:99999/{KEY}",
        f"file:///{KEY}",
        "http://[v1.x]:y/",
    ],
)
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_malformed_redirects_are_one_line_without_a_part_of_the_key(location, code):
    answer = servers.response(b"", f"{code} Moved", f"Location: {location}\r\n")
    with servers.answering(lambda head, body: [answer]) as url:
        problem = refused(url)
        assert problem.startswith(f"{url} redirects to ")
    assert "s3cret" not in problem
    assert "+key" not in problem


def test_a_malformed_proxy_is_one_line_without_its_password(tmp_path):
    disk.beir(tmp_path / "data")
    environment = {**os.environ, "http_proxy": "http:/me:hunter2@host", "no_proxy": ""}
    environment["OPENAI_BASE_URL"] = "http://192.0.2.1/v1"
    command = [sys.executable, "-m", "nudgevec", "evaluate", str(tmp_path / "data"), "--embedder", "openai:m"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    problem = "the answer or the address of a proxy is malformed (ValueError)"
    assert done.stderr == f"nudgevec: http://192.0.2.1/v1/embeddings: {problem}\n"


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "sk-clé"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(OptionError, match="OPENAI_API_KEY has characters that a key cannot have") as raised:
        http.post_json("http://127.0.0.1:9", {})
    assert "sk-" not in str(raised.value)


def test_white_space_around_the_key_is_ignored(monkeypatch):
    heads = []
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    with servers.answering(lambda head, body: [heads.append(head) or servers.response(b"{}")]) as url:
        http.post_json(url, {})
    assert f"Authorization: Bearer {KEY}\r\n" in heads[0]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://me:hunter2@host:8000/v1", "holds a user, a password or a query: put the key into OPENAI_API_KEY"),
        ("https://hunter2@host/v1", "holds a user, a password or a query"),
        ("http://me:hunter2/1@host/v1", "holds a user, a password or a query"),
        ("http://host/v1?key=hunter2", "holds a user, a password or a query"),
        ("localhost:8000/v1", "has no scheme: write http://localhost:8000/v1 or https://localhost:8000/v1"),
        ("api.example.com/v1", "has no scheme: write http://api.example.com/v1"),
        ("ftp://host/v1", "is not the address of a server, like http://host:8000/v1"),
        ("http:///v1", "is not the address of a server"),
        ("http://host:port/v1", "is not the address of a server"),
        ("http://[::1/v1", "is not the address of a server"),
        ("http://ho st/v1", "is not the address of a server"),
        ("http://host/\r\nHost: evil", "is not the address of a server"),
    ],
)
def test_addresses_that_are_wrong_are_explained(monkeypatch, url, message):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(OptionError, match=r"^OPENAI_BASE_URL ") as raised:
        make_embedder("openai:m")
    assert message in str(raised.value)
    with pytest.raises(OptionError, match="--llm") as raised:
        synthetic.Plan(url, "m")
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


def nobody():
    """Return the address of a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


@pytest.mark.parametrize(("key", "state"), [(KEY, "set"), ("", "not set")])
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_nobody_there_is_one_line_after_few_attempts(tmp_path, host, key, state):
    disk.beir(tmp_path / "data")
    url = nobody().replace("127.0.0.1", host)
    environment = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key}
    command = [sys.executable, "-m", "nudgevec", "evaluate", str(tmp_path / "data"), "--embedder", "openai:m"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert f"{url}/embeddings did not answer in 3 attempts; the last error: " in lines[-1]
    assert lines[-1].endswith(f"OPENAI_API_KEY is {state}")
    assert [line for line in lines if "attempt 2 of 3 in 0." in line], "retries are shown"
    assert len(lines) == 3


def test_lone_surrogates_of_a_language_model_do_not_lose_a_batch(tmp_path):
    texts = ["coffee beans", "bicycle chain", "garden roses", "savings account"]
    prompts = iter(texts)
    content = json.dumps({"choices": [{"message": {"content": "QUERY \ud83d"}}]})

    def answer(head, body):
        return [servers.response(content.replace("QUERY", next(prompts)).encode())]

    vectors = make_embedder("static").embed(texts)
    with servers.answering(answer) as url, LabelLog(tmp_path / "log") as log:
        plan = synthetic.Plan(url, "m", top=1)
        ids = [f"d{number}" for number in range(len(texts))]
        embed = make_embedder("static").embed
        outcome = synthetic.synthesize(plan, log, ids, texts, vectors, embed, range(len(texts)))
        assert (outcome.kept, outcome.documents) == (4, 4)
        assert [event.query for event in log] == [f"{text} ?" for text in texts]


def test_a_server_of_the_command_line_needs_a_scheme(tmp_path, capsys):
    disk.beir(tmp_path / "data")
    command = ["synthesize", str(tmp_path / "data"), "--labels", str(tmp_path / "log"), "--model", "m"]
    assert cli.main([*command, "--llm", "localhost:8000/v1"]) == 1
    assert "has no scheme: write http://localhost:8000/v1" in capsys.readouterr().err
    assert not (tmp_path / "log").exists()
