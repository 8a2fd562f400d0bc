"""The stable: a process that forks a horse (``service/jobs/runner.py``) for each job that the worker has claimed.

The worker forks it once kernels are loaded, and before it starts any thread or event loop. So all of them share that
memory, and a job begins at once; only the first waits until the stable has imported the methods. Forking is safe
because this process has one thread and computes nothing.

They speak over a socket, a JSON list a line. To the stable: ``[kind, job, holder]`` (run this job) or ``[kind]`` (kill
what runs of this kind). From it: ``[kind, how]`` when the process of a job has ended, and in which words. When the
worker is gone the stable kills all horses and ends; when the stable ends, the kernel kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import socket
import threading
from importlib import import_module
from typing import NoReturn

import structlog

from abound.core.errors import CannotStart
from abound.service.jobs import runner
from abound.service.processes.lifetime import dies_with_parent
from abound.service.settings import Settings

log = structlog.get_logger(__name__)

NICENESS = {"fit": 10}
"""What computes for long gives way to what answers on the same machine."""

SESSION_NICENESS = {"fit": 5}
"""Linux may weigh sessions against each other before it looks at the processes in them (``autogroup``), so a job has
one of its own. It is less nice than the process: on a machine that others keep busy as well, with 10 it had so little
that it did not hear the store's answers in time."""

AT_ONCE = 65_536


class Stable:
    """The worker's end of it. Make one before the process starts a thread or an event loop: it forks.

    Attributes
    ----------
    running : dict of str to str
        By kind: the job whose process runs.
    """

    def __init__(self, settings: Settings) -> None:
        if threading.active_count() > 1:
            raise RuntimeError("a process with threads cannot be forked")
        self.running: dict[str, str] = {}
        self._ended: dict[str, asyncio.Future[str]] = {}
        self._connection, theirs = socket.socketpair()
        gc.collect()
        gc.freeze()  # what is here stays shared with the horses
        arrange = dies_with_parent()
        if os.fork() == 0:
            try:
                arrange()
                self._connection.close()
                _serve(settings, theirs)
            except BaseException:
                log.exception("the process that starts jobs has failed")
            finally:
                os._exit(1)
        theirs.close()

    async def connect(self) -> None:
        """Be ready to run jobs, in the event loop of the worker."""
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)

    async def listen(self) -> None:
        """Hear of the ends of processes; CannotStart when there is nobody any more who would fork one."""
        while line := await self._reader.readline():
            kind, how = json.loads(line)
            self._ended[kind].set_result(how)
        raise CannotStart("the process that starts jobs has ended")

    def stop(self) -> None:
        """Kill all that runs; ``listen`` ends then."""
        self._writer.write_eof()

    async def run(self, kind: str, job_id: str, holder: str) -> str:
        """Run a job in a process of its own; how that ended. One of each kind at a time."""
        self.running[kind] = job_id
        self._ended[kind] = asyncio.get_running_loop().create_future()
        self._writer.write(_line(kind, job_id, holder))
        try:
            return await self._ended[kind]
        finally:
            del self.running[kind]

    def kill(self, kind: str) -> None:
        """Kill the process that runs for a kind, if there is one."""
        if kind in self.running:
            self._writer.write(_line(kind))


def _serve(settings: Settings, connection: socket.socket) -> NoReturn:
    """Fork for whoever is at the other end, until there is nobody."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):  # the worker decides
        signal.signal(number, signal.SIG_IGN)
    pids: dict[str, int] = {}
    left = b""
    while True:
        for ready in select.select([ended, connection.fileno()], [], [])[0]:
            if ready == ended:
                os.read(ended, AT_ONCE)
                continue
            if not (received := connection.recv(AT_ONCE)):
                for pid in pids.values():
                    os.kill(pid, signal.SIGKILL)
                    _reap(pid, 0)
                os._exit(0)
            *lines, left = (left + received).split(b"\n")
            for line in lines:
                kind, *job = json.loads(line)
                if not job:
                    if kind in pids:
                        os.kill(pids[kind], signal.SIGKILL)
                    continue
                try:
                    import_module(
                        "abound.service.jobs.methods"
                    )  # for the first job; a worker without jobs does without them
                    pids[kind] = _fork(settings, kind, *job)
                except Exception as error:
                    connection.sendall(_line(kind, f"it could not be begun: {type(error).__name__}: {error}"))
        for kind, pid in list(pids.items()):
            status = _reap(pid, os.WNOHANG)
            if status is not None:
                del pids[kind]
                connection.sendall(_line(kind, _ending(status)))


def _reap(pid: int, options: int) -> int | None:
    """Return the status of a process that has ended, and kill what it has started: that is in its session."""
    found, status = os.waitpid(pid, options)
    if not found:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return status


def _line(*words: str) -> bytes:
    return json.dumps(words).encode() + b"\n"


def _fork(settings: Settings, kind: str, job_id: str, holder: str) -> int:
    """Fork the process of a job. It ends with this one, and is the first to go when memory is short."""
    arrange = dies_with_parent()
    if pid := os.fork():
        return pid
    try:
        arrange()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _write("/proc/self/oom_score_adj", 500)
        os.nice(NICENESS.get(kind, 0))
        _write("/proc/self/autogroup", SESSION_NICENESS.get(kind, 0))
        runner.run(settings, job_id, holder)
    except BaseException:
        log.exception("a job could not be begun", job=job_id)
        os._exit(1)
    os._exit(0)


def _write(path: str, number: int) -> None:
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
        file.write(str(number))


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with exit code {code}"
    what = f"its process was ended by {signal.Signals(-code).name}"
    return f"{what}, perhaps because memory was short" if -code == signal.SIGKILL else what
