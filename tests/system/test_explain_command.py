"""edgewise explain: pictures that show what they say they show, and refusals."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import assert_mentions
from small_runs import command
from torch import Tensor

from edgewise.checkpoint.model_folder import load_model, weights, write_model
from edgewise.cli.main import run
from edgewise.cli.pictures import MOST_TOKENS, Figures, figures, table_figures
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import BEGIN, END, Vocabulary
from edgewise.decoding import Translator
from edgewise.decoding.explanation import Explanation, explain
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

# Two words that a picture must not choke on: one that its font lacks, one that is no mathematics.
STRANGE = "你好 $^{$"
TEXT, TRANSLATION = f"the child reads {STRANGE} .", "das Kind liest ."
LAYERS = [f"{stack}-layer-{number}.png" for stack in ("encoder", "decoder") for number in (1, 2)]
CROSS = [f"cross-layer-{number}.png" for number in (1, 2)]
TABLES = ["tables-encoder.png", "tables-decoder.png"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    lines = [line for pair in pairs(200, 1) for line in pair]
    return Vocabulary.train([*lines, *[STRANGE] * 50], 400)


def model_of(vocabulary: Vocabulary, **changes: Any) -> Transformer:
    small = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 20}
    model = Transformer(ModelSettings(**{**small, "max_distance": 4, **changes}), vocabulary.size)
    initialise(model, 1)
    return model.eval()


@pytest.fixture(scope="module")
def folder(vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, path = model_of(vocabulary), tmp_path_factory.mktemp("explain") / "model"
    write_model(path, weights(model), model.settings, vocabulary, {})
    return path


def arguments(folder: Path, out: Path, *more: str, text: str = TEXT) -> list[str]:
    return ["explain", "--model", str(folder), "--text", text, "--out", str(out), *more]


# The command.


@pytest.fixture(scope="module")
def explained(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """A whole run, and the folder that it wrote."""
    out = tmp_path_factory.mktemp("explained") / "pictures"
    return out, command(*arguments(folder, out, "--translation", TRANSLATION))


def test_the_paths_of_the_pictures_are_printed(
    explained: tuple[Path, "subprocess.CompletedProcess[str]"],
) -> None:
    out, result = explained
    assert result.returncode == 0, result.stderr
    names = [*LAYERS, *CROSS, *TABLES, "distance.png"]
    assert result.stdout.splitlines() == [str(out / name) for name in names]
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names)
    assert {path.name for path in out.iterdir()} == {*names, "explanation.json", "manifest.json"}


def test_stderr_has_the_translation_and_no_warning_of_characters_that_the_font_lacks(
    explained: tuple[Path, "subprocess.CompletedProcess[str]"],
) -> None:
    out, result = explained
    # On a new machine matplotlib may mention its font cache.
    lines = [line for line in result.stderr.splitlines() if "font cache" not in line]
    translation, numbers = lines
    assert_mentions(translation, "translation", TRANSLATION)
    assert_mentions(numbers, out / "explanation.json")


def test_the_numbers_are_those_of_the_explanation(
    explained: tuple[Path, "subprocess.CompletedProcess[str]"], folder: Path
) -> None:
    found = json.loads((explained[0] / "explanation.json").read_text())
    model, vocabulary = load_model(folder)
    expected = explanation_of(model, vocabulary)
    assert found["source"] == vocabulary.pieces(expected.source)
    assert found["target"] == vocabulary.pieces(expected.target)
    assert found["source"][-1] == "</s>" and found["target"][0] == "<s>"
    assert found["max_distance"] == 4
    for stack, layers in expected.by_distance().items():
        told = found["weight_by_distance"][stack]
        assert [layer["distances"] for layer in told] == [layer.distances for layer in layers]
        for layer, of_layer in zip(told, layers, strict=True):
            close(torch.tensor(layer["weights"]), of_layer.weights)
            assert of_layer.beyond is not None
            close(torch.tensor(layer["beyond"]), of_layer.beyond)


def test_without_a_translation_it_is_the_models_own_that_is_explained(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgewise.cli.pictures.figures", lambda *arguments: iter(()))
    asked = []

    def translate(translator: Translator, texts: list[str]) -> list[str]:
        asked.append(texts)
        return [TRANSLATION]

    monkeypatch.setattr(Translator, "translate", translate)
    assert run(arguments(folder, tmp_path / "out")) == 0
    assert asked == [[TEXT]]
    assert_mentions(capsys.readouterr().err, "translation", TRANSLATION)
    found = json.loads((tmp_path / "out" / "explanation.json").read_text())
    vocabulary = Vocabulary.load(folder)
    assert found["target"] == vocabulary.pieces([BEGIN, *vocabulary.encode([TRANSLATION])[0]])


def test_what_is_there_is_replaced_only_if_asked_and_only_if_it_is_an_explanation(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgewise.cli.pictures.figures", lambda *arguments: iter(()))
    again = arguments(folder, tmp_path / "out", "--translation", TRANSLATION)
    assert run(again) == 0
    assert run(again) == 2
    error = capsys.readouterr().err.partition("edgewise: ")[2]
    assert_mentions(error, tmp_path / "out", "exists", "--overwrite")
    (tmp_path / "out" / "explanation.json").unlink()
    assert run([*again, "--overwrite"]) == 0
    assert (tmp_path / "out" / "explanation.json").is_file()
    assert run(arguments(folder, folder, "--overwrite")) == 2
    error = capsys.readouterr().err.partition("edgewise: ")[2]
    assert_mentions(error, folder, "explanation", "--overwrite")
    assert (folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("text", "more", "facts"),
    [
        ("", [], ("--text", "empty")),
        (" \n", [], ("--text", "empty")),
        ("\udcff", [], ("--text", "UTF-8", r"\udcff")),
        (TEXT, ["--translation", ""], ("--translation", "empty")),
        ("the child " * MOST_TOKENS, [], ("--text", f"{MOST_TOKENS} tokens")),
        (
            *(TEXT, ["--translation", "das Kind " * MOST_TOKENS]),
            ("translation", f"{MOST_TOKENS} tokens"),
        ),
    ],
)
def test_a_sentence_that_cannot_be_drawn_is_refused(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    more: list[str],
    facts: tuple[str, ...],
) -> None:
    assert run(arguments(folder, tmp_path / "out", *more, text=text)) == 2
    assert_mentions(capsys.readouterr().err, *facts)
    assert list(tmp_path.iterdir()) == []


def test_a_sentence_may_begin_with_a_hyphen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.cli.pictures.figures", lambda *arguments: iter(()))
    more = ("--translation", "- Das Kind")
    assert run(arguments(folder, tmp_path / "out", *more, text="- the child")) == 0


def test_without_matplotlib_the_extra_is_named(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from edgewise.cli.main import run; "
        "sys.exit(run(sys.argv[1:]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments(folder, tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    (said,) = result.stderr.splitlines()
    assert said.startswith("edgewise: ")
    assert_mentions(said, "matplotlib", "pip install", "edgewise[plots]")


def test_nothing_is_left_when_drawing_fails(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgewise.cli.pictures.figures", interrupted)
    assert run(arguments(folder, tmp_path / "out", "--translation", TRANSLATION)) == 130
    assert list(tmp_path.iterdir()) == []


# The pictures.


def explanation_of(model: Transformer, vocabulary: Vocabulary) -> Explanation:
    source, target = vocabulary.encode([TEXT, TRANSLATION])
    return explain(model, [*source, END], [BEGIN, *target])


def panels(vocabulary: Vocabulary, **changes: Any) -> dict[str, dict[str, Any]]:
    """The axes of each picture by their titles."""
    model = model_of(vocabulary, **changes)
    return titled(figures(explanation_of(model, vocabulary), model, vocabulary))


def titled(figures: Figures) -> dict[str, dict[str, Any]]:
    return {
        name: {axis.get_title(): axis for axis in figure.axes if axis.get_title()}
        for name, figure in figures
    }


@pytest.fixture(scope="module")
def drawn(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    return panels(vocabulary)


def image(axis: Any) -> Tensor:
    """What a heat map shows; NaN where it shows nothing."""
    return torch.tensor(axis.images[0].get_array().filled(math.nan))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=0, atol=1e-6, equal_nan=True
    )


def test_each_panel_shows_its_heads_logits_and_weights(
    vocabulary: Vocabulary, drawn: dict[str, dict[str, Any]]
) -> None:
    explanation = explanation_of(model_of(vocabulary), vocabulary)
    for number in (0, 1):
        for head in range(3):
            encoder, decoder = explanation.encoder[number], explanation.decoder[number]
            axes = drawn[f"encoder-layer-{number + 1}.png"]
            title = f"head {head + 1}: "
            assert encoder.relation is not None
            close(image(axes[title + "content logits"]), encoder.content[head])
            close(image(axes[title + "position logits"]), encoder.relation[head])
            close(image(axes[title + "weights"]), encoder.weights[head])
            axes = drawn[f"decoder-layer-{number + 1}.png"]
            ahead = torch.ones_like(decoder.content[head]).triu(1).bool()
            seen = decoder.content[head].masked_fill(ahead, math.nan)
            close(image(axes[title + "content logits"]), seen)
            axes = drawn[f"cross-layer-{number + 1}.png"]
            close(image(axes[title + "weights"]), explanation.cross[number].weights[head])


def test_rows_are_queries_and_columns_are_keys(
    vocabulary: Vocabulary, drawn: dict[str, dict[str, Any]]
) -> None:
    axis = drawn["cross-layer-1.png"]["head 2: weights"]
    explanation = explanation_of(model_of(vocabulary), vocabulary)
    for side, labels in (
        (explanation.source, axis.get_xticklabels()),
        (explanation.target, axis.get_yticklabels()),
    ):
        pieces = [piece.replace("▁", "␣") for piece in vocabulary.pieces(side)]
        assert [label.get_text() for label in labels] == pieces


def test_every_weight_by_distance_is_drawn_where_its_distance_is(
    vocabulary: Vocabulary, drawn: dict[str, dict[str, Any]]
) -> None:
    axes = drawn["distance.png"]
    explanation = explanation_of(model_of(vocabulary), vocabulary)
    for stack, layers in explanation.by_distance().items():
        for number, layer in enumerate(layers, start=1):
            axis = axes[f"{stack} layer {number}"]
            close(image(axis), layer.weights)
            left, right, *_ = axis.images[0].get_extent()
            assert (left + 0.5, right - 0.5) == (layer.distances[0], layer.distances[-1])
            edges = [-4.5, 4.5] if stack == "encoder" else [-4.5]
            assert [line.get_xdata()[0] for line in axis.lines] == edges
            assert layer.beyond is not None
            assert [label.get_text() for label in axis.get_yticklabels()] == [
                f"head {head}, beyond {share:.0%}"
                for head, share in enumerate(layer.beyond.tolist(), start=1)
            ]


@pytest.mark.parametrize(
    ("changes", "positions", "tables"),
    [
        ({"on_values": False}, True, True),
        pytest.param({"on_keys": False}, False, True, marks=pytest.mark.long),
        pytest.param({"max_distance": None}, False, False, marks=pytest.mark.long),
        ({"max_distance": None, "sinusoids": True}, False, False),
    ],
)
def test_what_a_model_lacks_has_no_picture(
    vocabulary: Vocabulary, changes: dict[str, Any], positions: bool, tables: bool
) -> None:
    found = panels(vocabulary, **changes)
    assert list(found) == [*LAYERS, *CROSS, *(TABLES if tables else []), "distance.png"]
    for name in LAYERS:
        assert len(found[name]) == 3 * (3 if positions else 2)
        assert any("position" in title for title in found[name]) == positions


@pytest.mark.parametrize(
    ("changes", "titles"),
    [
        (
            {"tables": "head"},
            {f"head {h}, layer {n}: {t}" for h in "123" for n in "12" for t in ("keys", "values")},
        ),
        ({"tables": "layer"}, {f"layer {n}: {t}" for n in "12" for t in ("keys", "values")}),
        ({"tables": "shared"}, {"all layers: keys", "all layers: values"}),
        ({"tables": "layer", "on_keys": False}, {"layer 1: values", "layer 2: values"}),
    ],
)
def test_each_table_is_drawn_once(
    vocabulary: Vocabulary, changes: dict[str, Any], titles: set[str]
) -> None:
    model = model_of(vocabulary, **changes)
    for stack in ("encoder", "decoder"):
        found = titled(table_figures(stack, getattr(model, stack), model.settings.tables))
        assert set(found[f"tables-{stack}.png"]) == titles


def test_tables_are_drawn_by_distance_and_the_decoders_to_0(
    vocabulary: Vocabulary, drawn: dict[str, dict[str, Any]]
) -> None:
    model = model_of(vocabulary)
    for stack, last in (("encoder", 4), ("decoder", 0)):
        table = getattr(model, stack)[1].attention.value_table[2].detach()
        axis = drawn[f"tables-{stack}.png"]["head 3, layer 2: values"]
        close(image(axis), table[: last + 5].T)
        left, right, *_ = axis.images[0].get_extent()
        assert (left + 0.5, right - 0.5) == (-4, last)
