"""Many cells, some side by side, each in its own process; stopped together, none is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, Protocol, TypeVar, runtime_checkable

from edgewise.errors import EdgewiseError
from edgewise.storage.locks import open_locked

TICK = 0.5  # seconds
# Training ends after its update and saves; torchrun kills after half a minute.
PATIENCE = 60.0
LOG = "log.txt"
INPUT_OUTPUT = 74  # what a process exits with that could not read or write, as on a full disk


@runtime_checkable
class Job(Protocol):
    """What is needed of a cell to run it."""

    @property
    def name(self) -> str: ...

    @property
    def threads(self) -> int | None:
        """Of its process; None: as many as it likes."""

    def result(self, out: Path) -> Path:
        """Where it stores what it measured, at its end."""

    def command(self, folder: Path) -> list[str]:
        """What runs it, after the name of Python."""


AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True)
class Running(Generic[AnyJob]):
    """A cell that is being worked on."""

    cell: AnyJob
    folder: Path
    process: subprocess.Popen[bytes]
    lock: BinaryIO  # the process holds it too: should we be killed, it is free when that ends
    log_start: int


class FailedCellError(EdgewiseError):
    """Cells that could not be finished; `code` is what the first of them exited with."""

    def __init__(self, failures: Sequence[str], code: int) -> None:
        many = f"{len(failures)} cells failed: " if len(failures) > 1 else ""
        kept = "finished cells are kept, and the same command goes on"
        super().__init__(f"{many}{'; '.join(failures)} ({kept})")
        self.code = code


def run_cells(
    cells: Mapping[Path, AnyJob],
    jobs: int,
    *,
    out: Path,
    ended: Callable[[AnyJob], None],
    told: Callable[[Sequence[Running[AnyJob]]], None],
) -> None:
    """Run the cells of these folders, `jobs` at a time. One that fails does not hold up others.

    ended: called with each cell when its result is stored. told: now and then, what is running.
    A cell that another command is at work on is waited for.
    """
    waiting, running = dict(cells), list[Running[AnyJob]]()
    failures, code = list[str](), 0
    try:
        while waiting or running:
            for folder, cell in list(waiting.items())[: max(0, jobs - len(running))]:
                lock = open_locked(folder / ".lock")
                if lock is None:  # to the end of the queue
                    waiting[folder] = waiting.pop(folder)
                    continue
                del waiting[folder]
                if cell.result(out).is_file():  # the other command's
                    lock.close()
                    ended(cell)
                    continue
                running.append(_start(folder, cell, lock))
            time.sleep(TICK)
            told(running)
            for each in [r for r in running if r.process.poll() is not None]:
                running.remove(each)
                each.lock.close()
                if each.process.returncode == 0:
                    ended(each.cell)
                    continue
                failures.append(_reason(each))
                code = code or _code(each.process.returncode)
                if each.process.returncode == INPUT_OUTPUT:  # the others would fail as well
                    waiting.clear()
                    break
    finally:
        _stop(running)
    if failures:
        raise FailedCellError(failures, code)


def update_of(folder: Path) -> int:
    """How far the training of a cell is, by the last line of its metrics."""
    try:
        with (folder / "run" / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            lines = file.read().split(b"\n")
        return int(lines[-2].partition(b'"step": ')[2].split(b",")[0]) if len(lines) > 1 else 0
    except (OSError, ValueError, IndexError):
        return 0


def _start(folder: Path, cell: AnyJob, lock: BinaryIO) -> Running[AnyJob]:
    command = [sys.executable, *cell.command(folder)]
    # Settings of a cell come from its file alone.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDGEWISE_")}
    if cell.threads is not None:
        environment["OMP_NUM_THREADS"] = str(cell.threads)
    with (folder / LOG).open("ab") as log:
        # In a session of its own: Ctrl-C comes to us, and from us to it, once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )
        return Running(cell, folder, process, lock, log.tell())


def _stop(running: Sequence[Running[AnyJob]]) -> None:
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
        each.lock.close()


def _reason(failed: Running[AnyJob]) -> str:
    """What the process said last."""
    log = failed.folder / LOG
    said = log.read_bytes()[failed.log_start :].decode(errors="replace").splitlines()
    told = next((line for line in reversed(said) if line.startswith("edgewise: ")), "")
    reason = told.removeprefix("edgewise: ") or f"it ended with {failed.process.returncode}"
    return f"{failed.cell.name}: {reason}, see {log}"


def _code(returned: int) -> int:
    return returned if returned > 0 else 128 - returned
