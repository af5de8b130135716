"""What was measured of a cell: a JSON file, written when all of it is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgewise.errors import DataError, SettingError
from edgewise.evaluation.bootstrap import SentenceStatistics
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.cells import Cell
from edgewise.storage import read_json, write_json

VERSION = 1
# Of each sentence, with the n-grams that match: all that BLEU is computed from.
COLUMNS = ("tokens", "reference_tokens", *(f"matching_{n}_grams" for n in range(1, 5)))


@dataclass(frozen=True)
class Measured:
    """Translations of one part of a corpus, in figures: neither sources nor translations."""

    words: NDArray[np.int64]  # of each source
    statistics: SentenceStatistics
    chrf: float
    chrf_signature: str

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Measured":
        words, *columns = (
            np.array(content["by_sentence"][name].split(), dtype=np.int64)
            for name in ("source_words", *COLUMNS)
        )
        # A translation of n tokens has n 1-grams, n - 1 2-grams, …
        totals = [np.maximum(columns[0] - n, 0) for n in range(4)]
        counts = np.stack([*columns, *totals], axis=1)
        statistics = SentenceStatistics(counts, content["signature"])
        return cls(words, statistics, content["chrf"], content["chrf_signature"])

    def content(self) -> dict[str, Any]:
        """For JSON; what there is of each sentence is a string of numbers, so that it is short."""
        columns = np.stack([self.words, *self.statistics.counts[:, : len(COLUMNS)].T])
        named = zip(("source_words", *COLUMNS), columns.tolist(), strict=True)
        return {
            "sentences": len(self.words),
            "bleu": self.statistics.bleu().value,
            "signature": self.statistics.signature,
            "chrf": self.chrf,
            "chrf_signature": self.chrf_signature,
            "by_sentence": {name: " ".join(map(str, values)) for name, values in named},
        }


@dataclass(frozen=True)
class Result:
    """A finished cell. `about` says when and how long, and is no part of a report."""

    asked: dict[str, Any]
    corpus: dict[str, str]  # sha256 of each file
    parameters: int
    updates: int
    losses: list[tuple[int, float]]  # validation loss by update
    parts: dict[str, Measured]
    hardware: str
    about: dict[str, Any]

    @property
    def of(self) -> str:
        """Which cell it is of, for a message."""
        asked = self.asked
        return f"seed {asked['training']['seed']} at scale {asked['scale']}, {asked['pair']},"

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "asked": self.asked,
            "corpus": self.corpus,
            "parameters": self.parameters,
            "updates": self.updates,
            "hardware": self.hardware,
            "about": self.about,
            "losses": self.losses,
            "parts": {name: part.content() for name, part in self.parts.items()},
        }
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> "Result":
        content = read_json(path)
        try:
            if content["version"] != VERSION:
                raise DataError(
                    f"{path} has version {content['version']} of its format; this edgewise reads "
                    f"version {VERSION}"
                )
            parts = {name: Measured.of(part) for name, part in content["parts"].items()}
            losses = [(int(step), float(loss)) for step, loss in content["losses"]]
            asked, corpus = dict(content["asked"]), dict(content["corpus"])
            return cls(
                *(asked, corpus, int(content["parameters"]), int(content["updates"])),
                *(losses, parts, str(content["hardware"]), dict(content["about"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise DataError(
                f"{path} is damaged: it is no result of a cell (move it away)"
            ) from None


def finished(cell: Cell, out: Path) -> Result | None:
    """The result of a cell, if it is there; SettingError if it is of other settings."""
    path = cell.result(out)
    if not path.is_file():
        return None
    result = Result.read(path)
    if differs := changed(in_full(result.asked), cell.asked()):
        raise SettingError(
            f"{path} was measured with other settings: {differs} (remove it and {cell.work(out)}, "
            "or give another --out)"
        )
    return result


def in_full(asked: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of those settings of a model that were not there when it was stored."""
    model = asked.get("model")
    if not isinstance(model, dict):
        return asked
    return asked | {"model": ModelSettings().model_dump(mode="json") | model}


def changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What is not as it was, for a message; nothing if all is."""
    old, new = _flat(before), _flat(now)
    return "; ".join(
        f"{name} was {old.get(name)}, is {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


@runtime_checkable
class Measurement(Protocol):
    """What is needed of a result to tell whether it is of the same corpus."""

    @property
    def corpus(self) -> dict[str, str]:
        """sha256 of each file."""

    @property
    def of(self) -> str:
        """Which cell it is of, for a message."""


def require_same_corpus(
    results: Sequence[Measurement], corpus: dict[str, str] | None = None
) -> None:
    """Raise DataError if some cells saw another corpus than others, or than the one given."""
    for result in results:
        corpus = corpus or result.corpus
        if result.corpus != corpus:
            names = sorted(result.corpus.keys() | corpus.keys())
            name = next(n for n in names if result.corpus.get(n) != corpus.get(n))
            raise DataError(
                f"the corpus changed between cells: {name} is not the file that {result.of} was "
                "trained and measured with (restore it, or give another --out)"
            )


def seeds_found(folder: Path) -> list[int]:
    """Those whose results are in a folder."""
    names = (path.stem.removeprefix("seed") for path in folder.glob("seed*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = value
    return result
