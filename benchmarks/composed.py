"""The processes of the compose file without containers: what ``docker/compose.yaml`` starts, wired as it says.

Commands and environment are read from that file, and haproxy runs with ``docker/haproxy.cfg``. What containers bring
is replaced: each replica has an address of loopback of its own and one port, a name server tells haproxy which of them
run, volumes are directories.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import redis
import yaml

from abound.processes.embedded_store import server_program
from abound.processes.lifetime import dies_with_parent
from benchmarks.names import Names
from benchmarks.serving import free_port, tree

ROOT = Path(__file__).parents[1]
PATIENCE = 240.0
FIRST_SECONDS = 600.0
"""The first start on a machine compiles the kernels."""


def program() -> str | None:
    """Where haproxy is; None when it is not installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


class Container:
    """One process of the compose file."""

    def __init__(self, name: str, words: list[str], environment: dict[str, str], directory: Path, grace: float) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self._words = words
        self._grace = grace
        self._output = directory / f"{name}.log"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ABOUND_")}
        self._environment = kept | environment

    @property
    def runs(self) -> bool:
        """Whether it does."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it."""
        with self._output.open("ab") as output:
            self.process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                preexec_fn=dies_with_parent(),
            )

    def stop(self) -> int:
        """End it as ``docker stop`` does: SIGTERM, and SIGKILL after the grace period; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self._grace)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL to it and all that it started."""
        if self.process is not None and self.runs:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to it and all that it started."""
        assert self.process is not None
        for pid in tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def said(self) -> str:
        """The end of what it wrote."""
        return self._output.read_text(errors="replace")[-2000:] if self._output.exists() else ""


class Replica(Container):
    """A replica, which the name server knows while it runs."""

    def __init__(self, names: Names, address: str, port: int, *container: Any) -> None:
        super().__init__(*container)
        self.url = f"http://{address}:{port}"
        self.address = address
        self._names = names

    def start(self) -> None:
        """Start it."""
        super().start()
        self._names.add("replica", self.address)

    def stop(self) -> int:
        """End it in order."""
        code = super().stop()
        self._names.remove("replica", self.address)
        return code

    def kill(self) -> None:
        """End it as a crash would."""
        super().kill()
        self._names.remove("replica", self.address)

    def until_ready(self, patience: float = PATIENCE) -> float:
        """Wait for ``/readyz``; seconds."""
        began = time.monotonic()
        while time.monotonic() < began + patience:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.said()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return time.monotonic() - began
            time.sleep(0.02)
        raise RuntimeError(f"{self.name} is not ready: {self.said()}")


class Composed:
    """Store, replicas, worker and load balancer.

    Attributes
    ----------
    url : str
        Of the load balancer.
    replicas : list of Replica
    store_url, artifacts : str
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
        self._names = Names()
        store_port, port, own, measures = free_port(), free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{own}"
        self.artifacts = str(directory / "artifacts")
        secrets = directory / "secrets"
        secrets.mkdir(exist_ok=True)
        run_password(services["password"], secrets)
        # A name of a container is an address here.
        self.store_url = (secrets / "url").read_text().strip().replace("store:6379", f"127.0.0.1:{store_port}")
        (secrets / "url").write_text(self.store_url)

        store = services["store"]
        words = [server_program(), *(word.replace("/secrets", str(secrets)) for word in store["command"][1:])]
        words += ["--dir", str(directory), "--bind", "127.0.0.1", "--port", str(store_port)]
        self.store = Container("store", words, {}, directory, _seconds(store["stop_grace_period"]))

        def ours(name: str, service: dict[str, Any], host: str) -> tuple[Any, ...]:
            environment = service["environment"] | {
                "ABOUND_REDIS_URL_FILE": service["environment"]["ABOUND_REDIS_URL_FILE"].replace(
                    "/secrets", str(secrets)
                ),
                "ABOUND_ARTIFACTS_URL": self.artifacts,
                "ABOUND_HOST": host,
                "ABOUND_PORT": str(port),
                "ABOUND_DATA_DIR": str(directory / name),
            }
            words = [sys.executable, "-m", "abound", *service["command"][1:]]
            return name, words, environment, directory, _seconds(service["stop_grace_period"])

        replica = services["replica"]
        self.replicas = [
            Replica(self._names, f"127.0.0.{2 + i}", port, *ours(f"replica{i}", replica, f"127.0.0.{2 + i}"))
            for i in range(replica["deploy"]["replicas"])
        ]
        self.worker = Container(*ours("worker", services["worker"], "127.0.0.1"))
        configuration = directory / "haproxy.cfg"
        configuration.write_text(self._configuration(own, port, measures))
        balancer = program()
        if balancer is None:
            raise RuntimeError("haproxy is not installed (on Debian: apt-get install haproxy)")
        words, environment = [balancer, "-db", "-f", str(configuration)], services["balancer"]["environment"]
        self.balancer = Container("balancer", words, environment, directory, 10.0)

    def _configuration(self, own: int, port: int, measures: int) -> str:
        """The balancer's file, with the addresses of here."""
        text = (ROOT / "docker" / "haproxy.cfg").read_text()
        for there, here, times in (
            ("bind :8000", f"bind 127.0.0.1:{own}", 1),
            ("bind :8405", f"bind 127.0.0.1:{measures}", 1),
            ("parse-resolv-conf", f"nameserver here 127.0.0.1:{self._names.port}", 1),
            ("replica:8000", f"replica:{port}", 2),
        ):
            if text.count(there) != times:
                raise RuntimeError(f"docker/haproxy.cfg has {there!r} {text.count(there)} times, not {times}")
            text = text.replace(there, here)
        return text

    def start(self, patience: float = FIRST_SECONDS) -> float:
        """Start everything in the order of its dependencies; seconds until the balancer answers from a replica."""
        began = time.monotonic()
        self.store.start()
        with redis.Redis.from_url(self.store_url) as client:
            _until(lambda: _answers(client), "the store does not start", self.store, PATIENCE)
        for one in (*self.replicas, self.worker, self.balancer):
            one.start()
        for replica in self.replicas:
            replica.until_ready(patience)
        self.until_balanced()
        return time.monotonic() - began

    def until_balanced(self) -> None:
        """Wait until the balancer has found a replica."""
        _until(lambda: _is_ready(self.url), "the balancer finds no replica", self.balancer, PATIENCE)

    def hide(self) -> None:
        """Let the name server know of no replica."""
        for replica in self.replicas:
            self._names.remove("replica", replica.address)

    def show(self) -> None:
        """Let it know of all replicas."""
        for replica in self.replicas:
            self._names.add("replica", replica.address)

    def close(self) -> None:
        """End everything."""
        for one in (self.balancer, self.worker, *self.replicas):
            if one.process is not None and one.runs:
                one.process.terminate()
        for one in (self.balancer, self.worker, *self.replicas, self.store):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if one.process is not None and one is not self.store:
                    one.process.wait(20)
            one.kill()
        self._names.close()


def run_password(service: dict[str, Any], secrets: Path) -> None:
    """Run the service of the compose file that makes the store's password, with another directory for ``/secrets``."""
    [script] = service["command"]
    words = [*service["entrypoint"], script.replace("$$", "$").replace("/secrets", str(secrets))]
    subprocess.run(words, check=True)


def _seconds(text: str) -> float:
    """``30s`` of a compose file."""
    return float(text.removesuffix("s"))


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.RedisError:
        return False


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def _until(condition: Any, otherwise: str, container: Container, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline or not container.runs:
            raise RuntimeError(f"{otherwise}: {container.said()}")
        time.sleep(0.02)
