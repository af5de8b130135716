"""A damaged model folder translates as before or gives one clear error: soon, in little memory."""

import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import damage
from pydantic import ValidationError
from small_runs import _context, inherit, inherited
from tiny_model import make_model, make_vocabulary
from waiting import PATIENCE

from edgewise.checkpoint import model_folder
from edgewise.data.imported_vocabulary import ImportedVocabulary
from edgewise.decoding import DecodingSettings, Translator
from edgewise.errors import EdgewiseError

LINES = ("The old man sleeps .", "a child", "", "Die Katze 123 !")
CPU_SECONDS, RESIDENT = 5.0, 1 << 30
# Settings of a model whose change, where the manifest agrees with it, damages nothing.
HARMLESS = {"dropout", "attention_dropout", "norm_epsilon"}
BAD_DATA = {2, 65, 74}
pytestmark = pytest.mark.usefixtures("one_thread")


def run_case(arguments: list[str], stdin: Path, out: Path, err: Path, given: Any) -> None:
    """Translate in a forked process; write its processor seconds and greatest memory beside."""
    inherit(given, out, err)
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    from edgewise.cli.main import main

    sys.argv = ["edgewise", *arguments]
    before = resource.getrusage(resource.RUSAGE_SELF)
    try:
        main()
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        out.with_suffix(".used").write_text(json.dumps([seconds, 1024 * used.ru_maxrss]))


class Cases:
    """Damages copies of a folder and translates with each."""

    def __init__(self, folder: Path, work: Path, kind: str, version: int, engine: str) -> None:
        self.folder, self.work, self.kind, self.version = folder, work, kind, version
        self.options = [] if engine == "edgewise" else ["--engine", engine]
        self.stdin = work / "in.txt"
        work.mkdir()
        self.stdin.write_text("".join(f"{line}\n" for line in LINES))
        code, self.expected, said = self.translate(folder)
        assert code == 0, said
        self.seen: list[int] = []

    def translate(self, folder: Path) -> tuple[int | None, str, str]:
        out, err, used = (self.work / f"case.{suffix}" for suffix in ("out", "err", "used"))
        for path in (out, err, used):
            path.unlink(missing_ok=True)
        arguments = ["translate", "--model", str(folder), "--device", "cpu", *self.options]
        process = _context.Process(
            target=run_case, args=(arguments, self.stdin, out, err, inherited())
        )
        process.start()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None, "", "it hangs"
        seconds, resident = json.loads(used.read_text()) if used.exists() else (0.0, 0)
        assert seconds < CPU_SECONDS, f"{seconds} s"
        assert resident < RESIDENT, f"{resident:,} bytes"
        return process.exitcode, out.read_text(), err.read_text()

    def check(self, seed: int) -> None:
        rng = random.Random(seed)
        case = self.work / "case"
        shutil.copytree(self.folder, case)
        try:
            what = damage(case, self.kind, self.version, rng)
            code, out, said = self.translate(case)
            about = f"seed {seed}, {what}: exit {code}\n{said}"
            assert "Traceback" not in said, about
            if code == 0:
                assert out == self.expected or self.is_asked_for(case, out), about
            else:
                assert code in BAD_DATA, about
                (line,) = [line for line in said.splitlines() if line.startswith("edgewise: ")]
                assert len(said.splitlines()) == 1 and len(line) < 2000, about
                for raw in ("pydantic", "os error", "NoneType", "subscriptable", "sys.set_int"):
                    assert raw not in line, about
            self.seen.append(code or 0)
        finally:
            shutil.rmtree(case, ignore_errors=True)
            case.with_name("case-outside").unlink(missing_ok=True)

    def is_asked_for(self, case: Path, out: str) -> bool:
        """Whether another output is what the folder asks for, by settings that are still valid."""
        settings = json.loads((self.folder / "config.json").read_bytes())["architecture"]
        try:
            changed = json.loads((case / "config.json").read_bytes())["architecture"]
            usual, generation = (
                DecodingSettings.model_validate_json(
                    (folder / "generation_config.json").read_bytes()
                )
                for folder in (self.folder, case)
            )
        except (OSError, ValueError, ValidationError):
            return False
        differ = {name for name in settings if settings[name] != changed.get(name, settings[name])}
        if differ:
            return differ <= HARMLESS
        if self.options:  # other engines have tests of their own for each setting
            return generation != usual
        undamaged = Translator.load(self.folder)
        undamaged.settings = generation
        try:
            return "".join(f"{line}\n" for line in undamaged.translate(LINES)) == out
        except EdgewiseError:
            return False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "ours"
    return make_model(folder, make_vocabulary())


@pytest.fixture(scope="module")
def imported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a vocabulary of another toolkit."""
    tensors, settings, vocabulary = model_folder.read_model(model)
    pieces = vocabulary.pieces(range(vocabulary.size))
    sentencepiece = (model / "tokenizer" / "vocabulary.model").read_bytes()
    theirs = ImportedVocabulary(sentencepiece, sentencepiece, pieces, source_only=[9, 11])
    folder = tmp_path_factory.mktemp("models") / "imported"
    model_folder.write_model(folder, tensors, settings, theirs, {})
    return folder


KIND, VERSION = model_folder.KIND, model_folder.VERSION
SHORT, LONG = 30, 900


@pytest.mark.parametrize("name", ["model", "imported"])
def test_a_damaged_folder_is_found(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cases = Cases(request.getfixturevalue(name), tmp_path / "work", KIND, VERSION, "edgewise")
    for seed in range(SHORT):
        cases.check(seed)
    assert {0, 65} <= {*cases.seen}


@pytest.mark.long
@pytest.mark.parametrize("name", ["model", "imported"])
def test_a_damaged_folder_is_found_in_many_cases(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    cases = Cases(request.getfixturevalue(name), tmp_path / "work", KIND, VERSION, "edgewise")
    for seed in range(SHORT, SHORT + LONG):
        cases.check(seed)


def export_ctranslate2(model: Path, out: Path) -> tuple[str, int]:
    from edgewise.interop import ctranslate2

    ctranslate2.export(model, out)
    return ctranslate2.KIND, ctranslate2.VERSION


def export_onnx(model: Path, out: Path) -> tuple[str, int]:
    from edgewise.interop import onnx

    onnx.export(model, out)
    return onnx.KIND, onnx.VERSION


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "export"), [("ctranslate2", export_ctranslate2), ("onnx", export_onnx)]
)
def test_a_damaged_folder_of_another_engine_is_found(
    engine: str, export: Callable[[Path, Path], tuple[str, int]], tmp_path: Path
) -> None:
    changes = {"tables": "layer"}
    model = make_model(tmp_path / "model", make_vocabulary(), **changes)
    kind, version = export(model, tmp_path / "exported")
    cases = Cases(tmp_path / "exported", tmp_path / "work", kind, version, engine)
    for seed in range(100):
        cases.check(seed)
