"""A supervised child process: starts it, reads its status reports, and restarts it when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from abound.processes.lifetime import dies_with_parent
from abound.processes.status_pipe import EXIT_REFUSED, LONGEST_LINE, Report
from abound.tasks import wait_for_event
from abound_core.errors import CannotStart

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0  # seconds before a restart; the delay doubles with each failure

SETTLED = 60.0  # a child that ran for this many seconds resets its count of failures

MAX_REFUSALS = 2  # in a row; then the service gives up, if the child was never ready

MAX_CRASHES = 5  # the same, for failures without a reason


def restart_delay(failures: int) -> float:
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 100))


class Child:
    """A process that runs as long as the service.

    ``module`` runs with ``--status FD`` and ``arguments``, with the whole ``environment``, and inherits ``fds``.
    ``changed`` is called whenever a reported value changes (``abound/processes/status_pipe.py``), ``say`` with a
    sentence for the person who started the service. If an ``essential`` child fails to start repeatedly, the service
    ends.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        fds: Sequence[int],
        *,
        changed: Callable[[], None],
        say: Callable[[str], None],
        essential: bool,
    ) -> None:
        self.name = name
        self.stage, self.progress = "starting", 0.0
        self.warm = self.ready = self.was_ready = False
        self.unready = ""
        self.last_error: str | None = None  # why it ended the last time, until it is ready again
        self.was_warm = asyncio.Event()  # at least once since the service started, as ``was_ready``
        self.ended: Callable[[int], None] | None = None
        self._command = [sys.executable, "-m", module, *arguments]
        self._environment = dict(environment)
        self._fds = tuple(fds)
        self._changed, self._say, self._essential = changed, say, essential
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._error: str | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Start the process, and restart it whenever it ends, until ``stop`` is called.

        Raises CannotStart, with the reason that the process gave, if it is essential and failed several times in a
        row before it was ready.
        """
        failures = refusals = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if self.was_ready and time.monotonic() - began > SETTLED:
                failures = 0
            failures += 1
            refusals = refusals + 1 if code == EXIT_REFUSED and self._error else 0
            reason = self._error or f"it {_ending(code)}"
            self.last_error = reason
            if self._essential and not self.was_ready and (refusals >= MAX_REFUSALS or failures >= MAX_CRASHES):
                raise CannotStart(
                    self._error or f"{self.name} does not start: {_ending(code)}, {failures} times in a row"
                )
            delay = restart_delay(failures)
            self._say(f"{self.name}: {reason}; starting it again in {delay:g} s")
            self.stage, self.progress = "starting again", 0.0
            self._changed()
            await wait_for_event(self._stopping, delay)

    async def stop(self, patience: float) -> None:
        """End the process without a restart: SIGTERM, then SIGKILL after ``patience`` seconds."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                await process.wait()
        except TimeoutError:
            self._say(f"{self.name}: did not end within {patience:g} s and is killed")
            self.signal(signal.SIGKILL)
            await process.wait()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run_once(self) -> int:
        """Run the process once; return its exit code (negative: the signal that ended it)."""
        try:
            process, reading = await self._start()
        except OSError as error:
            self._error = f"cannot be started: {error.strerror}"
            return 1
        self.warm, self._error = False, None
        if self._stopping.is_set():  # stop() was called while the process was started
            self.signal(signal.SIGTERM)
        listening = asyncio.create_task(self._listen(reading))
        code = await process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # a grandchild may hold the pipe open
                await listening
        self.ready, self.unready = False, ""
        self._changed()
        if self.ended is not None:
            self.ended(process.pid)
        return code

    async def _start(self) -> tuple[asyncio.subprocess.Process, int]:
        """Start the process; return it with the end of its status pipe that is read."""
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--status",
                str(writing),
                stdin=asyncio.subprocess.DEVNULL,
                env=self._environment,
                pass_fds=(*self._fds, writing),
                start_new_session=True,  # Ctrl-C in the terminal goes to the parent only
                preexec_fn=dies_with_parent(),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return self._process, reading

    async def _listen(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LONGEST_LINE)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
        )
        try:
            while line := await reader.readline():
                self._apply_report(msgspec.json.decode(line, type=Report))
        except (ValueError, msgspec.DecodeError):
            self._say(f"{self.name}: sent a status report that cannot be decoded; its reports are ignored from now on")
        finally:
            transport.close()

    def _apply_report(self, report: Report) -> None:
        if report.stage is not None:
            self.stage, self.progress = report.stage, 0.0
        if report.progress is not None:
            self.progress = report.progress
        if report.warm is not None:
            self.warm = report.warm
            self.was_warm.set()
        if report.ready is not None:
            self.ready = report.ready
            self.was_ready = self.was_ready or report.ready
            self.last_error = None if report.ready else self.last_error
        if report.unready is not None:
            self.unready = report.unready
        if report.error is not None:
            self._error = report.error
        self._changed()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
