"""What the paper reports: tables and claims, each row a change of a model, with its figure.

They lie in experiments/*.toml; a researcher's own row is a file of the same fields.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from edgewise.errors import SettingError
from edgewise.settings import Settings, describe_mistakes, read_toml

FOLDER = Path(__file__).parent / "experiments"
Part = Literal["valid", "test"]


class Row(Settings):
    """One row of a table: how it differs from the scale's own model."""

    name: str = Field(min_length=1, description="Short, for --rows.")
    title: str = Field("", description="As it is called in the report.")
    paper: dict[str, float] = Field({}, description="The paper's figure by pair of languages.")
    pairs: tuple[str, ...] | None = Field(None, description="Only of these; none: all.")
    scales: tuple[str, ...] | None = Field(None, description="Only at these; none: all.")
    average: int | None = Field(None, ge=1, description="Checkpoints; none: as the scale says.")
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


class Compared(Settings):
    """Two rows whose difference is tested."""

    row: str
    against: str


class Experiment(Settings):
    """A table or a claim."""

    name: str
    title: str
    says: str = Field(description="What the paper found.")
    paper: str = Field("paper", description="Whose figures these are.")
    measure: Literal["BLEU", "steps a second"] = "BLEU"
    part: Part = Field("test", description="What the paper measured on.")
    by_length: bool = Field(False, description="BLEU by the length of the source.")
    pairs: tuple[str, ...]
    scales: tuple[str, ...]
    rows: tuple[Row, ...] = Field(min_length=1)
    compare: tuple[Compared, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        names = {row.name for row in self.rows}
        for compared in self.compare:
            if missing := {compared.row, compared.against} - names:
                raise ValueError(f"compare names a row that is not there: {missing.pop()}")
        return self

    @property
    def finding(self) -> str:
        """What was found, and by whom."""
        return f"{self.paper[0].upper()}{self.paper[1:]}: {self.says}"

    def rows_of(self, scale: str, pair: str) -> list[Row]:
        """Those that are measured at this scale, for this pair of languages."""
        return [
            row
            for row in self.rows
            if (row.scales is None or scale in row.scales)
            and (row.pairs is None or pair in row.pairs)
        ]

    def with_row(self, row: Row) -> "Experiment":
        """The same with one row more; SettingError if its name is taken."""
        if row.name in {known.name for known in self.rows}:
            raise SettingError(f"{self.name} has a row {row.name} already: give yours another name")
        return self.model_copy(update={"rows": (*self.rows, row)})


def experiment_names() -> list[str]:
    """In the order of the paper, what goes beyond it at the end."""
    order = ("table1", "table2", "table3", "both", "cost", "propagation", "length", "recipe")
    found = {path.stem for path in FOLDER.glob("*.toml")}
    return [*(name for name in order if name in found), *sorted(found - set(order))]


def read_experiment(name: str) -> Experiment:
    """One of those that come with edgewise."""
    known = experiment_names()
    if name == "clutrr":
        raise SettingError(
            "clutrr is an experiment of its own kind: edgewise reproduce clutrr --data DIR"
        )
    if name not in known:
        raise SettingError(f"there is no experiment {name}{nearest(name, [*known, 'clutrr'])}")
    return Experiment(**{"name": name, **read_toml(FOLDER / f"{name}.toml")})


def read_row(path: Path) -> Row:
    """A researcher's own row."""
    fields = ", ".join(Row.model_fields)
    try:
        return Row.model_validate(read_toml(path, f"a TOML file for --row, with {fields}"))
    except ValidationError as error:
        raise SettingError(f"{path}: {describe_mistakes(error)} (a row has {fields})") from None


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a message: what was meant, or what there is."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
