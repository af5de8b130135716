"""Progress of the cells of a reproduction, on the terminal."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from edgewise.cli.console import progress_bars, say
from edgewise.cli.training_progress import duration
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.grid import RunningCell, update_of

LINE_EVERY = 30.0  # seconds, where there is no terminal


@contextmanager
def grid_progress(cells: Sequence[Cell]) -> Iterator["GridProgress"]:
    """Show a bar for each running cell on a terminal, otherwise a line every half minute."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with progress_bars(*columns) as bars:
        yield GridProgress(bars, cells)


class GridProgress:
    """Shows running cells, and prints a line for each that ends."""

    def __init__(self, bars: Progress, cells: Sequence[Cell]) -> None:
        self._bars = bars
        self._left = {cell.name: cell.budget for cell in cells}
        self._begun: dict[str, int] = {}  # the update each was resumed from
        self._done, self._count, self._total = 0, 0, len(cells)
        self._start = time.monotonic()
        self._last_line = self._start
        self._tasks: dict[str, TaskID] = {}

    def show(self, running: Sequence[RunningCell]) -> None:
        """Show the progress of the running cells."""
        now = {each.cell.name: update_of(each.folder) for each in running}
        for name, update in now.items():
            self._begun[name] = min(update, self._begun.get(name, update))
        if not self._bars.disable:
            for each in running:
                name = each.cell.name
                if name not in self._tasks:
                    steps = each.cell.budget
                    self._tasks[name] = self._bars.add_task(name, total=steps)
                self._bars.update(self._tasks[name], completed=now[name])
        elif time.monotonic() - self._last_line > LINE_EVERY:
            self._last_line = time.monotonic()
            at = "; ".join(
                f"{each.cell.name} {now[each.cell.name]:,} of {each.cell.budget:,}"
                for each in running
            )
            say(f"{self._count} of {self._total} cells, {self._time_left(now)}: {at}")

    def end(self, cell: Cell) -> None:
        """Print that a result is stored."""
        self._count += 1
        self._done += cell.budget - self._begun.get(cell.name, 0)
        self._left.pop(cell.name, None)
        if cell.name in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.name))
        say(f"{cell.name} is finished, {self._count} of {self._total}")

    def _time_left(self, now: dict[str, int]) -> str:
        done = self._done + sum(update - self._begun[name] for name, update in now.items())
        if done <= 0:
            return "time left unknown"
        left = max(0, sum(self._left.values()) - sum(now.values()))
        return f"{duration((time.monotonic() - self._start) * left / done)} left"
