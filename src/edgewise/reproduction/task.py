"""What a task of a reproduction consists of: preparing its data, and running a cell on them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from edgewise.reproduction.cells import Cell
from edgewise.reproduction.results import Outcome
from edgewise.reproduction.scales import Scale
from edgewise.training.reporter import Reporter

Say = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    """The data of a scale and a pair of languages."""

    folder: Path
    files: dict[str, str]  # sha256 of each file they were made from


@runtime_checkable
class Task(Protocol):
    """Translation, graphs, …"""

    def prepare(
        self, scale: Scale, pair: str, data: Path | None, out: Path, say: Say
    ) -> PreparedData:
        """Find the data in the folder of --data and prepare them in `out`, once.

        SettingError if files are missing; DataError if they have changed since.
        """

    def run(
        self, cell: Cell, data: PreparedData, folder: Path, reporter: Reporter | None
    ) -> Outcome | None:
        """Train and measure, resuming what `folder` has; None on ranks other than the first."""


def task_for(scale: Scale) -> Task:
    """Return the task of a scale."""
    # Imported here: each needs a part of edgewise that the others do not.
    if scale.task == "graphs":
        from edgewise.reproduction.clutrr.task import Graphs

        return Graphs()
    from edgewise.reproduction.translation import Translation

    return Translation()
