"""The parent's parts: the port, what is answered on it before a replica is there, the children."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from abound.api.problems import KINDS
from abound.processes import child as child_module
from abound.processes import lifetime, memory
from abound.processes.child import MAX_CRASHES, MAX_REFUSALS, Child
from abound.processes.startup_page import StartupServer, StartupStatus, listen, url_of
from abound.processes.status_pipe import EXIT_REFUSED, Report, Reporter
from abound_core.errors import CannotStart, NotReady
from tests.support.replicas import until

PROGRAM = "tests.support.child_program"


def test_a_port_in_use_is_refused_in_words():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port} of 127.0.0.1 is in use by another program"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "192.0.2.1", "a" * 300])
def test_a_host_that_is_not_this_machine_is_refused(host):
    with pytest.raises(CannotStart, match=host[:20]):
        listen(host, 0)


@pytest.fixture
async def door():
    with listen("127.0.0.1", 0) as listening:
        keeper = StartupServer(listening, lambda: StartupStatus("replaying the log", 0.25))
        await keeper.open()
        async with httpx.AsyncClient(base_url=url_of(listening), timeout=60) as client:
            yield keeper, client
        keeper.close()


async def test_alive_but_not_ready(door):
    _, client = door
    alive = await client.get("/livez")
    assert (alive.status_code, alive.json()) == (200, {"status": "alive"})
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert ready.headers["content-type"] == "application/problem+json"
    assert ready.headers["retry-after"] == "1"
    problem = ready.json()
    kind = KINDS[NotReady]
    assert (problem["type"], problem["title"]) == (f"/problems/{kind.slug}", kind.title)
    assert (problem["status"], problem["stage"], problem["progress"]) == (503, "replaying the log", 0.25)
    assert problem["retry_after"] == 1.0
    assert "replaying the log" in problem["detail"]
    assert problem["request_id"] != (await client.get("/readyz")).json()["request_id"]


async def test_nonsense_is_hung_up_on_and_others_are_answered(door):
    _, client = door
    port = client.base_url.port
    for nonsense in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" + b"\r\n\r\n", b"x" * 100_000):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert (await client.get("/livez")).status_code == 200


async def test_closed_it_leaves_connections_to_whoever_accepts_next(door):
    keeper, client = door
    assert (await client.get("/livez")).status_code == 200
    keeper.close()
    waiting = asyncio.create_task(client.get("/livez"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await keeper.open()
    assert (await waiting).status_code == 200


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(child_module, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(child_module, "LONGEST_DELAY", 0.05)
    assert child_module.restart_delay(10_000) == 0.05


class Kept:
    """A child with the words it said, and a way to wait for what it reports."""

    def __init__(self, *words, essential=True):
        self.said = []
        self.changes = asyncio.Condition()
        told = {"changed": lambda: asyncio.ensure_future(self._tell()), "say": self.said.append}
        self.child = Child("child", PROGRAM, words, os.environ, (), essential=essential, **told)

    async def _tell(self):
        async with self.changes:
            self.changes.notify_all()

    async def until_said(self, n):
        await until(lambda: len(self.said) >= n, 120)

    async def until(self, condition):
        async with asyncio.timeout(120), self.changes:
            await self.changes.wait_for(lambda: condition(self.child))

    async def __aenter__(self):
        self.task = asyncio.create_task(self.child.run())
        return self

    async def __aexit__(self, *_):
        await self.child.stop(30)
        await self.task


async def test_a_child_reports_and_is_stopped():
    async with Kept("polite", "stage=loading", "warm", "ready", "sleep=60") as kept:
        await kept.until(lambda child: child.ready)
        assert (kept.child.stage, kept.child.progress) == ("ready", 1.0)
        assert kept.child.was_warm.is_set()
        pid = kept.child.pid
    assert not kept.child.ready
    assert kept.child.pid is None
    assert lifetime.start_time_of(pid) is None
    assert kept.said == []


async def test_a_child_that_does_not_listen_is_killed():
    kept = Kept("deaf", "ready", "sleep=60")
    keeping = asyncio.create_task(kept.child.run())
    await kept.until(lambda child: child.ready)
    await kept.child.stop(0.2)
    await keeping
    assert kept.said == ["child: did not end within 0.2 s and is killed"]


async def test_a_child_that_dies_is_started_again():
    async with Kept("ready", "sleep=60") as kept:
        await kept.until(lambda child: child.ready)
        first = kept.child.pid
        kept.child.signal(signal.SIGKILL)
        await kept.until(lambda child: child.last_error is not None)
        assert kept.child.last_error == "it was ended by SIGKILL"
        await kept.until(lambda child: child.ready and child.pid != first)
        assert kept.child.last_error is None
    assert kept.said == ["child: it was ended by SIGKILL; starting it again in 0.01 s"]


async def test_a_refusal_that_stays_ends_the_service_with_its_reason(tmp_path):
    kept = Kept(f"mark={tmp_path / 'starts'}", "error=the store is too old", f"exit={EXIT_REFUSED}")
    with pytest.raises(CannotStart, match=r"^the store is too old$"):
        await kept.child.run()
    assert len((tmp_path / "starts").read_text().splitlines()) == MAX_REFUSALS


async def test_a_child_that_never_gets_ready_ends_the_service(tmp_path):
    kept = Kept(f"mark={tmp_path / 'starts'}", "exit=7")
    with pytest.raises(
        CannotStart, match=f"child does not start: ended with exit code 7, {MAX_CRASHES} times in a row"
    ):
        await kept.child.run()
    assert len((tmp_path / "starts").read_text().splitlines()) == MAX_CRASHES


async def test_a_child_that_is_not_essential_is_tried_for_ever(tmp_path):
    marks = tmp_path / "starts"
    async with Kept(f"mark={marks}", "exit=7", essential=False) as kept:
        await kept.until_said(MAX_CRASHES + 1)
        assert not kept.task.done()
    assert len(marks.read_text().splitlines()) > MAX_CRASHES


def test_the_limit_of_open_files_is_raised_to_what_is_allowed():
    program = """
import resource, sys
from abound.processes import lifetime
lifetime.MAX_OPEN_FILES = 300
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
lifetime.raise_open_files_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    for hard, raised in ((200, "200 200"), (400, "300 400")):
        done = subprocess.run([sys.executable, "-c", program, str(hard)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == raised


async def test_nonsense_from_a_child_does_not_harm():
    async with Kept("polite", "nonsense", "sleep=60") as kept:
        await kept.until_said(1)
        assert "cannot be decoded" in kept.said[0]
        assert kept.child.pid is not None


async def test_a_stop_during_the_wait_for_another_start_ends_it(monkeypatch):
    monkeypatch.setattr(child_module, "FIRST_DELAY", 60.0)
    monkeypatch.setattr(child_module, "LONGEST_DELAY", 60.0)
    async with Kept("exit=1", essential=False) as kept:
        await kept.until_said(1)


def test_a_report_is_one_line_and_lost_rather_than_waited_for():
    reading, writing = os.pipe()
    reporter = Reporter(writing)
    reporter("half\nway", 0.5)
    assert json.loads(os.read(reading, 1000)) == {"stage": "half\nway", "progress": 0.5}
    for _ in range(5000):
        reporter.send(Report(stage="x" * 100))
    assert not os.get_inheritable(writing)
    os.close(reading)
    reporter("nobody listens", 1.0)
    os.close(writing)
    Reporter(None)("nobody is there", 1.0)


MB = 2**20


@pytest.mark.parametrize("version", [0, 1], ids=["v2", "v1"])
def test_cached_files_of_a_control_group_are_free_memory(tmp_path, monkeypatch, version):
    _, most, used, cache = memory._GROUPS[version]
    monkeypatch.setattr(memory, "_GROUPS", ((tmp_path, most, used, cache),))
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "absent")
    (tmp_path / most).write_text(f"{100 * MB}\n")
    (tmp_path / used).write_text(f"{95 * MB}\n")
    assert memory.free_memory() == 5 * MB
    (tmp_path / "memory.stat").write_text(f"anon {20 * MB}\n{cache} {70 * MB}\nactive_file {5 * MB}\n")
    assert memory.free_memory() == 75 * MB
    (tmp_path / used).write_text(f"{60 * MB}\n")  # read before memory.stat, which may have grown
    assert memory.free_memory() == 100 * MB
    (tmp_path / most).write_text("max\n")
    assert memory.free_memory() is None
