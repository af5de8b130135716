"""The experiment as data: the model, its training, and the rows that change it."""

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from edgewise.errors import SettingError
from edgewise.reproduction.experiments import nearest
from edgewise.settings import Settings

FILE = Path(__file__).parent / "experiment.toml"


class GraphModelSettings(Settings):
    """A Transformer over the nodes of a graph."""

    d_model: int = Field(ge=1)
    heads: int = Field(ge=1)
    d_ff: int = Field(ge=1)
    layers: int = Field(ge=1)
    dropout: float = Field(ge=0, lt=1)
    on_keys: bool = True
    on_values: bool = True
    compatibility: Literal["dot", "additive", "gated"] = "dot"
    content: bool = Field(False, description="Nodes know the labels of their own edges.")


class GraphTrainingSettings(Settings):
    """Adam, with a rate that rises over the first tenth of the updates and falls to zero."""

    epochs: int = Field(ge=1)
    batch: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class GraphRow(Settings):
    """A row of the table: what it changes of the model."""

    name: str
    title: str
    model: dict[str, Any] = Field({})


class GraphSet(Settings):
    """A folder of questions."""

    name: str
    folder: str
    title: str


class Comparison(Settings):
    """Two rows whose difference is tested."""

    row: str
    against: str


class GraphExperiment(Settings):
    """All of it."""

    title: str
    asks: str
    core_minutes: float
    model: GraphModelSettings
    training: GraphTrainingSettings
    sets: tuple[GraphSet, ...]
    rows: tuple[GraphRow, ...]
    compare: tuple[Comparison, ...]

    @model_validator(mode="after")
    def _consistent(self) -> "GraphExperiment":
        names = {row.name for row in self.rows}
        for compared in self.compare:
            if missing := {compared.row, compared.against} - names:
                raise ValueError(f"compare names a row that is not there: {missing.pop()}")
        for row in self.rows:
            self.model_of(row)
        return self

    @property
    def set_names(self) -> list[str]:
        return [each.name for each in self.sets]

    @property
    def row_names(self) -> list[str]:
        return [row.name for row in self.rows]

    def row(self, name: str) -> GraphRow:
        known = {row.name: row for row in self.rows}
        if name not in known:
            raise SettingError(f"clutrr has no row {name}{nearest(name, list(known))}")
        return known[name]

    def set(self, name: str) -> GraphSet:
        known = {each.name: each for each in self.sets}
        if name not in known:
            raise SettingError(f"clutrr has no set {name}{nearest(name, list(known))}")
        return known[name]

    def model_of(self, row: GraphRow) -> GraphModelSettings:
        return GraphModelSettings(**self.model.model_dump() | row.model)


def read_graph_experiment() -> GraphExperiment:
    """The one that comes with edgewise."""
    return GraphExperiment(**tomllib.loads(FILE.read_text("utf-8")))
