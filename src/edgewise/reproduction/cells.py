"""A cell: one model of a table, trained with one seed. Several tables may share a cell."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgewise.errors import SettingError
from edgewise.reproduction.experiments import Row
from edgewise.reproduction.scales import Scale
from edgewise.settings import Settings, describe_mistakes


@dataclass(frozen=True)
class Changes:
    """What the command line changes of a scale."""

    budget: int | None = None  # updates or epochs
    threads: int | None = None
    ranks: int | None = None

    def given(self) -> list[tuple[str, str]]:
        """Return the changes that are asked for, by the names of their options."""
        return [(name, str(value)) for name, value in vars(self).items() if value is not None]


@dataclass(frozen=True)
class Cell:
    """All that a result depends on, except the content of the corpus."""

    scale: Scale
    pair: str
    model: Settings
    training: Any  # settings of the scale's task, with a seed and a number of threads
    average: int
    ranks: int

    @property
    def slug(self) -> str:
        """Return how the cell differs from the scale's own model, as the name of a folder."""
        scale = self.scale
        own: dict[str, object] = {"average": self.average, "ranks": self.ranks}
        base: dict[str, object] = {"average": scale.average, "ranks": scale.ranks}
        own |= self.model.model_dump() | self.training.model_dump()
        base |= scale.model.model_dump() | scale.training.model_dump()
        base |= {"seed": self.seed, "threads": scale.threads}
        differs = [f"{name}={_shown(own[name])}" for name in own if own[name] != base[name]]
        return ",".join(differs) or "unchanged"

    @property
    def name(self) -> str:
        """Return the name of its work folder and of its result."""
        return f"{self.scale.name}/{self.pair}/{self.slug}/seed{self.seed}"

    @property
    def seed(self) -> int:
        return int(self.training.seed)

    @property
    def threads(self) -> int | None:
        threads: int | None = self.training.threads
        return threads

    @property
    def budget(self) -> int:
        """Return the number of updates or epochs."""
        return int(getattr(self.training, self.scale.budget_setting))

    def result(self, out: Path) -> Path:
        """Return the file of its result, which is written at its end."""
        return out / "cells" / f"{self.name}.json"

    def work(self, out: Path) -> Path:
        """Return the folder it is trained in."""
        return out / "work" / self.name

    def command(self, folder: Path) -> list[str]:
        """Return the arguments of Python that run it; torchrun starts several ranks."""
        command = ["-m", "edgewise", "reproduce", "cell", str(folder)]
        if self.ranks > 1 and not (folder / "model").is_dir():
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            return [*launch, str(self.ranks), *command]
        return [*command, "--parent", str(os.getpid())]

    def asked(self) -> dict[str, Any]:
        """Return everything that is stored with the result to tell it from others."""
        return self.scale.settings_asked() | {
            "pair": self.pair,
            "average": self.average,
            "ranks": self.ranks,
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
        }


def cell_for(row: Row, scale: Scale, pair: str, seed: int, changes: Changes) -> Cell:
    """Return the cell of a row; SettingError if its settings are invalid."""
    training = row.training | {"seed": seed, "threads": changes.threads or scale.threads}
    if changes.budget is not None:
        training[scale.budget_setting] = changes.budget
    try:
        # Constructed, not copied: a copy would skip the checks of the settings.
        model = type(scale.model)(**scale.model.model_dump() | row.model)
        trained: Any = type(scale.training)(**scale.training_for(model).model_dump() | training)
    except ValidationError as error:
        raise SettingError(f"row {row.name}: {describe_mistakes(error)}") from None
    average, keep = row.average or scale.average, getattr(trained, "keep", 1)
    if average > keep:
        raise SettingError(
            f"row {row.name}: training.keep must be at least average, {average}; it is {keep}"
        )
    ranks = changes.ranks or scale.ranks
    if ranks > 1 and not scale.is_distributed:
        raise SettingError(f"--ranks must be 1 at scale {scale.name}; got {ranks}")
    return Cell(scale, pair, model, trained, average, ranks)


def without_duplicates(cells: Iterable[Cell]) -> list[Cell]:
    """Return each cell once: rows of several tables may be the same model."""
    return list({cell.name: cell for cell in cells}.values())


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
