"""How fetching a corpus goes, on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from edgewise.cli.console import Stages, progress_bars


@contextmanager
def fetch_progress() -> Iterator[Stages]:
    """One bar of bytes on a terminal, which goes away; a line now and then elsewhere."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with progress_bars(*columns, *speed, transient=True) as progress:
        yield _OneBar(progress)


class _OneBar(Stages):
    """A corpus has many files: the bar of the one before makes room."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._stage not in ("", stage):
            self.progress.remove_task(self._task)
        super().__call__(stage, done, total)
