"""Settings: what is refused, and that a file holds them without loss."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from messages import assert_mentions
from pydantic import ValidationError

from edgewise.model.settings import ModelSettings
from edgewise.training.settings import CHANGEABLE, RunSettings, TrainingSettings

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.toml"))


def load(name: str) -> RunSettings:
    return RunSettings(**tomllib.loads((CONFIGS / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", FILES)
def test_every_configuration_loads_and_says_where_it_writes(name: str) -> None:
    settings = load(name)
    assert settings.out.is_relative_to(Path("runs") / name.removesuffix(".toml"))
    assert not settings.corpus.is_absolute()


# To a file and back.

ODD_PATHS = ["plain", 'a "quoted" one', "back\\slash", "größe 模型 🙂", "tab\there", "two\nlines"]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_paths_survive_the_file(path: str) -> None:
    settings = RunSettings(corpus=Path(path), out=Path("runs") / path, init_from=Path(path))
    assert RunSettings(**tomllib.loads(settings.toml())) == settings


@pytest.mark.parametrize("name", FILES)
def test_configurations_survive_the_file(name: str) -> None:
    settings = load(name)
    again = RunSettings(**tomllib.loads(settings.toml()))
    assert again == settings
    assert again.toml() == settings.toml()


def test_every_value_survives_the_file() -> None:
    settings = RunSettings(
        corpus=Path("a"),
        out=Path("b"),
        init_from=Path("c"),
        model=ModelSettings(
            **{"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 3, "d_ff": 5},
            **{"dropout": 0.1 + 0.2, "attention_dropout": 1e-7, "norm": "pre", "sinusoids": True},
            **{"max_distance": 0, "tables": "shared", "on_keys": False, "activation": "gelu"},
            **{"bias": True, "share_embeddings": False, "norm_epsilon": 1e-6, "source_end": False},
        ),
        training=TrainingSettings(
            **{"steps": 6, "batch_tokens": 7, "batches": 15, "warmup": 9, "factor": 1e-30},
            **{"label_smoothing": 1 / 3, "clip": 1e22, "seed": 2**70, "validate_every": 10},
            **{"validate_bleu": 17, "patience": 11, "save_every": None, "save_minutes": 0.5},
            **{"keep": 13, "schedule": "linear"},
            **{"device": "cuda:1", "threads": 14, "mixed_precision": True, "compile": True},
        ),
    )
    defaults = RunSettings(corpus=Path("x"), out=Path("y")).flat()
    assert [name for name, value in settings.flat().items() if value == defaults[name]] == [
        "model.on_values"  # one of the two must be on
    ]
    assert RunSettings(**tomllib.loads(settings.toml())) == settings


def test_flat_names_each_setting_once() -> None:
    flat = RunSettings(corpus=Path("a"), out=Path("b")).flat()
    expected = ["corpus", "out", "init_from"]
    expected += [f"model.{name}" for name in ModelSettings.model_fields]
    expected += [f"training.{name}" for name in TrainingSettings.model_fields]
    assert list(flat) == expected
    assert set(expected) > CHANGEABLE


# What is refused.


@pytest.mark.parametrize("kind", [ModelSettings, TrainingSettings])
def test_an_unknown_name_is_refused(kind: type[ModelSettings] | type[TrainingSettings]) -> None:
    with pytest.raises(ValidationError, match="dropuot"):
        kind(**{"dropuot": 0.1})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ModelSettings, {"dropout": 1.0}),
        (ModelSettings, {"dropout": -0.1}),
        (ModelSettings, {"attention_dropout": 1.0}),
        (ModelSettings, {"encoder_layers": 0}),
        (ModelSettings, {"encoder_layers": 2.5}),
        (ModelSettings, {"decoder_layers": "none"}),
        (ModelSettings, {"d_model": 27, "heads": 3}),
        (ModelSettings, {"heads": 0}),
        (ModelSettings, {"d_ff": 0}),
        (ModelSettings, {"norm": "middle"}),
        (ModelSettings, {"tables": "word"}),
        (ModelSettings, {"max_distance": -1}),
        (TrainingSettings, {"steps": 0}),
        (TrainingSettings, {"batch_tokens": 1}),
        (TrainingSettings, {"batches": 0}),
        (TrainingSettings, {"warmup": 0}),
        (TrainingSettings, {"factor": 0}),
        (TrainingSettings, {"label_smoothing": 1}),
        (TrainingSettings, {"clip": 0}),
        (TrainingSettings, {"seed": -1}),
        (TrainingSettings, {"patience": 0}),
        (TrainingSettings, {"save_minutes": 0}),
        (TrainingSettings, {"keep": 0}),
        (TrainingSettings, {"threads": 0}),
        (TrainingSettings, {"device": "none"}),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_name(
    kind: type[ModelSettings] | type[TrainingSettings], values: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind(**values)
    (mistake,) = caught.value.errors()
    assert mistake["loc"] == (next(iter(values)),)


def test_heads_must_share_the_width() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSettings(d_model=10, heads=3)
    (mistake,) = caught.value.errors()
    assert_mentions(mistake["msg"], "d_model", 10, "heads", 3)


def test_relative_positions_must_be_somewhere() -> None:
    with pytest.raises(ValidationError) as caught:
        ModelSettings(on_keys=False, on_values=False)
    (mistake,) = caught.value.errors()
    assert_mentions(mistake["msg"], "max_distance", "on_keys", "on_values", "none")
    assert ModelSettings(on_keys=False, on_values=False, max_distance=None).max_distance is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ModelSettings, "max_distance"),
        *((TrainingSettings, n) for n in ("clip", "patience", "save_every", "save_minutes")),
        (TrainingSettings, "threads"),
    ],
)
def test_none_is_a_word(kind: type[ModelSettings] | type[TrainingSettings], name: str) -> None:
    assert getattr(kind(**{name: "none"}), name) is None


def test_settings_are_frozen() -> None:
    settings = RunSettings(corpus=Path("a"), out=Path("b"))
    for part, name in ((settings, "out"), (settings.model, "heads"), (settings.training, "steps")):
        before = getattr(part, name)
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, before)
