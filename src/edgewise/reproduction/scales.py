"""How large a reproduction is: corpus, model, training, what is measured. See scales/*.toml."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from edgewise.decoding.settings import DecodingSettings
from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.experiments import Part, nearest
from edgewise.settings import Settings, describe_mistakes, read_toml, show
from edgewise.training.settings import TrainingSettings

FOLDER = Path(__file__).parent / "scales"


def _require_braces(text: str, field: str) -> None:
    """Raise ValueError if a text has other fields for str.format than this one."""
    rest = text.replace(field, "")
    if "{" in rest or "}" in rest:
        raise ValueError(f"{text} must have no other braces than {field}")


class Files(Settings):
    """Names of the files of each part, the first that is there; several may fit one with a *.

    {language} stands for en, de, …; tab-separated files have a column for each language.
    """

    train: tuple[str, ...] = Field(min_length=1)
    valid: tuple[str, ...] = Field(min_length=1)
    test: tuple[str, ...] = Field(min_length=1)
    columns: dict[str, int] = Field({}, description="Of each language.")
    remove: str = Field("", description="Taken out of each line: the mark of split words.")

    @model_validator(mode="after")
    def _consistent(self) -> "Files":
        for name in (*self.train, *self.valid, *self.test):
            _require_braces(name, "{language}")
            filled = name.format(language="en")
            if not filled or Path(filled).is_absolute() or ".." in Path(filled).parts:
                raise ValueError(f"{name} must be the name of a file below the folder of --data")
        return self


class Grammar(Settings):
    """Pairs of the built-in corpus."""

    train: int = Field(ge=1)
    valid: int = Field(ge=1)
    test: int = Field(ge=1)


class Scale(Settings):
    """A corpus and a budget; `model` is the one with relative positions that rows change."""

    name: str
    title: str
    differs: tuple[str, ...] = Field(description="What is not as in the paper.")
    pairs: tuple[Annotated[str, Field(pattern=r"^\w+-\w+$")], ...] = Field(min_length=1)
    catalogue: str | None = Field(None, description="Its name for edgewise data get.")
    files: Files | None = None
    grammar: Grammar | None = None
    vocab_size: int
    max_source_words: int | None = Field(None, description="Of pairs to train on.")
    buckets: tuple[int, ...] = Field((), description="Most source words of each, for by_length.")
    held_out: int = Field(
        0, description="Pairs too long to train on that are tested on, of each bucket."
    )
    parts: tuple[Part, ...] = Field(("valid", "test"), description="What is measured on.")
    tokenised: bool = Field(False, description="BLEU takes the tokens of the text as they are.")
    average: int = Field(ge=1, description="Checkpoints whose mean is measured; 1: the last.")
    threads: int | None = Field(None, ge=1, description="Of a cell; none: as many as there are.")
    ranks: int = Field(1, ge=1, description="Processes that train a cell together.")
    core_minutes: float | None = Field(
        None, description="What a cell takes of one core, about; none: it is for GPUs."
    )
    model: ModelSettings
    training: TrainingSettings
    decoding: DecodingSettings

    @model_validator(mode="after")
    def _consistent(self) -> "Scale":
        if (self.files is None) == (self.grammar is None):
            raise ValueError("files or grammar must be given, one of them")
        _require_braces(self.catalogue or "", "{pair}")
        if (self.training.threads, self.training.seed) != (None, TrainingSettings().seed):
            raise ValueError("threads is a setting of the scale itself, and --seeds gives seeds")
        if self.held_out and (self.max_source_words is None or not self.buckets):
            raise ValueError("held_out needs max_source_words and buckets")
        return self

    def preparation(self) -> dict[str, Any]:
        """All that the text to train and to measure on depends on, but for the files."""
        names = {"vocab_size", "max_source_words", "buckets", "held_out", "grammar"}
        split = None if self.files is None else self.files.remove
        return self.model_dump(mode="json", include=names) | {"remove": split}


def scale_names() -> list[str]:
    """From small to large."""
    order = ("demo", "multi30k", "multi30k-wu2021", "multi30k-short", "europarl-short", "wmt14")
    found = {path.stem for path in FOLDER.glob("*.toml")}
    return [*(name for name in order if name in found), *sorted(found - set(order))]


def read_scale(name: str) -> Scale:
    """One of those that come with edgewise, or a researcher's own by the name of its file."""
    if name.endswith(".toml"):
        path = Path(name)
        if path.stem in scale_names():
            raise SettingError(f"{path} has the name of a scale that is there: give it another")
        try:
            return Scale.model_validate({"name": path.stem, **_merged(path)})
        except ValidationError as error:
            raise SettingError(f"{path}: {describe_mistakes(error)}") from None
    if name not in scale_names():
        raise SettingError(f"there is no scale {name}{nearest(name, scale_names())}")
    return Scale(**{"name": name, **_merged(FOLDER / f"{name}.toml")})


def _merged(path: Path) -> dict[str, Any]:
    """A file's content over that of the scale it is based on."""
    content = read_toml(path, "a TOML file for --scale, which also takes a name")
    base = content.pop("base", None)
    if base is None:
        return content
    if base not in scale_names():
        near = nearest(str(base), scale_names())
        raise SettingError(f"{path}: base: there is no scale {show(base)}{near}")
    below = _merged(FOLDER / f"{base}.toml")
    for key, value in content.items():
        merges = isinstance(value, dict) and isinstance(below.get(key), dict) and key != "files"
        below[key] = below[key] | value if merges else value
    return below
