"""The models that are served, and which one is meant."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgewise.checkpoint.model_folder import model_languages
from edgewise.data.languages import NAMES
from edgewise.decoding.engine import Engine
from edgewise.decoding.native import NativeEngine
from edgewise.decoding.translator import Translator
from edgewise.errors import EdgewiseError, SettingError
from edgewise.model.transformer import Transformer
from edgewise.server.messages import Asked, Language, ServedModel, shortened

AUTO = "auto"
_PAIR = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")


class UnknownError(EdgewiseError):
    """A model or a language that is not served."""


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its name and its languages."""

    name: str
    source: str
    target: str
    translator: Translator
    seconds_per_character: float = 2e-4  # of a translation, as measured when it was loaded

    @property
    def engine(self) -> Engine:
        return self.translator.engine

    @property
    def explained(self) -> bool:
        """Whether it can be seen inside: other engines show neither attention nor tables."""
        return isinstance(self.engine, NativeEngine)

    def require_explained(self) -> None:
        """Raise UnknownError unless it is."""
        if not self.explained:
            raise UnknownError(
                f"the model {self.name!r} cannot be explained: another engine than edgewise runs "
                "it, which shows neither attention nor tables"
            )

    @property
    def transformer(self) -> Transformer:
        self.require_explained()
        assert isinstance(self.engine, NativeEngine)
        return self.engine.models[0]

    def described(self) -> ServedModel:
        fields = self.engine.settings.model_dump(include=set(ServedModel.model_fields))
        return ServedModel(
            name=self.name,
            source=self.source,
            target=self.target,
            explained=self.explained,
            parameters=self.engine.parameters,
            vocabulary=self.engine.vocabulary.size,
            **fields,
        )


def named(value: str) -> tuple[str | None, Path]:
    """`NAME=DIR`, or `DIR` without a name."""
    name, equals, folder = value.partition("=")
    if not equals or Path(value).is_dir():
        return None, Path(value)
    if not name.strip() or not folder:
        raise SettingError(f"--model must be DIR or NAME=DIR; got {value!r}")
    return name, Path(folder)


def languages(name: str | None, folder: Path) -> tuple[str, str]:
    """Those that the given name says, such as en-de, else those that the folder says."""
    found = _pair(name) or model_languages(folder) or _pair(folder.resolve().name)
    if found is None:
        raise SettingError(
            f"{folder} does not say which languages it translates (the names of the files it was "
            f"trained on did not): give it a name that does, as --model en-de={folder}"
        )
    return found


def _pair(name: str | None) -> tuple[str, str] | None:
    pair = _PAIR.fullmatch(name or "")
    return None if pair is None else (pair[1], pair[2])


class Models:
    """All that are served, the first ones first."""

    def __init__(self, models: Sequence[Served]) -> None:
        self.all = list(models)
        names = [model.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(
                    f"models must have different names; two are {name!r}: give --model NAME=DIR"
                )

    def languages(self) -> list[Language]:
        """Of each language, what it can be translated to; of one that is only a target, nothing."""
        targets: dict[str, list[str]] = {}
        for model in self.all:
            known = targets.setdefault(model.source, [])
            if model.target not in known:
                known.append(model.target)
        for model in self.all:
            targets.setdefault(model.target, [])
        return [
            Language(code=code, name=NAMES.get(code, code), targets=found)
            for code, found in targets.items()
        ]

    def named(self, name: str) -> Served:
        for model in self.all:
            if model.name == name:
                return model
        raise UnknownError(
            f"model must be one of {_listed(m.name for m in self.all)}; got {shortened(name)!r}"
        )

    def chosen(self, asked: Asked) -> Served:
        """The first that is meant; UnknownError if there is none."""
        models = self.all if asked.model is None else [self.named(asked.model)]
        models = _only(models, "target", asked.target)
        if asked.source != AUTO:
            return _only(models, "source", asked.source)[0]
        sources = {model.source for model in models}
        if len(sources) > 1:
            raise UnknownError(
                f"source must be one of {_listed(sources)}: auto is only for a target that one "
                "language is translated to"
            )
        return models[0]


def _only(models: Sequence[Served], side: str, code: str) -> list[Served]:
    found = [model for model in models if getattr(model, side) == code]
    if not found:
        codes = _listed({getattr(model, side) for model in models})
        raise UnknownError(f"{side} must be one of {codes}; got {shortened(code)!r}")
    return found


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
