"""Many cells, some side by side, each in its own process; stopped together, none is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.errors import EdgewiseError
from edgewise.reproduction.cells import Cell

TICK = 0.5  # seconds
# Training ends after its update and saves; torchrun kills after half a minute.
PATIENCE = 60.0
LOG = "log.txt"


@dataclass(frozen=True)
class Running:
    """A cell that is being worked on."""

    cell: Cell
    folder: Path
    process: subprocess.Popen[bytes]
    since: float


Told = Callable[[Sequence[Running]], None]


class FailedCellError(EdgewiseError):
    """A cell could not be finished; `code` is what its process exited with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_cells(
    cells: Mapping[Path, Cell], jobs: int, *, ended: Callable[[Cell], None], told: Told
) -> None:
    """Run the cells of these folders, `jobs` at a time. The first that fails ends all.

    ended: called with each cell when its result is stored. told: now and then, what is running.
    """
    waiting = list(cells.items())
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                folder, cell = waiting.pop(0)
                running.append(Running(cell, folder, _start(folder, cell), time.monotonic()))
            time.sleep(TICK)
            told(running)
            for each in [r for r in running if r.process.poll() is not None]:
                running.remove(each)
                if each.process.returncode:
                    raise _failure(each)
                ended(each.cell)
    finally:
        _stop(running)


def update_of(folder: Path) -> int:
    """How far the training of a cell is, by the last line of its metrics."""
    try:
        with (folder / "run" / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")
        return int(lines[-2].partition(b'"step": ')[2].split(b",")[0]) if len(lines) > 1 else 0
    except (OSError, ValueError, IndexError):
        return 0


def _start(folder: Path, cell: Cell) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgewise", "reproduce", "cell", str(folder)]
    if cell.ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command[1:2] = [*launch, str(cell.ranks), "-m"]
    # Settings of a cell come from its file alone.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDGEWISE_")}
    if cell.training.threads is not None:
        environment["OMP_NUM_THREADS"] = str(cell.training.threads)
    with (folder / LOG).open("ab") as log:
        # In a session of its own: Ctrl-C comes to us, and from us to it, once.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def _stop(running: Sequence[Running]) -> None:
    """Let all save what they have."""
    for each in running:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    for each in running:
        try:
            each.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()
            each.process.wait()


def _failure(failed: Running) -> FailedCellError:
    """What the process said last."""
    log = failed.folder / LOG
    lines = log.read_text("utf-8", errors="replace").splitlines() if log.is_file() else []
    said = next((line for line in reversed(lines) if line.startswith("edgewise: ")), "")
    reason = said.removeprefix("edgewise: ") or f"it ended with {failed.process.returncode}"
    return FailedCellError(
        f"cell {failed.cell.name} failed: {reason} (all it said: {log}; finished cells are kept, "
        "and the same command goes on)",
        failed.process.returncode,
    )
