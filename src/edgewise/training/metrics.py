"""Metrics of a run: JSON lines, each step once, and the same for TensorBoard."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from edgewise.storage import output_file, utf8_path


class Metrics:
    """Appends to `metrics.jsonl`, which a continued run first cuts back to its checkpoint."""

    def __init__(self, run: Path, step: int) -> None:
        self._run, path = run, run / "metrics.jsonl"
        with self._named():
            _cut_back(path, step)
            # A line reaches the file when it is written: a kill loses none.
            self._lines = path.open("a", encoding="utf-8", buffering=1)
            folder = run / "tensorboard"
            folder.mkdir(exist_ok=True)
            self._stack = ExitStack()
            name = self._stack.enter_context(utf8_path(folder))
            self._board = SummaryWriter(name, purge_step=step + 1)
        self._hook = threading.excepthook
        threading.excepthook = _excepthook

    def write(self, kind: str, step: int, **values: float | int | str) -> None:
        """One record, such as kind "update" or "validation"; TensorBoard gets its numbers."""
        with self._named():
            self._lines.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            for name, value in values.items():
                if not isinstance(value, str):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        """Before a checkpoint: what it goes on from is logged, whatever happens."""
        with self._named():
            os.fsync(self._lines.fileno())
            self._board.flush()

    def close(self) -> None:
        with self._named():
            try:
                self._lines.close()
            finally:
                self._board.close()
                self._stack.close()
                threading.excepthook = self._hook

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say where the disk is full: an error in writing does not know."""
        try:
            yield
        except OSError as error:
            where = error.filename or str(self._run)
            raise OSError(error.errno, error.strerror or str(error), where) from None


def _excepthook(arguments: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread keeps an error for the next call, which tells it."""
    if not isinstance(arguments.exc_value, OSError):
        threading.__excepthook__(arguments)


def read_metrics(run: Path) -> list[dict[str, float | str]]:
    """All records of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def _cut_back(path: Path, step: int) -> None:
    """Drop what was logged after the step that training goes on from, and what is torn."""
    if not path.exists():
        return
    with path.open("rb") as old, output_file(path) as new:
        for line in old:
            try:
                logged = int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError, RecursionError):
                break
            if not line.endswith(b"\n") or logged > step:
                break
            new.write(line)
