"""A progress bar on standard error, followed by a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """A progress bar on standard error. It shows nothing if standard error is not a terminal."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reset(self, total: float | None) -> None:
        self._progress.reset(self._task, total=total)

    def advance_to(self, done: float) -> None:
        self._progress.update(self._task, completed=done)

    def set_text(self, text: str) -> None:
        self._progress.update(self._task, said=text)


@contextmanager
def progress_bar(title: str, *, hidden: bool = False) -> Iterator[ProgressBar]:
    """Show a progress bar while the block runs. Use ``hidden`` if results go to the same terminal."""
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
        yield ProgressBar(progress, progress.add_task(title, total=None, said=""))
