"""Status reports of a child to its parent: one JSON object a line, over a pipe that the child inherits.

========  ==========================================================================================
field     meaning
========  ==========================================================================================
stage     the current step, in words for people
progress  how much of that step is done, 0..1
warm      true: the kernels of the default model are compiled, so other children find them compiled
ready     true: the child accepts connections; false: it no longer does
unready   why ``/readyz`` of the child answers 503 nevertheless; empty: it does not
error     why the child refuses to start, in words for people; it then exits with ``EXIT_REFUSED``
========  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import os

import msgspec

EXIT_REFUSED = 3  # of a child that reported ``error``; a restart alone is unlikely to help

LONGEST_LINE = 65_536


class Report(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One line of the pipe. A field that is None is not reported."""

    stage: str | None = None
    progress: float | None = None
    warm: bool | None = None
    ready: bool | None = None
    unready: str | None = None
    error: str | None = None


class Reporter:
    """The child's end of the pipe; with ``fd`` None, reports are discarded.

    Calling a reporter is the callback ``(stage, progress)`` for the steps of a start.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)

    def __call__(self, stage: str, progress: float) -> None:
        self.send(Report(stage=stage, progress=progress))

    def send(self, report: Report) -> None:
        """Send one line. If the parent does not read, the line is lost and the child continues."""
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._fd, msgspec.json.encode(report) + b"\n")
