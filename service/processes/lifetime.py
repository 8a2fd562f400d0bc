"""Children that do not outlive their parent.

On Linux the kernel sends SIGKILL to a child when the *thread* that started it ends, so children are started from the
main thread, or from one that lives as long as they shall. Elsewhere a child can look at its parent's pid by itself.

Which process a recorded pid stands for, so that nobody ends a stranger who was given the same number.

A process is known by its pid and the moment it was started: on Linux in clock ticks since this boot, with the boot's
id; elsewhere as ``ps`` prints it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PARENT_SECONDS = 1.0

_PR_SET_PDEATHSIG = 1


def dies_with_parent() -> Callable[[], None]:
    """What to run in a child between fork and exec (``preexec_fn``)."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def arrange() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent went before the signal was arranged
            os._exit(1)

    return arrange


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent has: where the kernel does not do it."""
    while os.getppid() == parent:
        threading.Event().wait(PARENT_SECONDS)
    os._exit(1)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def started(pid: int) -> str | None:
    """When process ``pid`` was started, as text that no later process of the same pid has; None when it is gone.

    A zombie counts as gone: it holds neither files nor memory.
    """
    if sys.platform != "linux":
        return _started_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, so fields count from the last parenthesis: 3 state, 22 start time.
    state, *rest = stat[stat.rindex(b")") + 1 :].split()
    if state in (b"Z", b"X"):
        return None
    return f"{_BOOT_ID.read_text().strip()} {rest[18].decode()}"


def _started_by_ps(pid: int) -> str | None:
    command = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the system's own ps
    return shown.stdout.strip() or None


def end(pid: int, start: str, patience: float) -> bool:
    """End process ``pid`` if it is still the one started at ``start``: SIGTERM, and SIGKILL after ``patience`` seconds.

    Blocks until it is gone, at most ``patience`` + 5 seconds. Returns whether there was anything to end.
    """
    if started(pid) != start:
        return False
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if started(pid) != start:
                return True
            time.sleep(0.01)
    return True
