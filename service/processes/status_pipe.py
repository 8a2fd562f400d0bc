"""What a child tells the parent that started it: one JSON object a line, over a pipe that the child inherits.

========  ==========================================================================================
field     meaning
========  ==========================================================================================
stage     what it is doing, in words for people
progress  how much of that is done, 0..1
warm      true: the kernels of the default model are compiled, so that other children find them compiled
ready     true: connections are accepted here; false: no longer
unready   why ``/readyz`` is 503 here all the same; empty: it is not
warning   what the person who started the service should know
error     why it refuses to start, in words for people; it exits with ``REFUSED`` after that
========  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import os

import msgspec

REFUSED = 3
"""Exit code of a child that said ``error``: starting it again by itself will hardly help."""

LONGEST_LINE = 65_536


class Report(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One line. A field that is None says nothing."""

    stage: str | None = None
    progress: float | None = None
    warm: bool | None = None
    ready: bool | None = None
    unready: str | None = None
    warning: str | None = None
    error: str | None = None


class Reporter:
    """The child's end of the pipe; ``fd`` None: there is nobody to tell.

    Calling it is the callback ``(stage, progress)`` that the parts of a start report through.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)
            os.set_blocking(fd, False)

    def __call__(self, stage: str, progress: float) -> None:
        """Say what is being done and how much of it is done."""
        self.say(Report(stage=stage, progress=progress))

    def say(self, report: Report) -> None:
        """Send one line. A parent that does not read loses it; the child goes on."""
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._fd, msgspec.json.encode(report) + b"\n")
