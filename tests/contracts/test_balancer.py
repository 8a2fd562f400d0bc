"""What the compose file's load balancer sends again when one of two replicas is bad, and how long it waits for one."""

import base64
import contextlib
import hashlib
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import composed
from benchmarks.serving import free_port
from tests.support import stand_in
from tests.support.job_worker import until

ROOT = Path(__file__).parents[2]
ASKED = 24
"""Requests of a case; each goes to the bad one of two first, or does not."""
NO_ANSWER = 0
"""How a balancer ends a kept connection when the replica broke off."""
PATIENCE = 2.0
"""Seconds that the balancer waits, in the test of that, for what takes no time."""


class Replica(ThreadingHTTPServer):
    """A server that answers, or closes without an answer, or is full, or takes its time, or hangs once it is asked.

    One that holds its requests answers them, unlike its checks, only when it is resumed.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.how = "well"
        self.ready = True
        self.asked = 0
        self.hung, self.resumed = threading.Event(), threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class Handler(stand_in.JsonHandler):
    protocol_version = "HTTP/1.1"
    server: Replica

    def do_GET(self) -> None:
        if self.path != "/readyz" or self.server.hung.is_set():
            self._take_time()
        self.answer(b"", 200 if self.server.ready else 503)

    def do_POST(self) -> None:
        if "content-length" in self.headers:
            self.rfile.read(int(self.headers["content-length"]))
        else:
            assert [self.rfile.readline() for _ in range(2)] == [b"3\r\n", b"one\r\n"]
            self.close_connection = True
        self.server.asked += 1
        self._take_time()
        if self.server.how == "closes":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.answer(b"", 503 if self.server.how == "is full" else 200)

    do_PUT = do_POST

    def _take_time(self) -> None:
        if self.server.how == "takes its time":
            time.sleep(4 * PATIENCE)
        if self.server.how == "hangs":
            self.server.hung.set()
        if self.server.how in ("hangs", "holds"):
            self.server.resumed.wait()


@contextlib.contextmanager
def running() -> Iterator[tuple[Replica, Replica]]:
    good, bad = Replica(), Replica()
    with stand_in.running(good), stand_in.running(bad):
        try:
            yield good, bad
        finally:
            good.resumed.set()
            bad.resumed.set()


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[Replica, Replica]]:
    with running() as both:
        yield both


@pytest.fixture(scope="module")
def url(replicas: tuple[Replica, Replica], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with balanced(replicas, tmp_path_factory.mktemp("balancer")) as url:
        yield url


@contextlib.contextmanager
def balanced(replicas, directory, *changes, measures=0, checked=()) -> Iterator[str]:
    """The balancer with the shipped configuration, with other addresses and these changes; its URL.

    A replica that is not ``checked`` is not down when this process is too busy to answer a check in time.
    """
    program = composed.program()
    if program is None:
        pytest.skip("haproxy is not installed")
    text, port = (ROOT / "docker" / "haproxy.cfg").read_text(), free_port()
    servers = "\n    ".join(
        f"server {name} 127.0.0.1:{one.server_port}{'' if name in checked else ' no-check'}"
        for name, one in zip(("good", "bad"), replicas, strict=True)
    )
    for there, here, times in (
        ("bind :8000", f"bind 127.0.0.1:{port}", 1),
        ("bind :8405", f"bind 127.0.0.1:{measures or free_port()}", 1),
        ("server-template replica 1-16 replica:8000", servers, 2),
        (" init-addr none resolvers names", "", 2),
        *changes,
    ):
        assert text.count(there) == times, there
        text = text.replace(there, here)
    configuration = directory / "haproxy.cfg"
    configuration.write_text(text)
    process = subprocess.Popen([program, "-db", "-q", "-f", str(configuration)], stdout=subprocess.DEVNULL)
    try:
        until_it_listens(f"http://127.0.0.1:{port}", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def until_it_listens(url: str, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert process.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/readyz", timeout=60).status_code == 200
        return False

    until(listens)


def statuses(url: str, path: str, characters: int, headers: dict[str, str] | None = None) -> Counter[int]:
    body = {"text": "a" * characters}

    def status(client: httpx.Client) -> int:
        try:
            return client.post(path, json=body, headers=headers).status_code
        except httpx.RemoteProtocolError:
            return NO_ANSWER

    with httpx.Client(base_url=url, timeout=60) as client:
        return Counter(status(client) for _ in range(ASKED))


@pytest.mark.parametrize("characters", [1, 50_000])
@pytest.mark.parametrize(
    ("path", "how"), [("/classify", "closes"), ("/models/some/classify", "is full"), ("/learn", "is full")]
)
def test_another_one_answers(url: str, replicas: tuple[Replica, Replica], path: str, how: str, characters: int) -> None:
    _, bad = replicas
    bad.how, before = how, bad.asked
    assert statuses(url, path, characters) == {200: ASKED}
    assert bad.asked > before, "the bad one was never asked, so nothing was sent again"


def test_the_page_that_asks_again_while_nobody_is_there_may_run_its_script() -> None:
    text = (ROOT / "docker" / "haproxy.cfg").read_text()
    [script] = re.findall("<script>(.*)</script>", text)
    assert "location.reload()" in script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


@pytest.mark.parametrize(("path", "how"), [("/learn", "closes"), ("/jobs", "is full")])
def test_what_may_have_been_done_is_not_sent_again(url, replicas, path, how):
    """A 503 may be of a store that went away meanwhile: a second job, or a second key, is nothing to make."""
    good, bad = replicas
    bad.how, before = how, good.asked + bad.asked
    ended = statuses(url, path, 1)
    assert ended.keys() <= {200, 502, 503, NO_ANSWER}
    assert 0 < ended[200] < ASKED
    assert good.asked + bad.asked == before + ASKED
    if path == "/jobs":
        assert statuses(url, path, 1, {"Idempotency-Key": "one"}) == {200: ASKED}


def together(url: str, path: str) -> Counter[int]:
    """How requests end that are sent at the same time, each on a connection of its own."""
    with ThreadPoolExecutor(ASKED) as pool:
        return Counter(answer.status_code for answer in pool.map(lambda _: waited_for(url, "POST", path), range(ASKED)))


@pytest.mark.parametrize(("path", "outcomes"), [("/classify", {200}), ("/learn", {200, 502})])
def test_nobody_waits_for_a_replica_that_hangs(path: str, outcomes: set[int], tmp_path: Path) -> None:
    """It hangs until the end; only the checks can tell that before ``timeout server``, which would be a 504."""
    with running() as (good, bad), balanced((good, bad), tmp_path, checked=("bad",)) as url:
        bad.how = "hangs"
        ended = together(url, path)
        assert ended.keys() == outcomes
        assert bad.asked > 0, "the bad one was never asked"
        asked = bad.asked
        assert together(url, path) == {200: ASKED}
        assert bad.asked == asked, "it was asked while it was down"


def test_a_replica_that_drains_gets_nothing_new_and_ends_what_it_has(tmp_path: Path) -> None:
    measures = free_port()
    with (
        running() as (good, bad),
        balanced((good, bad), tmp_path, measures=measures, checked=("bad",)) as url,
        ThreadPoolExecutor(1) as pool,
    ):
        bad.how = good.how = "holds"
        ended = pool.submit(together, url, "/learn")
        until(lambda: good.asked + bad.asked == ASKED)
        assert bad.asked > 0
        bad.ready = False
        is_down = re.compile(r'^haproxy_server_status\{proxy="rest",server="bad",state="UP"\} 0$', re.MULTILINE)
        until(lambda: is_down.search(httpx.get(f"http://127.0.0.1:{measures}/metrics", timeout=60).text))
        for one in (good, bad):
            one.resumed.set()
        assert ended.result() == {200: ASKED}
        asked = bad.asked
        assert together(url, "/learn") == {200: ASKED}
        assert bad.asked == asked


def test_pages_of_others_are_answered_only_once_the_replicas_ask_for_keys(replicas, tmp_path, monkeypatch):
    headers = {"Host": "abound.example", "Origin": "https://abound.example", "Accept-Language": "fi"}
    for insecure, status in ((None, 403), ("true", 403), ("false", 200)):
        if insecure is not None:
            monkeypatch.setenv("ABOUND_INSECURE", insecure)
        with balanced(replicas, tmp_path) as url:
            assert httpx.get(f"{url}/readyz", headers=headers, timeout=60).status_code == status, insecure
            image = {"Host": "localhost", "Accept-Language": "fi", "Sec-Fetch-Site": "cross-site"}
            assert httpx.get(f"{url}/models", headers=image, timeout=60).status_code == status, insecure
            assert httpx.get(f"{url}/readyz", headers=image, timeout=60).status_code == 200, insecure


def test_a_body_in_chunks_is_not_waited_for(url: str, replicas: tuple[Replica, Replica]) -> None:
    """A stream is answered while it is sent: its first piece gets to a replica, and the answer back, before its end."""
    _, bad = replicas
    bad.how = "well"
    host, port = url.removeprefix("http://").split(":")
    head = "POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as wire:
        wire.sendall(f"{head}3\r\none\r\n".encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 200 ")


def waited_for(url: str, method: str, path: str) -> httpx.Response:
    """The answer to a request without a body: it is sent in one piece, however busy this process is."""
    with httpx.Client(base_url=url, timeout=60) as client:
        return client.request(method, path)


def test_what_takes_long_is_waited_for_and_what_does_not_is_told_apart(replicas, tmp_path):
    """Both replicas take far longer than the balancer waits for most requests."""
    long = "PUT /datasets/some?filename=some.txt", "PUT /models/some/import", "PUT /models/some/%69mport"
    long += "POST /models/some/versions", "POST /models/some/activate", "POST /models/some/snapshots"
    long += "GET /models/some/export", "GET /models/some/versions/0123456789abcdef/export"
    others = "GET /models/some/versions", "POST /classify", "POST /learn", "PUT /models/activate", "POST /jobs"
    changes = [
        (f"timeout {which}s", f"timeout {which.split()[0]} {PATIENCE * 1000:.0f}ms", 1)
        for which in ("server 60", "server 20", "client 75")
    ]
    for one in replicas:
        one.how, one.asked = "takes its time", 0
    try:
        with balanced(replicas, tmp_path, *changes) as url, ThreadPoolExecutor(len(long + others)) as pool:
            answers = list(pool.map(lambda asked: waited_for(url, *asked.split()), long + others))
    finally:
        for one in replicas:
            one.how = "well"
    sent = [asked for asked in long + others if not asked.startswith("GET")]
    assert sum(one.asked for one in replicas) == len(sent), "what took too long was sent again"
    assert [answer.status_code for answer in answers] == [200] * len(long) + [504] * len(others)
    for answer in answers[len(long) :]:
        problem = answer.json()
        assert problem["type"] == "/problems/outcome-unknown"
        assert "learn" not in problem["detail"], "it is told of every kind of request"
