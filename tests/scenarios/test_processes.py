"""The processes of one service as a user meets them: started, refused, hurt and stopped."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import redis

from abound.processes import lifetime
from abound.processes.embedded_store import EmbeddedStore
from benchmarks.serving import Serving
from tests.support.job_worker import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def one(serving, part):
    """The pid of the first process of the service whose command line contains ``part``."""
    return next(pid for pid in serving.pids() if part in command_of(pid))


def status(serving, path, **request):
    """The status of an answer on a new connection; None when there is none."""
    try:
        if request:
            return httpx.post(f"{serving.url}{path}", json=request, timeout=20).status_code
        return httpx.get(f"{serving.url}{path}", timeout=20).status_code
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    work = tmp_path_factory.mktemp("serving")
    with Serving(work / "data", "--processes", "2", "--no-worker", output=work / "output") as service:
        service.until_ready()
        yield service
        assert service.stop() == 0


def test_an_address_that_others_reach_without_a_key(tmp_path):
    command = [sys.executable, "-m", "abound", "serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "--insecure" in ended.stderr


def test_a_replica_that_is_killed_is_replaced(serving):
    first = one(serving, "abound.api.server")
    assert until(lambda: status(serving, "/learn", text="wheat", labels=["grain"]) == 200)
    os.kill(first, signal.SIGKILL)
    assert until(lambda: lifetime.start_time_of(first) is None)
    assert until(lambda: len([pid for pid in serving.pids() if "abound.api.server" in command_of(pid)]) == 2)
    assert until(lambda: status(serving, "/readyz") == 200)
    assert serving.process.poll() is None


def test_classify_outlives_the_store_which_comes_back(serving):
    assert until(lambda: status(serving, "/learn", text="wheat", labels=["grain"]) == 200)
    store = one(serving, "valkey-server")
    os.kill(store, signal.SIGKILL)
    assert until(lambda: lifetime.start_time_of(store) is None)
    assert {status(serving, "/classify", text="wheat") for _ in range(20)} == {200}
    assert until(lambda: status(serving, "/learn", text="wheat", labels=["grain"]) == 200)
    answer = httpx.post(f"{serving.url}/classify", json={"text": "wheat"}, timeout=60)
    assert answer.json()["labels"][0]["label"] == "grain"


def test_the_port_is_shared_by_the_replicas(serving):
    def process():
        with httpx.Client(base_url=serving.url, timeout=60) as client:
            return client.get("/models/default/stats").json()["replicas"]

    assert until(lambda: len({replica["pid"] for replica in process() if replica["ready"]}) >= 2)


def test_the_console_says_ready_only_while_readyz_does(tmp_path):
    """Of a log that is damaged while the service runs, and of one that is when it starts."""
    data, output = tmp_path / "data", tmp_path / "output"
    with Serving(data, "--no-worker", output=output) as service:
        service.until_ready()
        assert until(lambda: f"ready on {service.url}" in output.read_text())
        assert status(service, "/learn", text="wheat", labels=["grain"]) == 200
        with redis.Redis.from_url(EmbeddedStore(data).url) as store:
            [log] = store.keys("abound:{default:*}:log")
            store.xadd(log, {"e": b"not an entry", "c": b"00000000"})
        assert until(lambda: status(service, "/readyz") == 503)
        assert until(lambda: "no replica is ready: " in output.read_text())
        assert service.stop() == 0
    output.write_text("")
    with Serving(data, "--no-worker", output=output) as service:
        assert until(lambda: "no replica is ready: " in output.read_text())
        assert status(service, "/readyz") == 503
        assert "cannot be applied" in output.read_text()
        assert "ready on" not in output.read_text()


def test_a_request_in_flight_is_answered_before_the_end(tmp_path):
    with Serving(tmp_path / "data", "--no-worker", output=tmp_path / "output") as service:
        service.until_ready()
        pids = service.pids()
        at = ("127.0.0.1", httpx.URL(service.url).port)
        body = b'{"text": "wheat", "labels": ["grain"]}'
        with socket.create_connection(at, 20) as idle, socket.create_connection(at, 20) as connection:
            head = b"POST /learn HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body[:10])
            assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
            service.process.send_signal(signal.SIGTERM)
            assert idle.recv(1) == b""  # closed, since the replica ends
            connection.sendall(body[10:])
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert service.process.wait(60) == 0
        assert [pid for pid in pids if lifetime.start_time_of(pid) is not None] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_the_middle_of_the_start(tmp_path, number):
    with Serving(tmp_path / "data", output=tmp_path / "output") as service:
        until(lambda: len(service.pids()) > 2, 10)
        pids = service.pids()
        service.process.send_signal(number)
        assert service.process.wait(60) == 0
        assert [pid for pid in pids if lifetime.start_time_of(pid) is not None] == []
    assert "stopped" in (tmp_path / "output").read_text()


def test_a_second_signal_ends_it_at_once(tmp_path):
    environment = os.environ | {"ABOUND_DRAIN_SECONDS": "500"}
    with Serving(tmp_path / "data", "--no-worker", output=tmp_path / "output", environment=environment) as service:
        service.until_ready()
        service.process.send_signal(signal.SIGTERM)
        assert until(lambda: status(service, "/readyz") == 503)
        assert status(service, "/classify", text="wheat") == 200  # draining: not ready, and still answering
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
