"""A worker with methods that only tests need: ``python -m tests.support.job_program``. No kernel is loaded."""

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from abound import worker
from abound.jobs import dispatcher, job_process
from abound.jobs.context import JobContext
from abound.jobs.methods import METHODS, JobMethod, Outcome, Progress
from abound.jobs.repository import JobParams
from abound.processes import child_main
from abound.settings import Settings
from abound_core.errors import Conflict, VersionDeleted
from abound_core.types import START


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """So many steps of so many seconds, each of which writes an artifact."""

    steps: int = 3
    seconds: float = 0.01
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError("steps must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How to end."""

    how: str = "error"


async def steps(context: JobContext, params: Steps, progress: Progress) -> Outcome:
    """Write an artifact a step, and commit them all."""
    if context.job.committed:
        (prefix,) = context.job.kept
        return {"version": prefix.rpartition("/")[2], "metrics": {"steps": params.steps}, "written": params.steps}
    prefix = f"tests/jobs/{context.attempt_name}"
    await context.will_write(prefix)
    await context.pin(START)
    await context.range(None, START)
    for i in range(params.steps):
        progress(f"step {i + 1}", i / params.steps)
        await context.artifacts.put(f"{prefix}/part-{i}", b"x" * 1000)
        await asyncio.sleep(params.seconds)
    await context.commit(prefix)
    return {"version": prefix.rpartition("/")[2], "metrics": {"steps": params.steps}, "written": params.steps}


async def crunch(context: JobContext, params: Steps, progress: Progress) -> Outcome:
    """Compute in a thread that says how far it is, and leave what is written to be deleted."""
    await context.will_write(f"tests/jobs/{context.attempt_name}")

    def compute() -> None:
        for i in range(params.steps):
            progress(f"step {i + 1}", i / params.steps)
            time.sleep(params.seconds)

    await context.artifacts.put(f"tests/jobs/{context.attempt_name}/scratch", b"x")
    await asyncio.to_thread(compute)
    return {"niceness": os.nice(0), "leads its session": os.getsid(0) == os.getpid(), "session": session_niceness()}


async def ending(context: JobContext, params: Ending, progress: Progress) -> Outcome:
    """End in some way that is not good."""
    if params.how == "gone":  # fails after it has committed, for good
        await context.commit()
        raise VersionDeleted("what it made was taken away")
    await context.will_write(f"tests/jobs/{context.attempt_name}")
    await context.artifacts.put(f"tests/jobs/{context.attempt_name}/part", b"x")
    if params.how == "error":
        raise Conflict("it cannot be done")
    if params.how == "bug":
        raise TypeError("a planted error")
    if params.how == "deaf":  # neither says a word nor listens
        time.sleep(600)  # noqa: ASYNC251
    if params.how.startswith("child"):
        child = await asyncio.create_subprocess_exec("sleep", "600")
        progress(f"child {child.pid}", 0.5)
        if params.how == "child and wait":
            await asyncio.sleep(60)
        return {"child": child.pid}
    if params.how == "memory":
        hold_all_memory()
    if params.how == "memory in a thread":
        await asyncio.to_thread(hold_all_memory)
    if params.how == "death" or (params.how == "death once" and context.job.attempt == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": context.job.attempt}


def hold_all_memory() -> None:
    """Allocate arrays until the limit is reached; they are never written to, so the machine keeps its memory."""
    held = []
    while True:
        held.append(np.empty(2**24, np.uint8))


def session_niceness() -> int | None:
    """Of the session, where Linux groups by sessions."""
    try:
        return int(Path("/proc/self/autogroup").read_text().split()[-1])
    except OSError:
        return None


TEST_METHODS = {
    "steps": JobMethod(Steps, steps),
    "crunch": JobMethod(Steps, crunch, kind="fit"),
    "ending": JobMethod(Ending, ending),
}

group = Settings.group

G = TypeVar("G")


def quick_group(settings: Settings, kind: type[G]) -> G:
    found = group(settings, kind)
    if isinstance(found, JobParams):
        return replace(found, beat_seconds=0.2, lost_seconds=6.0, cancel_seconds=1.0)
    return found


def main() -> int:
    METHODS.update(TEST_METHODS)
    Settings.group = quick_group  # type: ignore[method-assign,assignment]
    job_process.RENEW_SECONDS = 0.3
    dispatcher.RETRY_SECONDS = 0.5
    return child_main.run("worker", None, worker.run)


if __name__ == "__main__":
    sys.exit(main())
