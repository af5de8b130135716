"""Shared by the tests of the commands that run a model: a folder of random weights, made at once,
and the commands themselves, in this process or in one of their own.
"""

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgewise.checkpoint.model_folder import KIND, VERSION, weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import read_json, seal, write_json

# The module: edgewise.cli has a function of this name.
commands = importlib.import_module("edgewise.cli.main")

SETTINGS = ModelSettings(
    encoder_layers=2, decoder_layers=2, d_model=32, heads=4, d_ff=48, max_distance=5
)
# As wherever SIGINT is not ignored; tests may run where it is.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from edgewise.cli.main import main
sys.argv = ["edgewise", *sys.argv[1:]]
main()
"""
Change = Callable[[dict[str, Tensor]], None]


def make_vocabulary(seed: int = 1) -> Vocabulary:
    return Vocabulary.train([line for pair in pairs(2000, seed) for line in pair], 700)


def random_weights(vocabulary: Vocabulary, seed: int, **changes: Any) -> dict[str, Tensor]:
    """Of a model that has learnt nothing, but whose translations are many and differ."""
    model = Transformer(SETTINGS.model_copy(update=changes), vocabulary.size)
    initialise(model, seed)
    tensors = weights(model)
    tensors["embedding.weight"] *= 2
    for layer in range(SETTINGS.decoder_layers):
        tensors[f"decoder.{layer}.cross.output.weight"] *= 2
    return tensors


def make_model(
    folder: Path,
    vocabulary: Vocabulary,
    *,
    seed: int = 1,
    change: Change | None = None,
    generation: Mapping[str, object] | None = None,
    languages: tuple[str, str] | None = None,
    **changes: Any,
) -> Path:
    """A model folder. change: of the weights; generation: of how the folder asks to be used;
    others are of the ModelSettings.
    """
    tensors = random_weights(vocabulary, seed, **changes)
    if change is not None:
        change(tensors)
    settings = SETTINGS.model_copy(update=changes)
    write_model(folder, tensors, settings, vocabulary, {}, languages)
    if generation is not None:
        path = folder / "generation_config.json"
        write_json(path, {**read_json(path), **generation})
        reseal(folder)
    return folder


def reseal(folder: Path) -> None:
    """Make the manifest agree with whatever is there now."""
    (folder / "manifest.json").unlink()
    seal(folder, KIND, VERSION)


def always(favourites: Mapping[int, float]) -> Change:
    """The decoder's output is the same at each step: these tokens have the greatest logits."""

    def change(tensors: dict[str, Tensor]) -> None:
        last = f"decoder.{SETTINGS.decoder_layers - 1}.around_feed_forward.norm"
        tensors[f"{last}.weight"].zero_()
        tensors[f"{last}.bias"].copy_(torch.eye(SETTINGS.d_model)[0])
        tensors["embedding.weight"][:, 0] = -20
        for token, logit in favourites.items():
            tensors["embedding.weight"][token, 0] = logit

    return change


@dataclass(frozen=True)
class Result:
    """What a command exited with and wrote."""

    code: int
    out: bytes
    said: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout, each of which must have its end."""
        *lines, rest = self.out.decode().split("\n")
        assert rest == ""
        return lines


class Command:
    """Runs a command in this process, as if from a shell; a traceback would end the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *arguments: str | Path, stdin: bytes | str = b"") -> Result:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        names = {name: self.folder / f"{name}-of-the-command" for name in ("in", "out", "err")}
        names["in"].write_bytes(content)
        with (
            names["in"].open() as source,
            names["out"].open("w") as out,
            names["err"].open("w") as err,
            streams(stdin=source, stdout=out, stderr=err),
        ):
            code = commands.run([str(argument) for argument in arguments])
        said = names["err"].read_text()
        assert "Traceback" not in said
        return Result(code, names["out"].read_bytes(), said)


@contextmanager
def streams(**given: Any) -> Iterator[None]:
    """Other standard streams; None is one that is closed."""
    with ExitStack() as stack:
        for name, stream in given.items():
            stack.callback(setattr, sys, name, getattr(sys, name))
            setattr(sys, name, stream)
        yield


class Process:
    """A command in a process of its own; one that hangs is killed."""

    def __init__(self, *arguments: str | Path, stdout: Any = subprocess.PIPE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self._watch = threading.Timer(60, self._process.kill)
        self.signal = self._process.send_signal

    def __enter__(self) -> "Process":
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._watch.cancel()

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def line(self) -> bytes:
        """The next line of its output, once it is there."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close_output(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.stdout = None

    def result(self, *, close: bool = True) -> Result:
        """How it ended, and the output that was not read yet; its input is closed before."""
        if close:
            out, said = self._process.communicate()
        else:
            self._process.wait()
            assert self._process.stderr is not None
            out = self._process.stdout.read() if self._process.stdout is not None else b""
            said = self._process.stderr.read()
        assert b"Traceback" not in said and b"Exception" not in said
        return Result(self._process.returncode, out or b"", said.decode())
