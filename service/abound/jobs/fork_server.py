"""The fork server of jobs: a process that forks a job process for each job that the worker claims.

The worker forks this process after the kernels are loaded, and before it starts any thread or event loop. All job
processes (``abound/jobs/job_process.py``) therefore share that memory, and a job starts at once; only the first one
waits until the fork server has imported the methods. Forking is safe because the fork server has one thread and
computes nothing. The fork server of ``multiprocessing`` is a new interpreter instead: it would hold the kernels and
libraries a second time, and would outlive a worker that is killed as long as a job runs.

The two talk over a socket pair, in JSON lists of one line each.
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

from abound.jobs import job_process
from abound.processes.lifetime import dies_with_parent
from abound.settings import Settings
from abound_core.errors import CannotStart

log = structlog.get_logger(__name__)

NICENESS = {"fit": 10}  # long computations yield the processor to processes that answer requests

# Linux may weigh sessions against each other before the processes in them (``autogroup``), so each job has its own
# session. With 10, jobs on a busy machine got so little time that the store's answers timed out unread.
SESSION_NICENESS = {"fit": 5}

# SIGKILL: the machine has no memory left; the others: libraries in C at a limit
NO_MEMORY = (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV)

AT_ONCE = 65_536


class ForkServer:
    """The worker's end. Create it before the process starts a thread or an event loop, because it forks."""

    def __init__(self, settings: Settings) -> None:
        if threading.active_count() > 1:
            raise RuntimeError("a process with threads cannot be forked")
        self.running: dict[str, str] = {}  # id of the running job by kind
        self._ended: dict[str, asyncio.Future[str]] = {}
        self._connection, theirs = socket.socketpair()
        gc.collect()
        gc.freeze()  # objects that exist now stay shared with the job processes
        arrange = dies_with_parent()
        if os.fork() == 0:
            try:
                arrange()
                self._connection.close()
                _serve(settings, theirs)
            except BaseException:
                log.exception("the fork server of jobs failed")
            finally:
                os._exit(1)
        theirs.close()

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)

    async def listen(self) -> None:
        """Read messages about ended job processes; raise CannotStart if the fork server has ended."""
        while line := await self._reader.readline():
            kind, how = json.loads(line)
            self._ended[kind].set_result(how)
        raise CannotStart("the fork server of jobs has ended; the log has its error. Restart the worker")

    def stop(self) -> None:
        """Kill all job processes; ``listen`` ends afterwards."""
        self._writer.write_eof()

    async def run(self, kind: str, job_id: str, holder: str) -> str:
        """Run a job in its own process and return how that process ended. Only one job of a kind may run at a time."""
        self.running[kind] = job_id
        self._ended[kind] = asyncio.get_running_loop().create_future()
        self._writer.write(_line(kind, job_id, holder))
        try:
            return await self._ended[kind]
        finally:
            del self.running[kind]

    def kill(self, kind: str) -> None:
        if kind in self.running:
            self._writer.write(_line(kind))


def _serve(settings: Settings, connection: socket.socket) -> NoReturn:
    """Fork job processes for the worker at the other end of the connection."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT):  # the worker decides when to stop
        signal.signal(number, signal.SIG_IGN)
    pids: dict[str, int] = {}
    left = b""
    while True:
        for ready in select.select([ended, connection.fileno()], [], [])[0]:
            if ready == ended:
                os.read(ended, AT_ONCE)
                continue
            # The worker is gone: kill all job processes and exit. If this process dies first, the kernel kills them.
            if not (received := connection.recv(AT_ONCE)):
                for pid in pids.values():
                    os.kill(pid, signal.SIGKILL)
                    _reap(pid, 0)
                os._exit(0)
            *lines, left = (left + received).split(b"\n")
            for line in lines:
                kind, *job = json.loads(line)  # [kind, job, holder]: run a job; [kind]: kill the one that runs
                if not job:
                    if kind in pids:
                        os.kill(pids[kind], signal.SIGKILL)
                    continue
                try:
                    import_module(
                        "abound.jobs.methods"
                    )  # imported with the first job, since a worker without jobs does not need it
                    pids[kind] = _fork(settings, kind, *job)
                except Exception as error:
                    connection.sendall(
                        _line(kind, f"its process could not be started: {type(error).__name__}: {error}")
                    )
        for kind, pid in list(pids.items()):
            status = _reap(pid, os.WNOHANG)
            if status is not None:
                del pids[kind]
                connection.sendall(_line(kind, _ending(status)))  # [kind, how it ended]


def _reap(pid: int, options: int) -> int | None:
    """Return the exit status of a process that has ended, else None. Kill its children, which share its session."""
    found, status = os.waitpid(pid, options)
    if not found:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return status


def _line(*words: str) -> bytes:
    return json.dumps(words).encode() + b"\n"


def _fork(settings: Settings, kind: str, job_id: str, holder: str) -> int:
    """Fork the runner of a job. It ends with this process, and the kernel kills it first if memory runs out."""
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
        job_process.run(settings, job_id, holder)
    except BaseException:
        log.exception("a job could not be started", job=job_id)
        os._exit(1)
    os._exit(0)


def _write(path: str, number: int) -> None:
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
        file.write(str(number))


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    if -code in NO_MEMORY:
        return (
            f"out of memory, probably: its process was ended by {name}. Set ABOUND_JOBS_MEMORY_BYTES to what the "
            "worker's machine or container can spare, or give that more memory"
        )
    return f"its process was ended by {name}"
