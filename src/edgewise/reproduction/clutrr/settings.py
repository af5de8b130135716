"""Settings of experiments on kinship graphs."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from edgewise.reproduction.scales import Scale
from edgewise.settings import Settings


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
    content: bool = Field(False, description="Embed the labels of a node's edges in the node.")


class GraphTrainingSettings(Settings):
    """AdamW; the learning rate rises over the first tenth of the updates and decays to zero."""

    epochs: int = Field(ge=1)
    batch: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    seed: int = Field(1, ge=0, lt=2**63)
    threads: int | None = Field(None, ge=1)


class QuestionSetSettings(Settings):
    """A folder of questions."""

    folder: str
    max_hops: int = Field(ge=1, description="Most hops of a question to train on.")


class GraphScale(Scale):
    """Questions about kinship graphs; `pairs` are the names of the sets, by hops to train on."""

    budget_setting: ClassVar[str] = "epochs"
    budget_unit: ClassVar[str] = "epochs"
    is_distributed: ClassVar[bool] = False

    task: Literal["graphs"] = "graphs"
    parts: tuple[Literal["test", "direct"], ...] = ("test", "direct")
    metrics: tuple[Literal["accuracy"], ...] = Field(("accuracy",), min_length=1)
    by: Literal["hops"] = "hops"
    sets: dict[str, QuestionSetSettings]
    model: GraphModelSettings
    training: GraphTrainingSettings

    @model_validator(mode="after")
    def _consistent(self) -> "GraphScale":
        if set(self.sets) != set(self.pairs):
            raise ValueError("sets must have an entry for each of pairs, and no other")
        return self

    def longest_trained(self, pair: str) -> int | None:
        return self.sets[pair].max_hops
