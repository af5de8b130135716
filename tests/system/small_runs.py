"""Shared by the system tests: a small corpus, a tiny model, and processes that train it.

Not a conftest.py: a second module of that name would hide the one in tests/.
"""

import atexit
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from waiting import PATIENCE

from edgewise.data.batches import Batches
from edgewise.data.corpus import Corpus
from edgewise.data.grammar import pairs
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import TextFile
from edgewise.data.vocabulary import Vocabulary

# One update is 3 batches; an epoch of 15 batches is 5 updates.
BATCHES, EPOCH = 3, 5
SPEED = ("seconds", "tokens_per_second")

_context = multiprocessing.get_context("forkserver")
# Imported once by the fork server, so that its processes start at once. (Adam imports dynamo.)
_context.set_forkserver_preload(
    ["pytest", "torch._dynamo", "edgewise.cli.main", "edgewise.cli.training_progress"]
)


def make_corpus(
    out: Path, *, count: int = 300, seed: int = 3, vocab: Vocabulary | int = 400
) -> Path:
    """A prepared corpus with a split to validate on."""
    folder = out.with_name(f"{out.name}-text")
    folder.mkdir(parents=True)
    bitexts = [
        _bitext(folder, "train", count, seed),
        _bitext(folder, "valid", count // 10, seed + 1),
    ]
    prepare(out, bitexts[:1], bitexts[1:], vocab=vocab)
    return out


def _bitext(folder: Path, name: str, count: int, seed: int) -> Bitext:
    source, target = zip(*pairs(count, seed), strict=True)
    for language, lines in (("en", source), ("de", target)):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    return Bitext(TextFile(folder / f"{name}.en"), TextFile(folder / f"{name}.de"))


def batch_tokens(corpus: Path) -> int:
    """The least batch size with which the first epoch is just EPOCH updates."""
    train = Corpus(corpus).train
    longest = max(int(lengths.max()) for lengths in train.lengths()) + 1
    for limit in range(longest, 100 * longest):
        if len(Batches(train, limit, seed=1).epoch(0)) == BATCHES * EPOCH:
            return limit
    raise AssertionError("no batch size divides the epoch")


def write_config(path: Path, corpus: Path) -> Path:
    """A file for `edgewise train` that lacks nothing but `out`."""
    path.write_text(
        f"""
corpus = "{corpus}"

[model]
encoder_layers = 1
decoder_layers = 1
d_model = 16
heads = 2
d_ff = 32
max_distance = 3
dropout = 0.2

[training]
steps = 11
batch_tokens = {batch_tokens(corpus)}
batches = {BATCHES}
warmup = 7
factor = 0.3
validate_every = 4
save_every = 3
keep = 3
threads = 1
device = "cpu"
"""
    )
    return path


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, in a forked process that has already imported PyTorch."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        started = Started(arguments, err, out=out)
        code = started.code(2 * PATIENCE)
        if code is None:
            started.kill()
        assert code is not None, started.said()
        printed = (path.read_text(encoding="utf-8") for path in (out, err))
        return subprocess.CompletedProcess(arguments, code, *printed)


# The program of `forking_program`: it sends its arguments, environment and standard streams to a
# thread of the test, which forks a process for them.
CLIENT = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] == ["serve"]:  # signals must reach the process that serves
    os.execv({python!r}, [{python!r}, "-m", "edgewise", *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({address!r})
message = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
connection.sendall(message[socket.send_fds(connection, [message], [0, 1, 2]):])
connection.shutdown(socket.SHUT_WR)
sys.exit(int(connection.recv(16)))
"""


@contextmanager
def forking_program(folder: Path) -> Iterator[Path]:
    """Write a program `edgewise` into a folder; it runs commands in forked processes."""
    with TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        address = f"{short}/socket"  # the path of a socket has at most 108 bytes
        listener.bind(address)
        listener.listen()
        folder.mkdir()
        program = folder / "edgewise"
        program.write_text(CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
        threading.Thread(target=_serve_clients, args=(listener,), daemon=True).start()
        yield folder


def _serve_clients(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_serve_client, args=(connection,), daemon=True).start()


def _serve_client(connection: socket.socket) -> None:
    with connection:
        message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        while part := connection.recv(1 << 20):
            message += part
        arguments, environment, folder = json.loads(message)
        process = _context.Process(
            target=_client_child,
            args=(arguments, (environment, folder), [DupFd(stream) for stream in streams]),
        )
        process.start()
        process.join()
        for stream in streams:
            os.close(stream)
        connection.sendall(str(process.exitcode).encode())


def _client_child(arguments: list[str], given: "Inherited", streams: list[Any]) -> None:
    descriptors = [stream.detach() for stream in streams]
    inherit(given, descriptors[1], descriptors[2])
    os.dup2(descriptors[0], 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    from edgewise.cli.main import main

    sys.argv = ["edgewise", *arguments]
    main()


class Started:
    """A command in a forked process that has already imported PyTorch."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        out: Path | None = None,
        signal: int = 0,
        at_batch: int = 0,
        at_rename: int = 0,
    ) -> None:
        """log: file for stderr. out: file for stdout (default: `log`).

        With a signal, the process sends it to itself when it begins its n-th batch of training, or
        before its n-th renaming of a file or a folder.
        """
        self.log = log
        self.process: ForkServerProcess = _context.Process(
            target=_child,
            args=(list(arguments), out or log, log, inherited(), signal, at_batch, at_rename),
        )
        self.process.start()

    def code(self, timeout: float | None = None) -> int | None:
        """What it exited with, minus the signal if one killed it; None if it runs on."""
        self.process.join(timeout)
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


Inherited = tuple[dict[str, str], str]


def inherited() -> Inherited:
    """Return environment and working directory, which a process of the fork server lacks."""
    return dict(os.environ), os.getcwd()


def inherit(given: Inherited, out: Path | int, err: Path | int, *, append: bool = False) -> None:
    """Set environment, working directory and output of a process of the fork server."""
    environment, folder = given
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream, target in ((2, err), (1, out)):
        if isinstance(target, Path):
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if not append:
                os.ftruncate(descriptor, 0)
        else:
            descriptor = target
        os.dup2(descriptor, stream)
    # Those of the fork server were opened on other files.
    sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
    if "coverage" in sys.modules and (measured := sys.modules["coverage"].Coverage.current()):
        measured.switch_context(environment.get("PYTEST_CURRENT_TEST", ""))
        # Those of the fork server belong to its own measurement; an interrupted command calls them.
        atexit._clear()
        atexit.register(measured.save)
        atexit.register(measured.stop)  # called first
    torch.set_num_threads(1)


def _child(
    arguments: list[str],
    out: Path,
    log: Path,
    given: Inherited,
    number: int,
    at_batch: int,
    at_rename: int,
) -> None:
    inherit(given, out, log)
    from edgewise.cli.main import main

    if number:
        _signal_at(number, at_batch, at_rename)
    sys.argv = ["edgewise", *arguments]
    main()


def _signal_at(number: int, at_batch: int, at_rename: int) -> None:
    from edgewise.training.trainer import Trainer

    seen = {"batches": 0, "renames": 0}
    loss, rename, replace = Trainer._loss, os.rename, os.replace

    def count(what: str, last: int) -> None:
        seen[what] += 1
        if seen[what] == last:
            os.kill(os.getpid(), number)

    def counted_loss(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.model.training:
            count("batches", at_batch)
        return loss(trainer, *arguments)

    def counted_rename(*arguments: Any, **options: Any) -> None:
        count("renames", at_rename)
        rename(*arguments, **options)

    def counted_replace(*arguments: Any, **options: Any) -> None:
        count("renames", at_rename)
        replace(*arguments, **options)

    Trainer._loss = counted_loss  # type: ignore[method-assign]
    os.rename, os.replace = counted_rename, counted_replace


def result(run: Path, step: int) -> dict[str, bytes]:
    """All that training came to, as the bytes of its files."""
    checkpoint = run / "checkpoints" / f"step-{step:08d}"
    names = ("model/model.safetensors", "state/optimizer.safetensors", "state/progress.json")
    assert (run / "last").resolve() == (checkpoint / "model").resolve()
    files = {name: (checkpoint / name).read_bytes() for name in names}
    return files | {"best": (run / "best" / "model.safetensors").read_bytes()}


def metrics(run: Path) -> list[dict[str, Any]]:
    """All records without what depends on the machine."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        for name in SPEED:
            assert (name in record) == (record["kind"] == "update")
            record.pop(name, None)
    return records


def progress(run: Path, step: int) -> dict[str, Any]:
    path = run / "checkpoints" / f"step-{step:08d}" / "state" / "progress.json"
    values: dict[str, Any] = json.loads(path.read_bytes())
    return values
