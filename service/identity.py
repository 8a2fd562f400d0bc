"""Which process a recorded pid stands for, so that nobody ends a stranger who was given the same number.

A process is known by its pid and the moment it was started: on Linux in clock ticks since this boot, with the boot's
id; elsewhere as ``ps`` prints it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
