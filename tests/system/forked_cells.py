"""Cells of `edgewise reproduce` in forked processes that have already imported PyTorch.

The process of a cell spends seconds on importing PyTorch and its compiler, and one on training.
`fork_cells` forks it instead, in tests that do not test the start of the process.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from small_runs import Inherited, _context, inherit

from edgewise.reproduction import grid


class ForkedProcess:
    """The part of subprocess.Popen that `run_cells` uses, for `python -m edgewise …`."""

    def __init__(
        self, command: list[str], *, stdout: IO[bytes], env: dict[str, str], **options: Any
    ) -> None:
        program, _, _, *arguments = command
        assert program == sys.executable
        # With --parent a cell ends when that process is not its parent; here the fork server is.
        at = arguments.index("--parent")
        del arguments[at : at + 2]
        self._process = _context.Process(
            target=_run_cell, args=(arguments, Path(stdout.name), (env, os.getcwd()))
        )
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("edgewise", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_cell(arguments: list[str], log: Path, given: Inherited) -> None:
    inherit(given, log, log, append=True)
    from edgewise.cli.main import main

    sys.argv = ["edgewise", *arguments]
    main()


def _start(command: list[str], **options: Any) -> Any:
    forked = command[1:3] == ["-m", "edgewise"]  # not torchrun
    return (ForkedProcess if forked else subprocess.Popen)(command, **options)


def fork_cells(patch: pytest.MonkeyPatch) -> None:
    names = {"DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    patch.setattr(grid, "subprocess", SimpleNamespace(Popen=_start, **names))
    patch.setattr(grid, "TICK", 0.02)


def plan(said: str) -> list[str]:
    """Return the numbers of the line on all cells: finished, total, jobs and time."""
    line = next(line for line in said.splitlines() if re.search(r"\bcells?\b", line))
    first, second, *others = re.findall(r"[\d,:]*\d", line)
    return [*sorted((first, second), key=int), *others]
