"""Children that do not outlive their parent.

On Linux the kernel sends SIGKILL to a child when the *thread* that started it ends, so children are started from the
main thread, or from one that lives as long as they shall. Elsewhere a child can look at its parent's pid by itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

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
