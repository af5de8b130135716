"""Several ranks that train together, for the system tests, and faults that are put into them.

`Ranked` starts them as torchrun would, from a process that has everything imported; `Torchrun`
starts torchrun itself, with this file as its script.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from small_runs import Inherited, _context, inherit, inherited, metrics, result
from torch import Tensor
from waiting import PATIENCE

import edgewise

VARIABLE = "RANKED_FAULTS"


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a rank, or in all, when it begins its n-th batch of an update.

    Only in its first life: not where torchrun has started it anew.
    """

    rank: int | None = None
    update: int = 0
    batch: int = 1  # of its own
    signal: int = 0
    to_launcher: bool = False  # the signal goes to torchrun
    leaving: bool = False  # the rank gets SIGTERM once more when it takes leave of the others
    exiting: bool = False  # and when Python ends
    loss: float = 1.0  # the loss is multiplied by this
    gradient: float = 0.0  # this is added to the gradient
    memory: int = 0  # bytes that the process may have more than it has with all imported
    records: str = ""  # a folder for what each rank does, for its process and its exit code


class Ranked:
    """A command in as many processes as there are ranks."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        size: int,
        faults: Faults | None = None,
        *,
        only: dict[int, Sequence[str]] | None = None,
        after: "Ranked | None" = None,
    ) -> None:
        """folder: for what they say. only: more arguments for some ranks. after: those that these
        are started in place of; then rank 0 is the last to start, by a second.
        """
        folder.mkdir(exist_ok=True)
        # As torchrun does, we have the store by which the ranks find each other, and keep it.
        self._store = after._store if after else _store()
        self.restarts: int = after.restarts + 1 if after else 0
        self.logs = [folder / f"rank-{rank}.log" for rank in range(size)]
        self.processes: list[Any] = []
        for rank in range(size)[:: -1 if after else 1]:
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RUN_ID": "ranked",
                "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
                VARIABLE: json.dumps(asdict(faults or Faults())),
            }
            mine = [*arguments, *(only or {}).get(rank, ())]
            self.logs[rank].unlink(missing_ok=True)
            process = _context.Process(
                target=_rank,
                args=(mine, self.logs[rank], inherited(), environment),
                daemon=True,
            )
            if after and rank == 0:
                time.sleep(1)  # the other ranks must wait for rank 0
            process.start()
            self.processes.append(process)
        if after:
            self.processes.reverse()

    def __enter__(self) -> "Ranked":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def codes(self, timeout: float = PATIENCE) -> list[int | None]:
        """What they exited with, minus the signal if one killed them; None for one that runs on."""
        end = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def said(self) -> str:
        return "".join(log.read_text() for log in self.logs if log.exists())

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()


def _store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


class Torchrun:
    """torchrun in a process group of its own; its ranks are in groups of their own, too."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        size: int,
        faults: Faults | None = None,
        *,
        options: Sequence[str] = (),
        meet: Sequence[str] = ("--standalone",),
    ) -> None:
        """faults: with them this file is the script, without them the package is.

        meet: the options of torchrun that say which others there are.
        """
        folder.mkdir(exist_ok=True)
        self.log = folder / "torchrun.log"
        script = ["-m", "edgewise"] if faults is None else [__file__]
        # The script imports modules from tests/.
        found = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(":")]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(found)}
        if faults is not None:
            environment[VARIABLE] = json.dumps(asdict(faults))
        launch = [sys.executable, "-m", "torch.distributed.run", *meet]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*launch, f"--nproc-per-node={size}", *options, *script, *arguments],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> "Torchrun":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # it starts nothing meanwhile
            for child in children(self.process.pid):
                os.kill(child, signal.SIGKILL)
            self.process.kill()
        self.process.wait()

    def code(self, timeout: float = PATIENCE) -> int:
        return self.process.wait(timeout)

    def said(self) -> str:
        return self.log.read_text()


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_no_traceback(said: str) -> None:
    """Fail on a traceback through our code; torchrun prints its own when a rank fails."""
    for folder in (*edgewise.__path__, Path(__file__).parent):
        assert f'File "{folder}' not in said, said
    if "torch.distributed" not in said and "torchrun" not in said:
        assert "Traceback" not in said, said


def assert_the_same_run(run: Path, expected: Path, steps: int) -> None:
    """The same bytes, and each update logged once."""
    actual_files, expected_files = result(run, steps), result(expected, steps)
    for name, content in expected_files.items():
        assert actual_files[name] == content, f"{name} differs"
    assert metrics(run) == metrics(expected)
    logged = [record["step"] for record in metrics(run) if record["kind"] == "update"]
    assert logged == list(range(1, steps + 1))


def starts(run: Path) -> list[tuple[int, int]]:
    """From which step the run went on each time, and with how many ranks."""
    noted = json.loads((run / "run.json").read_bytes())["starts"]
    return [(start["step"], start["ranks"]) for start in noted]


def records(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Each update of a rank: its step, the pairs of each of its batches, hashes of its state."""
    return [json.loads(line) for line in (folder / f"updates-{rank}").read_text().splitlines()]


def noted(folder: Path, what: str) -> dict[int, list[int]]:
    """The `pids` or `codes` of each rank, one for each of its lives."""
    lines = {path: path.read_text().split() for path in sorted(folder.glob(f"{what}-*"))}
    return {int(path.name.rpartition("-")[2]): [*map(int, n)] for path, n in lines.items()}


def _rank(arguments: list[str], log: Path, given: Inherited, environment: dict[str, str]) -> None:
    inherit(given, log, log)
    os.environ.update(environment)
    _main(arguments)


def _main(arguments: list[str]) -> None:
    commands = import_module("edgewise.cli.main")
    faults = Faults(**json.loads(os.environ[VARIABLE]))
    rank = int(os.environ["RANK"])
    if faults.rank in (None, rank) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        _go_wrong(faults)
    if faults.memory:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + faults.memory, most))
    sys.argv = ["edgewise", *arguments]
    if faults.records:
        _record(Path(faults.records), rank)
        _note(faults.records, "pids", rank, os.getpid())
    leave = commands.leave

    def noted_leave(code: int) -> None:
        if faults.records:
            _note(faults.records, "codes", rank, code)
        if faults.exiting and faults.rank in (None, rank):
            os.kill(os.getpid(), signal.SIGTERM)
        leave(code)

    commands.leave = noted_leave
    commands.main()


def _note(folder: str, what: str, rank: int, value: object) -> None:
    with Path(folder, f"{what}-{rank}").open("a") as file:
        file.write(f"{value}\n")


def _go_wrong(faults: Faults) -> None:
    from edgewise.training import trainer
    from edgewise.training.trainer import Trainer

    def again() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if faults.leaving:
        leave = dist.destroy_process_group
        dist.destroy_process_group = lambda: (again(), leave())
    seen = {"update": 0, "batch": 0}
    there = {"update": faults.update, "batch": faults.batch}
    update_of, loss_of, summed_loss = Trainer.update, Trainer._loss, trainer.summed_loss

    def update(self: Trainer, step: int, *arguments: Any) -> Any:
        seen.update(update=step, batch=0)
        return update_of(self, step, *arguments)

    def loss(self: Trainer, *arguments: Any) -> Tensor:
        seen["batch"] += self.model.training
        now = self.model.training and seen == there
        if now and faults.signal:
            os.kill(os.getppid() if faults.to_launcher else os.getpid(), faults.signal)
        value = loss_of(self, *arguments)
        return value * faults.loss if now else value

    def steep(states: Tensor, table: Tensor, *arguments: Any) -> Tensor:
        if torch.is_grad_enabled() and seen == there and faults.gradient:
            table = table.view_as(table)
            table.register_hook(lambda gradient: gradient + faults.gradient)
        return summed_loss(states, table, *arguments)

    Trainer.update, Trainer._loss = update, loss  # type: ignore[method-assign]
    trainer.summed_loss = steep


def _record(folder: Path, rank: int) -> None:
    from edgewise.data.batches import Batch, Batches
    from edgewise.training.trainer import Trainer, Update

    folder.mkdir(exist_ok=True)
    made: dict[int, list[int]] = {}
    batch_of, update_of = Batches.batch, Trainer.update

    def batch(self: Batches, pairs: Any) -> Batch:
        one = batch_of(self, pairs)
        made[id(one)] = pairs.tolist()
        return one

    def update(self: Trainer, step: int, batches: Sequence[Batch], *arguments: Any) -> Update:
        pairs = [made[id(one)] for one in batches]
        made.clear()
        done = update_of(self, step, batches, *arguments)
        values = {"weights": self.parameters, "optimizer": self.optimizer_tensors()}
        hashes = {name: _hash(tensors) for name, tensors in values.items()}
        with (folder / f"updates-{rank}").open("a") as file:
            file.write(json.dumps({"step": step, "pairs": pairs, **hashes}) + "\n")
        return done

    Batches.batch, Trainer.update = batch, update  # type: ignore[method-assign]


def _hash(tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors.values():
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    _main(sys.argv[1:])
