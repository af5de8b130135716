"""`edgewise export ctranslate2`: files, messages and exit codes."""

import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ctranslate2
import pytest
from messages import assert_mentions
from tiny_model import Command

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

EXPORT = (sys.executable, "-m", "edgewise", "export", "ctranslate2")
TEXTS = [line for pair in pairs(200, 1) for line in pair]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(TEXTS, 340)


def write(folder: Path, vocabulary: Vocabulary, **changes: Any) -> Path:
    settings = ModelSettings(
        **{"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 20}
        | {"max_distance": 2, "tables": "layer"}
        | changes
    )
    model = Transformer(settings, vocabulary.size)
    initialise(model, 4)
    write_model(folder, weights(model), settings, vocabulary, {})
    return folder


@pytest.fixture
def model(vocabulary: Vocabulary, tmp_path: Path) -> Path:
    return write(tmp_path / "model", vocabulary)


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and stderr; stdout is for data, and there is none."""
    with TemporaryDirectory() as folder:
        done = Command(Path(folder))("export", "ctranslate2", *arguments)
    assert done.out == b""
    return done.code, done.said


def test_the_command_that_is_told_translates(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out of it"
    exported = subprocess.run(
        [*EXPORT, "--model", str(model), "--out", str(out)], capture_output=True, text=True
    )
    assert (exported.returncode, exported.stdout) == (0, "")
    what, call = exported.stderr.splitlines()
    assert_mentions(what, out, "CTranslate2", "float32", "MB")
    words = shlex.split(call[call.index("edgewise translate ") :])
    command = words[1 : words.index("--model") + 2]
    done = Command(tmp_path)(*command, stdin="\n".join(TEXTS[:3]) + "\n")
    assert done.code == 0, done.said
    assert len(done.lines) == 3


@pytest.mark.parametrize(
    ("quantization", "smallest", "largest"),
    [("float32", 0.9, 1.2), ("float16", 0.4, 0.7), ("int8", 0.2, 0.6), ("int8_float32", 0.2, 0.6)],
)
def test_quantized_weights_are_smaller_and_translate(
    quantization: str, smallest: float, largest: float, vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = write(tmp_path / "model", vocabulary, d_model=48, d_ff=200)
    out = tmp_path / "out"
    code, stderr = run("--model", model, "--out", out, "--quantization", quantization)
    assert code == 0 and quantization in stderr
    size = (out / "model.bin").stat().st_size / (model / "model.safetensors").stat().st_size
    assert smallest < size < largest
    assert f"| numbers | {quantization} |" in (out / "README.md").read_text()
    engine = ctranslate2.Translator(str(out))
    pieces = [vocabulary.pieces(tokens) for tokens in vocabulary.encode(TEXTS[:3])]
    assert len(engine.translate_batch(pieces, max_decoding_length=5)) == 3


def test_an_unknown_quantization_exits_with_2_and_names_those_there_are(
    model: Path, tmp_path: Path
) -> None:
    code, stderr = run("--model", model, "--out", tmp_path / "out", "--quantization", "int4")
    assert code == 2
    assert '"int4"' in stderr and '"int8_float32"' in stderr


def test_an_existing_folder_exits_with_2_unless_it_may_be_replaced(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("--model", model, "--out", out)[0] == 0
    code, stderr = run("--model", model, "--out", out)
    assert code == 2
    assert_mentions(stderr, out, "--overwrite")
    assert run("--model", model, "--out", out, "--overwrite")[0] == 0
    assert run("--model", model, "--out", out, "--force")[0] == 0
    code, stderr = run("--model", model, "--out", model, "--overwrite")
    assert code == 2
    assert_mentions(stderr, model, "CTranslate2 model", "--overwrite")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"tables": "head"}, ("model.tables", "layer", "shared", "head")),
        ({"sinusoids": True}, ("model.sinusoids", "false", "max_distance")),
    ],
)
def test_a_model_that_ctranslate2_cannot_compute_exits_with_2(
    changes: dict[str, Any], facts: tuple[str, ...], vocabulary: Vocabulary, tmp_path: Path
) -> None:
    model = write(tmp_path / "model", vocabulary, **changes)
    code, stderr = run("--model", model, "--out", tmp_path / "out")
    assert code == 2
    assert_mentions(stderr, *facts, "CTranslate2", model)
    assert not (tmp_path / "out").exists()


def test_a_damaged_model_folder_exits_with_65(model: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-1])
    code, stderr = run("--model", model, "--out", tmp_path / "out")
    assert code == 65
    assert_mentions(stderr, model, "damaged", "model.safetensors", size - 1, size)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_exits_with_2(tmp_path: Path) -> None:
    code, stderr = run("--model", tmp_path / "none", "--out", tmp_path / "out")
    assert code == 2
    assert_mentions(stderr, tmp_path / "none", "model")


@pytest.mark.parametrize("missing", ["--model", "--out"])
def test_both_folders_must_be_named(missing: str, tmp_path: Path) -> None:
    given = {"--model": tmp_path / "model", "--out": tmp_path / "out"}
    del given[missing]
    code, stderr = run(*(part for pair in given.items() for part in pair))
    assert code == 2
    assert_mentions(stderr, missing)


def test_help_shows_an_example() -> None:
    done = subprocess.run([*EXPORT, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "edgewise export ctranslate2 --model models/de --out exported/de" in done.stdout
