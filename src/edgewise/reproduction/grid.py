"""Run cells, several at a time, each in its own process; all are stopped together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edgewise.errors import EdgewiseError
from edgewise.reproduction.cells import Cell
from edgewise.storage.locks import open_locked

TICK = 0.5  # seconds
# Training ends after its update and saves; torchrun kills after half a minute.
PATIENCE = 60.0
LOG = "log.txt"
INPUT_OUTPUT = 74  # the exit code after a failed read or write, as on a full disk


@dataclass(frozen=True)
class RunningCell:
    """A cell and its process."""

    cell: Cell
    folder: Path
    process: subprocess.Popen[bytes]
    lock: BinaryIO  # held by the process too: after our death it is free when that process ends
    log_start: int


class FailedCellError(EdgewiseError):
    """Cells that failed; `code` is the exit code of the first."""

    def __init__(self, failures: Sequence[str], code: int) -> None:
        many = f"{len(failures)} cells failed: " if len(failures) > 1 else ""
        kept = "finished cells are kept, and the same command continues"
        super().__init__(f"{many}{'; '.join(failures)} ({kept})")
        self.code = code


def run_cells(
    cells: Mapping[Path, Cell],
    jobs: int,
    *,
    out: Path,
    on_end: Callable[[Cell], None],
    on_tick: Callable[[Sequence[RunningCell]], None],
) -> None:
    """Run the cells of these folders, `jobs` at a time; if one fails, the others go on.

    on_end: called with each cell when its result is stored. on_tick: called regularly with the
    running cells. A cell that another command is running is waited for.
    """
    waiting, running = dict(cells), list[RunningCell]()
    failures, code = list[str](), 0
    try:
        while waiting or running:
            for folder, cell in list(waiting.items())[: max(0, jobs - len(running))]:
                lock = open_locked(folder / ".lock")
                if lock is None:  # another command runs it: to the end of the queue
                    waiting[folder] = waiting.pop(folder)
                    continue
                del waiting[folder]
                if cell.result(out).is_file():  # another command has finished it
                    lock.close()
                    on_end(cell)
                    continue
                running.append(_start(folder, cell, lock))
            time.sleep(TICK)
            on_tick(running)
            for each in [r for r in running if r.process.poll() is not None]:
                running.remove(each)
                each.lock.close()
                if each.process.returncode == 0:
                    on_end(each.cell)
                    continue
                failures.append(_reason(each))
                returned = each.process.returncode
                code = code or (returned if returned > 0 else 128 - returned)
                if returned == INPUT_OUTPUT:  # the others would fail as well
                    waiting.clear()
                    break
    finally:
        _stop(running)
    if failures:
        raise FailedCellError(failures, code)


def update_of(folder: Path) -> int:
    """Return the last update or epoch of a cell, from the last line of its metrics."""
    try:
        with (folder / "run" / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")
        return int(lines[-2].partition(b'"step": ')[2].split(b",")[0]) if len(lines) > 1 else 0
    except (OSError, ValueError, IndexError):
        return 0


def _start(folder: Path, cell: Cell, lock: BinaryIO) -> RunningCell:
    command = [sys.executable, *cell.command(folder)]
    # The settings of a cell come from its file only.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDGEWISE_")}
    if cell.threads is not None:
        environment["OMP_NUM_THREADS"] = str(cell.threads)
    with (folder / LOG).open("ab") as log:
        # In a new session, so that Ctrl-C reaches it once, by our signal.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
        return RunningCell(cell, folder, process, lock, log.tell())


def _stop(running: Sequence[RunningCell]) -> None:
    """Stop all cells after they have saved."""
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
        each.lock.close()


def _reason(failed: RunningCell) -> str:
    """Return the last error of the process."""
    log = failed.folder / LOG
    lines = log.read_bytes()[failed.log_start :].decode(errors="replace").splitlines()
    error = next((line for line in reversed(lines) if line.startswith("edgewise: ")), "")
    reason = error.removeprefix("edgewise: ") or f"it ended with {failed.process.returncode}"
    return f"{failed.cell.name}: {reason}, see {log}"
