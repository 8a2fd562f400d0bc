"""Lifetime of processes: limits at the start, children that end with their parent, ways to end a recorded process.

On Linux the kernel sends SIGKILL to a child when the *thread* that started it ends. Children are therefore started
from the main thread, or from one that lives as long as they should. On other systems a child polls its parent's
pid.

A pid may be reused, so a process is identified by its pid and its start time. On Linux the start time is in clock
ticks since boot, together with the boot's id; elsewhere it is the output of ``ps``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PARENT_SECONDS = 1.0

MAX_OPEN_FILES = 65_536

_PR_SET_PDEATHSIG = 1


def raise_open_files_limit() -> None:
    """The usual limit is less than the connections of a replica."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def dies_with_parent() -> Callable[[], None]:
    """Return a function to run in a child between fork and exec (``preexec_fn``)."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def arrange() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the signal was set
            os._exit(1)

    return arrange


def end_with_parent(parent: int) -> None:
    """Exit this process soon after its parent has ended; for systems whose kernel does not do it."""
    while os.getppid() == parent:
        threading.Event().wait(PARENT_SECONDS)
    os._exit(1)


def is_running(pid: int) -> bool:
    """Return whether any process of this host has the pid. A zombie counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def start_time_of(pid: int) -> str | None:
    """Return the start time of a process as a text; None if it is gone.

    No later process with the same pid has the same text. A zombie counts as gone, since it holds neither files nor
    memory.
    """
    if sys.platform != "linux":
        return _started_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may contain anything, so count fields from the last parenthesis: 3 state, 22 start time.
    state, *rest = stat[stat.rindex(b")") + 1 :].split()
    if state in (b"Z", b"X"):
        return None
    return f"{_BOOT_ID.read_text().strip()} {rest[18].decode()}"


def _started_by_ps(pid: int) -> str | None:
    command = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the system's own ps
    return shown.stdout.strip() or None


def end_process(pid: int, start: str, patience: float) -> bool:
    """End a process if it still has the start time ``start``; return whether there was one to end.

    It gets SIGTERM, then SIGKILL after ``patience`` seconds. Blocks at most ``patience`` + 5 seconds.
    """
    if start_time_of(pid) != start:
        return False
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if start_time_of(pid) != start:
                return True
            time.sleep(0.01)
    return True
