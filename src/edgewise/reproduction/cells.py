"""A cell: one model of a table, trained with one seed. Rows of several tables may be one cell."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.reproduction.experiments import Row
from edgewise.reproduction.scales import Scale
from edgewise.settings import describe_mistakes
from edgewise.training.settings import RunSettings, TrainingSettings


@dataclass(frozen=True)
class Changes:
    """What a command asks for otherwise than the scale does."""

    budget: int | None = None  # updates
    threads: int | None = None
    ranks: int | None = None

    def given(self) -> list[tuple[str, str]]:
        """Those that are asked for, by the names of their options."""
        return [(name, str(value)) for name, value in vars(self).items() if value is not None]


@dataclass(frozen=True)
class Cell:
    """All that its result depends on, but for the text of the corpus."""

    scale: Scale
    pair: str
    model: ModelSettings
    training: TrainingSettings
    average: int
    ranks: int

    @property
    def slug(self) -> str:
        """How it differs from the scale's own model, as the name of a folder."""
        scale = self.scale
        own: dict[str, object] = {"average": self.average, "ranks": self.ranks}
        theirs: dict[str, object] = {"average": scale.average, "ranks": scale.ranks}
        own |= self.model.model_dump() | self.training.model_dump()
        theirs |= scale.model.model_dump() | scale.training.model_dump()
        theirs |= {"seed": self.training.seed, "threads": scale.threads}
        differs = [f"{name}={_shown(own[name])}" for name in own if own[name] != theirs[name]]
        return ",".join(differs) or "unchanged"

    @property
    def name(self) -> str:
        """Of the folder it is trained in, and of its result."""
        return f"{self.scale.name}/{self.pair}/{self.slug}/seed{self.training.seed}"

    def result(self, out: Path) -> Path:
        """Where what was measured is stored when all is."""
        return out / "cells" / f"{self.name}.json"

    def work(self, out: Path) -> Path:
        """Where it is trained."""
        return out / "work" / self.name

    @property
    def threads(self) -> int | None:
        return self.training.threads

    def command(self, folder: Path) -> list[str]:
        """What runs it, after the name of Python: under torchrun what several ranks train."""
        command = ["-m", "edgewise", "reproduce", "cell", str(folder)]
        if self.ranks > 1 and not (folder / "model").is_dir():
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            return [*launch, str(self.ranks), *command]
        return [*command, "--parent", str(os.getpid())]

    def run(self, out: Path, corpus: Path) -> RunSettings:
        """Its training."""
        folder = self.work(out) / "run"
        return RunSettings(corpus=corpus, out=folder, model=self.model, training=self.training)

    def asked(self) -> dict[str, Any]:
        """Everything that is stored with the result, so that it can be told from others."""
        scale = self.scale
        return {
            "scale": scale.name,
            "pair": self.pair,
            "preparation": scale.preparation(),
            "parts": list(scale.parts),
            "tokenised": scale.tokenised,
            "average": self.average,
            "ranks": self.ranks,
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "decoding": scale.decoding.model_dump(mode="json"),
        }


def cell_of(row: Row, scale: Scale, pair: str, seed: int, changes: Changes) -> Cell:
    """The cell of a row; SettingError if its settings are none."""
    training = row.training | {"seed": seed, "threads": changes.threads or scale.threads}
    if changes.budget is not None:
        training["steps"] = changes.budget
    try:
        # By way of the settings' own checks, which a copy would go round.
        model = ModelSettings(**scale.model.model_dump() | row.model)
        trained = TrainingSettings(**scale.training.model_dump() | training)
    except ValidationError as error:
        raise SettingError(f"row {row.name}: {describe_mistakes(error)}") from None
    average = row.average or scale.average
    if average > trained.keep:
        raise SettingError(
            f"row {row.name}: training.keep must be at least average, {average}; it is "
            f"{trained.keep}"
        )
    return Cell(scale, pair, model, trained, average, changes.ranks or scale.ranks)


def different(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once: rows of several tables may be the same model."""
    return list({cell.name: cell for cell in cells}.values())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
