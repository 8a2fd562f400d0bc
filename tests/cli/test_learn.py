"""What ``abound learn`` says of a stream that ends before its file does, and when it sends what it was given."""

import fcntl
import functools
import json
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import httpx
import pytest

import abound.client
from abound.cli.learn_classify import StreamEnded, learn
from abound.client import Client
from tests.client.mock_service import AWAY, Script, body
from tests.support import stand_in


@pytest.mark.parametrize("last", [AWAY, 401])
def test_a_request_that_was_learned_in_part(last, tmp_path, monkeypatch):
    busy = '{"title": "X", "status": 429, "retry_after": 0}'
    answers = body(f'{{"applied": true}}\n{busy}\n{{"applied": true}}\n{busy}\n'), last
    assert learning(answers, tmp_path, monkeypatch).endswith(
        "1 instance done, 0 refused; 3 more may or may not have been processed, from f.jsonl: line 2 on"
    )


@pytest.mark.parametrize(("status", "taken"), [(401, False), (404, False), (500, True), (502, True), (504, True)])
def test_a_request_that_was_refused_as_a_whole(status, taken, tmp_path, monkeypatch):
    unknown = "0 instances done, 0 refused; 4 more may or may not have been processed, from f.jsonl: line 1 on"
    assert learning([status], tmp_path, monkeypatch).endswith(unknown if taken else "nothing was processed")


def learning(answers, tmp_path, monkeypatch) -> str:
    """What the command says of four lines, where requests get these answers, and the last one ever after."""
    script = Script(200, *answers)  # the model is asked for first

    def client(url: str, key: str | None) -> Client:
        return Client(url, transport=httpx.MockTransport(script), pause=lambda seconds: None)

    monkeypatch.setattr(abound.client, "Client", client)
    monkeypatch.chdir(tmp_path)
    Path("f.jsonl").write_text('{"text": "a", "labels": ["b"]}\n' * 4)
    with pytest.raises(StreamEnded) as stopped:
        learn(["f.jsonl"])
    return str(stopped.value)


class Service(ThreadingHTTPServer):
    """Takes a stream: it keeps the texts of each request, and answers while ``answering`` is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: SimpleQueue[list[str]] = SimpleQueue()
        self.answering = threading.Event()
        self.answering.set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(stand_in.JsonHandler):
    server: Service

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        lines = self.rfile.read(int(self.headers["content-length"])).splitlines()
        answers = self.server.answering.is_set()  # as it was when the request came
        self.server.requests.put([json.loads(line)["text"] for line in lines])
        if not answers:
            self.server.answering.wait()
        self.answer(b'{"applied": true, "rank": 1}\n' * len(lines))


@pytest.fixture
def taking() -> Iterator[Service]:
    server = Service()
    with stand_in.running(server):
        yield server
        server.answering.set()


@pytest.fixture
def piped(taking: Service) -> Iterator[subprocess.Popen[str]]:
    """``abound learn -`` that has begun, with standard input open."""
    words = [sys.executable, "-m", "abound", "learn", "-", "--url", taking.url]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell may start tests without it
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, preexec_fn=heard
    )
    with process:
        yield process
        process.kill()


def give(process: subprocess.Popen[str], *texts: str) -> None:
    """Write instances, and wait until they are read."""
    pipe: IO[str] | None = process.stdin
    assert pipe is not None
    for text in texts:
        pipe.write(json.dumps({"text": text, "labels": ["x"]}) + "\n")
    while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"0000"))[0]:
        assert process.poll() is None
        time.sleep(0.01)


def test_what_a_pipe_gave_is_sent_while_it_stays_silent(taking: Service, piped: subprocess.Popen[str]) -> None:
    give(piped, "a", "b")
    sent = taking.requests.get(timeout=30)
    give(piped, "c")
    while len(sent) < 3:
        sent += taking.requests.get(timeout=30)
    assert sent == ["a", "b", "c"]
    assert piped.stdin is not None
    piped.stdin.close()
    assert piped.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stream_that_is_stopped_names_what_it_has_read(taking, piped, number):
    give(piped, "a")
    taking.requests.get(timeout=30)
    taking.answering.clear()
    give(piped, "b", "c")
    taking.requests.get(timeout=30)  # it has no answer
    give(piped, "d", "e")
    piped.send_signal(number)
    _, said = piped.communicate(timeout=30)
    assert piped.returncode == 1
    expected = r"interrupted; (\d+) instances? done, 0 refused; (\d+) more may .*, from standard input: line (\d+) on\n"
    found = re.search(expected, said)
    assert found, said
    done, unknown, line = map(int, found.groups())
    assert (done, line) == (1, 2)
    assert unknown in (2, 3, 4)  # d and e may have been read just in time, or not
