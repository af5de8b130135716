"""The terminal: everything for people goes to stderr, stdout is for data."""

import errno
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

console = Console(stderr=True)


def say(message: str, *, markup: bool = False) -> None:
    """A line for people, as long as it is; [brackets] in it are brackets."""
    console.print(message, highlight=False, soft_wrap=True, markup=markup)


def require_streams(*names: str) -> None:
    """OSError if standard input or output is closed, as by <&- in a shell."""
    for name in names:
        if getattr(sys, name) is None:
            raise OSError(errno.EBADF, f"{name} is closed")


@contextmanager
def stage_progress(*, bars: bool = True) -> Iterator["Stages"]:
    """Bars on a terminal; a line for each stage, and every ten seconds, elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    disable = not (bars and sys.stderr is not None and sys.stderr.isatty())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=disable) as progress:
        yield Stages(progress)


class Stages:
    """Called with what is being done, how far it is, and of how much (0: not known)."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._stage = ""
        self._told = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._stage = stage
            self._task = self.progress.add_task(stage, total=total or None)
        if not self.progress.disable:
            self.progress.update(self._task, completed=done)
        elif time.monotonic() - self._told > 10:
            self._told = time.monotonic()
            say(stage + (f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""))
