"""Entry helpers of the child processes: arguments, settings, kernels, and the report of a refusal to start."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable

from abound.metrics import configure_logging
from abound.processes import kernel_cache
from abound.processes.kernel_cache import set_cache_dir
from abound.processes.lifetime import end_with_parent, raise_open_files_limit
from abound.processes.status_pipe import EXIT_REFUSED, Report, Reporter
from abound.settings import Settings
from abound_core.errors import CannotStart


def parser(module: str, purpose: str) -> argparse.ArgumentParser:
    """Return the argument parser of ``python -m abound.MODULE``; ``purpose`` begins with its description."""
    words = argparse.ArgumentParser(prog=f"python -m abound.{module}", description=purpose.partition("\n\n")[0])
    words.add_argument("--status", type=int, help="file descriptor of the inherited pipe to the parent")
    return words


def run(name: str, status: int | None, work: Callable[[Settings, Reporter], None]) -> int:
    """Run the work of the process and return its exit code.

    If it raises CannotStart, the reason goes to the parent through the pipe ``status``, or to standard error
    without one.
    """
    if sys.platform != "linux" and status is not None:
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    reporter = Reporter(status)
    raise_open_files_limit()
    try:
        set_cache_dir()
        settings = Settings.load()
        configure_logging(settings.log_level, settings.log_format)
        work(settings, reporter)
    except CannotStart as error:
        reporter.send(Report(error=str(error)))
        if status is None:
            sys.stderr.write(f"abound {name}: {error}\n")
        return EXIT_REFUSED
    return 0


def load_kernels(reporter: Reporter, first: bool = False) -> None:
    """Load the kernels, or compile them at the first start on a machine, and report that they are ready.

    With ``first`` it waits only for those of the default model; the others are compiled in the background.
    """
    if kernel_cache.is_complete():
        reporter("loading the kernels", 0.0)
    else:
        reporter("compiling kernels, first start only" + (": 10 to 20 s" if first else ""), 0.0)
    from abound.processes import kernel_compiler

    if first:
        kernel_compiler.load_first()
    else:
        kernel_compiler.load_all()
    reporter.send(Report(warm=True))
