"""The terminal: everything for people goes to stderr, stdout is for data."""

import errno
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


class _Messages(io.TextIOBase):
    """Standard error as it is at the time; what cannot be written there is lost, and no error."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        return self._stream is not None and bool(self._stream.isatty())

    def fileno(self) -> int:
        return 2 if self._stream is None else int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(getattr(self._stream, "encoding", None) or "utf-8")

    @property
    def _stream(self) -> Any:
        # While a progress bar is shown, sys.stderr is rich's.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)


console = Console(file=cast(IO[str], _Messages()))


def say(message: str, *, markup: bool = False) -> None:
    """A line for people, as long as it is; [brackets] in it are brackets."""
    console.print(message, highlight=False, soft_wrap=True, markup=markup)


class _ClosedOutput(io.TextIOBase):
    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "stdout is closed")


def set_up_output() -> None:
    """Write UTF-8 to standard output whatever the locale, and names of files as they are.

    If it is closed, as by >&- in a shell, writing raises OSError.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    elif sys.stdout is None:
        sys.stdout = _ClosedOutput()


def require_working_directory() -> None:
    """OSError if the working directory was removed: libraries end the process without one."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        message = "the working directory does not exist any more: change to another"
        raise OSError(error.errno, message) from None


def require_streams(*names: str) -> None:
    """OSError if standard input or output is closed, as by <&- in a shell."""
    for name in names:
        if isinstance(getattr(sys, name), _ClosedOutput | None):
            raise OSError(errno.EBADF, f"{name} is closed")


def progress_bars(
    *columns: ProgressColumn, disable: bool = False, transient: bool = False
) -> Progress:
    """Return bars that are shown on a terminal alone; standard output is left as it is."""
    return Progress(
        *columns,
        console=console,
        disable=disable or not console.file.isatty(),
        transient=transient,
        redirect_stdout=False,
    )


@contextmanager
def stage_progress(*, bars: bool = True) -> Iterator["Stages"]:
    """Bars on a terminal; a line for each stage, and every ten seconds, elsewhere."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with progress_bars(*columns, TimeRemainingColumn(), disable=not bars) as progress:
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
