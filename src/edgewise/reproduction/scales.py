"""Scales: the corpus, model, training and measurements of an experiment. See scales/*.toml."""

import random
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from edgewise.decoding.settings import DecodingSettings
from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.experiments import names_in, nearest
from edgewise.settings import Settings, describe_mistakes, read_toml, show
from edgewise.training.settings import TrainingSettings

FOLDER = Path(__file__).parent / "scales"
ORDER = (
    *("demo", "multi30k", "multi30k-converged", "multi30k-short", "multi30k-wu2021", "wmt14"),
    *("scan", "clutrr"),
)


class Scale(Settings):
    """A corpus and a budget; `model` has relative positions or edge labels, and rows change it.

    A subclass for each task adds how its data are found, and the settings of its model.
    """

    budget_setting: ClassVar[str]  # the training setting that --budget changes
    budget_unit: ClassVar[str]
    is_distributed: ClassVar[bool] = True  # several ranks can train a cell

    name: str
    task: str
    title: str
    base: str = Field("", description="The scale that this one changes.")
    heading: str = Field("", description="Text before the titles of reports.")
    note: str = Field("", description="Text below the titles of reports.")
    differs: tuple[str, ...] = Field(description="What differs from the paper.")
    pairs: tuple[Annotated[str, Field(pattern=r"^\w+-\w+$")], ...] = Field(
        min_length=1, description="Pairs of languages, or other divisions of the corpus."
    )
    parts: tuple[str, ...] = Field(description="What is measured on.")
    metrics: tuple[str, ...] = Field(min_length=1, description="The first is the main.")
    by: str = Field(description="Column of measurements that buckets divide.")
    buckets: tuple[int, ...] = Field((), description="Last value of each bucket, for by_length.")
    average: int = Field(1, ge=1, description="Checkpoints whose mean is measured; 1: the last.")
    threads: int | None = Field(None, ge=1, description="CPU threads of a cell; none: all cores.")
    ranks: int = Field(1, ge=1, description="Processes that train a cell together.")
    core_minutes: float | None = Field(
        None, description="Minutes of one core that a cell takes, about; none: it is for GPUs."
    )
    model: Settings
    training: Settings

    @property
    def built_in_name(self) -> str:
        """Return the name of the built-in scale that this one is, or is based on."""
        return self.name if self.name in scale_names() else self.base

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the names of the tests that results store; part `test` may be several."""
        return self.parts

    def longest_trained(self, pair: str) -> int | None:
        """Return the last bucket value that training contains; None: all of them."""
        return None

    def training_for(self, model: Settings) -> Settings:
        """Return the training settings of a model, before a row changes them."""
        return self.training

    def settings_asked(self) -> dict[str, Any]:
        """Return what a result depends on beside model and training, as stored with it."""
        return {"scale": self.name, "parts": list(self.tests), "metrics": list(self.metrics)}


def _require_braces(text: str, field: str) -> None:
    """Raise ValueError if a text has other fields for str.format than this one."""
    rest = text.replace(field, "")
    if "{" in rest or "}" in rest:
        raise ValueError(f"{text} must have no other braces than {field}")


def _file_name(name: str) -> str:
    """Return the name; ValueError unless it is that of a file below the folder of --data."""
    _require_braces(name, "{language}")
    filled = name.format(language="en")
    if not filled or Path(filled).is_absolute() or ".." in Path(filled).parts:
        raise ValueError(f"{name} must be the name of a file below the folder of --data")
    return name


TestName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]  # of a file, too
FileNames = Annotated[tuple[Annotated[str, AfterValidator(_file_name)], ...], Field(min_length=1)]


class Files(Settings):
    """File names of each part: the first that exists is used; a * may match several files.

    {language} stands for en, de, …
    """

    train: FileNames
    valid: FileNames
    test: dict[TestName, FileNames] = Field(
        min_length=1, description="File names by name of the test set."
    )
    remove: str = Field("", description="Text removed from each line: the mark of split words.")

    @field_validator("test", mode="before")
    @classmethod
    def _one_test(cls, test: Any) -> Any:
        if not isinstance(test, dict):
            return {"test": test}
        if {"train", "valid"} & test.keys() or ("test" in test and len(test) > 1):
            raise ValueError("train and valid cannot name a test set, nor test one of several")
        return test


class Grammar(Settings):
    """Numbers of pairs of the built-in corpus."""

    train: int = Field(ge=1)
    valid: int = Field(ge=1)
    test: int = Field(ge=1)


class Commands(Settings):
    """SCAN: files with lines `IN: command OUT: actions`, all divided by the number of actions."""

    files: FileNames
    max_target_words: int = Field(ge=1, description="Most actions to train on; test: all longer.")
    valid: int = Field(ge=1, description="Pairs of training length that are held out.")

    def split(self, pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
        """Return training, validation and test pairs; the draw is always the same."""
        pairs = sorted(set(pairs))
        short = [pair for pair in pairs if len(pair[1].split()) <= self.max_target_words]
        random.Random(1).shuffle(short)
        long = [pair for pair in pairs if len(pair[1].split()) > self.max_target_words]
        return {"train": short[self.valid :], "valid": short[: self.valid], "test": long}


Positions = Literal["absolute", "relative", "both", "none"]
Metrics = Literal["BLEU", "log-probability", "exact match", "exact match, length given"]


class TranslationScale(Scale):
    """Translation: text files, the built-in grammar, or SCAN's commands."""

    budget_setting, budget_unit = "steps", "updates"

    task: Literal["translation"] = "translation"
    parts: tuple[Literal["valid", "test"], ...] = ("valid", "test")
    metrics: tuple[Metrics, ...] = Field(("BLEU",), min_length=1)
    by: Literal["source_words", "target_words"] = "source_words"
    catalogue: str | None = Field(None, description="Its name for edgewise data get.")
    files: Files | None = None
    grammar: Grammar | None = None
    commands: Commands | None = None
    vocab_size: int
    max_source_words: int | None = Field(None, description="Longest sources to train on, in words.")
    held_out: int = Field(
        0, description="Pairs of each bucket that are too long to train on and are tested on."
    )
    tokenised: bool = Field(False, description="The text is tokenised; BLEU splits at spaces.")
    tuned: dict[Positions, dict[str, Any]] = Field(
        {}, description="Training settings tuned for each kind of positions."
    )
    model: ModelSettings
    training: TrainingSettings
    decoding: DecodingSettings

    @model_validator(mode="after")
    def _consistent(self) -> "TranslationScale":
        if sum(source is not None for source in (self.files, self.grammar, self.commands)) != 1:
            raise ValueError("one of files, grammar and commands must be given")
        _require_braces(self.catalogue or "", "{pair}")
        if (self.training.threads, self.training.seed) != (None, TrainingSettings().seed):
            raise ValueError("threads is a setting of the scale itself, and --seeds gives seeds")
        if self.held_out and (self.max_source_words is None or not self.buckets):
            raise ValueError("held_out needs max_source_words and buckets")
        if self.held_out and "test" not in self.tests:
            raise ValueError("held_out needs a test set with the name test, which it is added to")
        return self

    @property
    def tests(self) -> tuple[str, ...]:
        tests = ("test",) if self.files is None else tuple(self.files.test)
        return tuple(name for part in self.parts for name in (tests if part == "test" else (part,)))

    def longest_trained(self, pair: str) -> int | None:
        commands = self.commands
        return self.max_source_words if commands is None else commands.max_target_words

    def training_for(self, model: Settings) -> TrainingSettings:
        assert isinstance(model, ModelSettings)
        kinds: tuple[Positions, ...] = ("none", "relative", "absolute", "both")
        kind = kinds[2 * model.sinusoids + bool(model.max_distance)]  # one label says nothing
        return TrainingSettings(**self.training.model_dump() | self.tuned.get(kind, {}))

    def preparation(self) -> dict[str, Any]:
        """Return all that the text to train and to measure on depends on, but for the files."""
        names = {"vocab_size", "max_source_words", "buckets", "held_out", "grammar"}
        found = self.model_dump(mode="json", include=names)
        if self.commands is not None:
            found |= {"commands": self.commands.model_dump(mode="json")}
        return found | {"remove": None if self.files is None else self.files.remove}

    def settings_asked(self) -> dict[str, Any]:
        return super().settings_asked() | {
            "preparation": self.preparation(),
            "tokenised": self.tokenised,
            "decoding": self.decoding.model_dump(mode="json"),
        }


def scale_names() -> list[str]:
    """Return all names, from small to large."""
    return names_in(FOLDER, ORDER)


def parse_scale(content: dict[str, Any]) -> Scale:
    """Return the scale of a task; ValueError if the content is invalid."""
    from edgewise.reproduction.clutrr.settings import GraphScale

    types: dict[str, type[Scale]] = {"translation": TranslationScale, "graphs": GraphScale}
    task = str(content.get("task", "translation"))
    if task not in types:
        raise SettingError(f"there is no task {show(task)}{nearest(task, list(types))}")
    return types[task].model_validate(content)


def read_scale(name: str) -> Scale:
    """Read a scale by its name, or a user's own by the name of its file."""
    if name.endswith(".toml"):
        path = Path(name)
        if path.stem in scale_names():
            raise SettingError(f"{path} has the name of a built-in scale: rename the file")
        try:
            return parse_scale({"name": path.stem, **_merged(path)})
        except ValidationError as error:
            raise SettingError(f"{path}: {describe_mistakes(error)}") from None
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None
    if name not in scale_names():
        raise SettingError(f"there is no scale {name}{nearest(name, scale_names())}")
    return parse_scale({"name": name, **_merged(FOLDER / f"{name}.toml")})


def _merged(path: Path) -> dict[str, Any]:
    """Return a file's content over that of the scale it is based on."""
    content = read_toml(path, "a TOML file for --scale, which also takes a name")
    base = content.pop("base", None)
    if base is None:
        return content
    if base not in scale_names():
        near = nearest(str(base), scale_names())
        raise SettingError(f"base: there is no scale {show(base)}{near}")
    below = _merged(FOLDER / f"{base}.toml") | {"base": base}
    for key, value in content.items():
        merges = isinstance(value, dict) and isinstance(below.get(key), dict) and key != "files"
        below[key] = below[key] | value if merges else value
    return below
