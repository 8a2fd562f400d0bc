"""The progress bar of a stream: how far, how fast, how right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Meter:
    """A line on standard error that is renewed in place; nothing when standard error is no terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def total(self, total: float | None) -> None:
        """Start again at 0 of ``total``; None: unknown."""
        self._progress.reset(self._task, total=total)

    def reach(self, done: float) -> None:
        """So much of the total is done."""
        self._progress.update(self._task, completed=done)

    def say(self, text: str) -> None:
        """What stands behind the bar."""
        self._progress.update(self._task, said=text)


@contextmanager
def meter(title: str, *, hidden: bool = False) -> Iterator[Meter]:
    """A progress bar while the block runs; ``hidden`` where results go to the same terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        yield Meter(progress, progress.add_task(title, total=None, said=""))
