"""Experiments: tables and claims of the paper, and questions beyond it, as rows to be trained.

Each is a file experiments/*.toml. A row is a change of the scale's model or training, with the
paper's figure. Users add rows of their own from files with the same fields.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from edgewise.errors import SettingError
from edgewise.settings import Settings, describe_mistakes, read_toml

FOLDER = Path(__file__).parent / "experiments"
ORDER = (
    *("table1", "table2", "table3", "both", "cost", "propagation", "length", "scan"),
    *("recipe", "tuning", "clutrr"),
)


class Row(Settings):
    """One row of a table: how it differs from the scale's own model."""

    name: str = Field(min_length=1, description="Short name, for --rows.")
    title: str = Field("", description="Name in reports.")
    paper: dict[str, float] = Field({}, description="The paper's figure by pair of languages.")
    pairs: tuple[str, ...] | None = Field(None, description="Pairs it is run for; none: all.")
    scales: tuple[str, ...] | None = Field(None, description="Scales it is run at; none: all.")
    average: int | None = Field(None, ge=1, description="Checkpoints; none: the scale's number.")
    model: dict[str, Any] = Field({}, description="Settings of the model that differ.")
    training: dict[str, Any] = Field({}, description="Settings of the training that differ.")

    @model_validator(mode="after")
    def _consistent(self) -> "Row":
        if given := self.training.keys() & {"seed", "threads"}:
            raise ValueError(f"training.{given.pop()} is no setting of a row: give the option")
        return self

    @property
    def heading(self) -> str:
        return self.title or self.name


class Comparison(Settings):
    """Two rows whose difference is tested."""

    row: str
    against: str
    margin: float | None = Field(
        None, gt=0, description="Equivalence within this margin is tested too; in the first metric."
    )


class Experiment(Settings):
    """A table or a claim."""

    name: str
    title: str
    says: str = Field(description="What was found before, or what is asked.")
    paper: str = Field("paper", description="Where the figures are from; empty: there are none.")
    measure: Literal["quality", "speed"] = "quality"
    part: str = Field("test", description="Part that the paper's figures were measured on.")
    by_length: bool = Field(False, description="Report by length, in the scale's buckets.")
    pairs: tuple[str, ...]
    scales: tuple[str, ...]
    rows: tuple[Row, ...] = Field(min_length=1)
    compare: tuple[Comparison, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        names = {row.name for row in self.rows}
        for compared in self.compare:
            if missing := {compared.row, compared.against} - names:
                raise ValueError(f"compare names a row that does not exist: {missing.pop()}")
        return self

    @property
    def finding(self) -> str:
        """Return what was found, preceded by who found it."""
        return f"{self.paper[0].upper()}{self.paper[1:]}: {self.says}" if self.paper else self.says

    def rows_for(self, scale: str, pair: str) -> list[Row]:
        """Return the rows that are run at this scale for this pair of languages."""
        return [
            row
            for row in self.rows
            if (row.scales is None or scale in row.scales)
            and (row.pairs is None or pair in row.pairs)
        ]

    def with_row(self, row: Row) -> "Experiment":
        """Return the experiment with one more row; SettingError if its name is taken."""
        if row.name in {known.name for known in self.rows}:
            raise SettingError(f"{self.name} has a row {row.name} already: give yours another name")
        return self.model_copy(update={"rows": (*self.rows, row)})


def names_in(folder: Path, order: Sequence[str]) -> list[str]:
    """Return the names of the TOML files of a folder, in this order."""
    found = {path.stem for path in folder.glob("*.toml")}
    return [*(name for name in order if name in found), *sorted(found - set(order))]


def experiment_names() -> list[str]:
    """Return all names: those of the paper in its order, then those beyond it."""
    return names_in(FOLDER, ORDER)


def read_experiment(name: str) -> Experiment:
    """Read an experiment by its name."""
    known = experiment_names()
    if name not in known:
        raise SettingError(f"there is no experiment {name}{nearest(name, known)}")
    return Experiment(**{"name": name, **read_toml(FOLDER / f"{name}.toml")})


def read_row(path: Path) -> Row:
    """Read a user's own row."""
    fields = ", ".join(Row.model_fields)
    try:
        return Row.model_validate(read_toml(path, f"a TOML file for --row, with {fields}"))
    except ValidationError as error:
        raise SettingError(f"{path}: {describe_mistakes(error)} (a row has {fields})") from None


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message: the name that was probably meant, or all names."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
