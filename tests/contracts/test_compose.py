"""The compose file: what its containers may do, who reaches whom, the store's password, and backups."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from packaging.utils import canonicalize_name

from abound.processes.embedded_store import server_program
from abound.processes.lifetime import dies_with_parent
from benchmarks.composed import run_password
from benchmarks.serving import free_port
from tests.contracts.programs import needs, until_it_answers
from tests.support import stand_in
from tests.support.job_worker import until
from tests.support.valkey import Server
from tests.test_licences import PROJECT, closure

ROOT = Path(__file__).parents[2]
BACKUP = ROOT / "deploy" / "kubernetes" / "components" / "backup" / "backup.sh"
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened_and_bounded(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert re.fullmatch(r"[1-9]\d*[mg]", service["mem_limit"])
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service.get("user", "nobody").split(":")[0] not in ("0", "root")
    assert not service.get("privileged")
    # What is written into the root would be refused: volumes and tmpfs are all that there is.
    for mount in service.get("volumes", []):
        source = re.sub(r"\$\{[^}]*\}", "/file", mount).split(":")[0]
        assert source in COMPOSE["volumes"] or mount.endswith(":ro"), mount


def test_only_those_that_need_it_reach_the_store() -> None:
    assert COMPOSE["networks"]["store"] == {"internal": True}
    reached = {name for name, one in SERVICES.items() if "store" in one.get("networks", [])}
    assert reached == {"store", "replica", "worker", "backup"}
    for name, one in SERVICES.items():
        assert one.get("networks") or one["network_mode"] == "none", f"{name} would be in the default network"
        for port in one.get("ports", []):
            assert port.startswith("127.0.0.1:")


def test_grafana_has_no_login() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"


def test_tls_comes_with_keys_and_the_balancers_own_variable() -> None:
    services = yaml.safe_load((ROOT / "docker" / "tls.yaml").read_text())["services"]
    assert {services[name]["environment"]["ABOUND_INSECURE"] for name in ("replica", "worker", "balancer")} == {"false"}
    file = services["balancer"]["environment"]["TLS_CERTIFICATE"]
    assert services["balancer"]["volumes"] == [f"${{CERTIFICATE:?the path of a PEM file}}:{file}:ro"]
    configuration = (ROOT / "docker" / "haproxy.cfg").read_text()
    [port] = re.findall(r'bind :(\d+) ssl crt "\$\{TLS_CERTIFICATE\}"', configuration)
    assert services["balancer"]["ports"] == [f"{port}:{port}"]


@contextmanager
def store_of(secrets: Path, data: Path) -> Iterator[tuple[int, str]]:
    data.mkdir()
    port = free_port()
    words = [word.replace("/secrets", str(secrets)) for word in SERVICES["store"]["command"][1:]]
    words = [server_program(), *words, "--dir", str(data), "--port", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(words, preexec_fn=dies_with_parent()) as process:
        password = (secrets / "password").read_text().strip()
        with redis.Redis(port=port, password=password) as client:
            until_it_answers(client)
        yield port, password
        process.terminate()


def environment_with(programs: Path) -> dict[str, str]:
    programs.mkdir()
    (programs / "valkey-cli").symlink_to(shutil.which("valkey-cli") or needs("redis-cli"))
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


class Backup:
    def __init__(self, folder: Path, cp: str) -> None:
        self.secrets, self.artifacts, self.backups = (folder / name for name in ("secrets", "artifacts", "backups"))
        for directory in (self.secrets, self.artifacts, self.backups):
            directory.mkdir()
        run_password(SERVICES["password"], self.secrets)
        self.environment = environment_with(folder / "programs") | {
            "STORE": "127.0.0.1",
            "PASSWORD": str(self.secrets / "password"),
            "ARTIFACTS": str(self.artifacts),
            "BACKUPS": str(self.backups),
        }
        program = folder / "programs" / "cp"
        program.write_text("#!/bin/sh\n" + cp.replace("{cp}", shutil.which("cp") or ""))
        program.chmod(0o755)

    def run(self, port: int) -> subprocess.CompletedProcess[bytes]:
        environment = self.environment | {"STORE_PORT": str(port)}
        return subprocess.run(["sh", str(BACKUP)], env=environment, capture_output=True)


def test_the_store_has_a_password_that_is_made_once_and_is_healthy_only_with_it(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    run_password(SERVICES["password"], secrets)
    made = {one.name: one.read_text() for one in secrets.iterdir()}
    password = made["password"].strip()
    assert re.fullmatch("[0-9a-f]{48}", password)
    assert made["url"].strip() == f"redis://:{password}@store:6379"
    run_password(SERVICES["password"], secrets)
    assert {one.name: one.read_text() for one in secrets.iterdir()} == made
    assert SERVICES["replica"]["environment"]["ABOUND_REDIS_URL_FILE"] == "/secrets/url"
    environment = environment_with(tmp_path / "programs")
    kind, check = SERVICES["store"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    with store_of(secrets, tmp_path / "data") as (port, _):
        with redis.Redis(port=port) as client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()
        check = check.replace("$$", "$").replace("valkey-cli", f"valkey-cli -p {port}")

        def code(directory: Path) -> int:
            words = ["sh", "-c", check.replace("/secrets", str(directory))]
            return subprocess.run(words, env=environment, capture_output=True).returncode

        assert code(secrets) == 0
        (tmp_path / "password").write_text("another")
        assert code(tmp_path) != 0, "valkey-cli ends with 0 whatever it is told: only PONG will do"


def test_a_backup_has_what_the_store_points_to_and_the_newest_seven_stay(tmp_path: Path) -> None:
    assert any(str(BACKUP.relative_to(ROOT)) in one for one in SERVICES["backup"]["volumes"])
    marks = tmp_path / "artifacts" / "a" / "high-water.json"
    backup = Backup(tmp_path, f'{{cp}} "$@"\ncase "$1" in -Rp*) printf later > {marks};; esac\n')
    assert backup.environment.keys() - {"PATH"} == SERVICES["backup"]["environment"].keys()
    for directory in ("unfinished", *(f"2020-01-0{day}T03-17-00Z" for day in range(1, 9))):
        (backup.backups / directory).mkdir()
    marks.parent.mkdir()
    marks.write_text("before the store was saved")
    (marks.parent / "segment").write_text("events")
    with store_of(backup.secrets, tmp_path / "data") as (port, password):
        with redis.Redis(port=port, password=password) as client:
            client.set("log", "entries")
        done = backup.run(port)
        assert done.returncode == 0, done.stderr
        assert password.encode() not in done.stdout + done.stderr
        kept = sorted(one.name for one in backup.backups.iterdir())
        assert (len(kept), kept[0]) == (7, "2020-01-03T03-17-00Z")
        (backup.secrets / "password").write_text("another")
        assert backup.run(port).returncode != 0
        assert sorted(one.name for one in backup.backups.iterdir() if one.name != "unfinished") == kept
    made = backup.backups / kept[-1]
    copied = {one.name: one.read_text() for one in (made / "artifacts" / "a").iterdir()}
    assert copied == {"segment": "events", "high-water.json": "before the store was saved"}
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(made / "dump.rdb", restored)
    words = [server_program(), "--dir", str(restored), "--port", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(words, preexec_fn=dies_with_parent()) as process, redis.Redis(port=port) as client:
        until_it_answers(client)
        assert client.get("log") == b"entries"
        process.terminate()


def test_a_file_whose_copy_was_cut_off_is_copied_again(tmp_path: Path) -> None:
    cut_off = f"""[ -e {tmp_path}/failed ] && exec {{cp}} "$@"
        {{cp}} "$@"
        touch {tmp_path}/failed
        printf ev > {tmp_path}/backups/unfinished/artifacts/segment
        exit 1
        """
    backup = Backup(tmp_path, cut_off)
    for name in ("segment", "state"):
        (backup.artifacts / name).write_text("events")
        os.utime(backup.artifacts / name, (1e9, 1e9))
    with store_of(backup.secrets, tmp_path / "data") as (port, _):
        done = backup.run(port)
        assert done.returncode == 0, done.stderr
    [made] = backup.backups.iterdir()
    assert (tmp_path / "failed").exists()
    copied = {one.name: one.read_text() for one in (made / "artifacts").iterdir()}
    assert copied == {"segment": "events", "state": "events"}
    assert {one.name for one in made.iterdir()} == {"artifacts", "dump.rdb"}


# what the image is built of, and how it tells that it is healthy


class Alive(stand_in.JsonHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()


@pytest.mark.parametrize(
    ("command", "variable", "is_healthy"),
    [
        ("abound serve", True, True),
        ("abound serve --port {port}", False, True),
        ("abound serve --port={port}", False, True),
        ("docker-init -- entrypoint abound serve", True, True),
        ("abound serve", False, False),
        ("abound keys list", False, True),
    ],
)
def test_a_container_is_healthy_by_what_it_does(tmp_path: Path, command: str, variable: bool, is_healthy: bool) -> None:
    with stand_in.running(Alive) as url:
        port = url.rpartition(":")[2]
        line = tmp_path / "cmdline"
        line.write_text("".join(f"{word}\0" for word in command.format(port=port).split()))
        environment = os.environ | {"ABOUND_PORT": port if variable else str(free_port())}
        words = [sys.executable, str(ROOT / "docker" / "health.py"), str(line)]
        # The check has a time limit of its own, and is repeated as that of a container is.
        until(lambda: (subprocess.run(words, env=environment).returncode == 0) is is_healthy)


def test_a_worker_is_healthy_while_its_event_loop_runs(server: Server, tmp_path: Path) -> None:
    """As in a container: the file that it touches is all that can be seen from outside."""
    line = tmp_path / "cmdline"
    line.write_text("python\0/opt/abound/venv/bin/abound\0worker\0")
    environment = os.environ | {"ABOUND_DATA_DIR": str(tmp_path), "ABOUND_REDIS_URL": server.url}

    def is_healthy() -> bool:
        words = [sys.executable, str(ROOT / "docker" / "health.py"), str(line)]
        return subprocess.run(words, env=environment, capture_output=True).returncode == 0

    assert not is_healthy(), "it has not begun"
    with subprocess.Popen(
        [sys.executable, "-m", "abound", "worker"], env=environment, preexec_fn=dies_with_parent()
    ) as worker:
        until(is_healthy, 240)
        worker.send_signal(signal.SIGSTOP)
        an_hour_ago = time.time() - 3600
        os.utime(tmp_path / "worker-alive", (an_hour_ago, an_hour_ago))
        assert not is_healthy()
        worker.send_signal(signal.SIGCONT)
        until(is_healthy, 240)
        worker.terminate()
        assert worker.wait(60) == 0


def required(*extras: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(ROOT / "docker" / "requirements.py"), *extras]
    return subprocess.run(words, capture_output=True, text=True)


def pins(lines: str) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in re.findall(r"^(\S+)==(\S+)", lines, re.MULTILINE)}


def test_the_image_gets_the_extras_that_it_is_built_with() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG EXTRAS=$", text.partition("\nFROM ")[2].partition("\nFROM ")[0], re.MULTILINE)
    assert 'docker/requirements.py "$EXTRAS" > /tmp/requirements.txt' in text
    assert "--require-hashes -r /tmp/requirements.txt" in text
    plain = required("").stdout
    assert plain == required().stdout
    more = pins(required("s3,cluster").stdout).keys() - pins(plain).keys()
    assert {"distributed", "s3fs", "dask", "botocore"} <= more
    wrong = required("s4")
    assert wrong.returncode == 1
    assert "there is no extra s4" in wrong.stderr
    wrong = required("dev")
    assert wrong.returncode == 1
    assert re.search("docker/requirements.txt lacks .*: make lock", wrong.stderr)


@pytest.mark.parametrize("extra", ["", "approximate", "arrow", "cluster", "embed", "mcp", "s3", "sklearn"])
def test_the_image_has_the_versions_of_the_tests_and_all_that_they_need(extra: str) -> None:
    """Each with a hash, so pip takes nothing else."""
    text = required(extra).stdout
    entries = re.findall(r"^\S+==.*\n(?:    .*\n)+", text, re.MULTILINE)
    assert "".join(entries) == text
    assert all("--hash=sha256:" in one for one in entries)
    locked, tested = pins(text), pins((ROOT / "constraints.txt").read_text())
    assert {name: tested.get(name, version) for name, version in locked.items()} == locked
    declared = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    assert closure(declared).keys() <= locked.keys()


def test_the_image_has_a_user_by_number() -> None:
    """Kubernetes cannot tell that a user by name is not root."""
    final = (ROOT / "docker" / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.findall("^USER (.*)$", final, re.MULTILINE) == ["10001:10001"]


def test_the_image_gets_only_what_it_is_made_of() -> None:
    taken = set(re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    wanted = {part.split("/")[0] for line in taken for part in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert wanted == allowed
