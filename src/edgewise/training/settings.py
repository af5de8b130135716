"""Settings of a training run: data, model, training."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings
from edgewise.settings import Settings, describe_mistakes, read_toml


class TrainingSettings(Settings):
    """How a model is trained; the defaults are those of the paper's base model."""

    steps: int = Field(100_000, ge=1, description="Number of updates.")
    batch_tokens: int = Field(
        4096, ge=2, description="Tokens of a batch, padding included, source and target each."
    )
    batches: int = Field(
        8, ge=1, description="Batches per update, over all devices; gradients are accumulated."
    )
    warmup: int = Field(4000, ge=1, description="Warm-up updates of the learning rate.")
    schedule: Literal["inverse_sqrt", "linear"] = Field(
        "inverse_sqrt", description="Decay after the warm-up; linear: to zero at the last update."
    )
    factor: float = Field(1.0, gt=0, lt=1e6, description="Factor of the learning rate.")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Label smoothing.")
    clip: float | None = Field(
        None, gt=0, description="Maximum gradient norm; none disables clipping."
    )
    seed: int = Field(1, ge=0, description="Seed of initial weights, batch order and dropout.")
    validate_every: int = Field(1000, ge=1, description="Updates between validations.")
    validate_bleu: int = Field(
        500, ge=0, description="Validation pairs translated for BLEU; 0: none."
    )
    patience: int | None = Field(
        None, ge=1, description="Stop after this many validations without a lower loss."
    )
    save_every: int | None = Field(1000, ge=1, description="Updates between checkpoints.")
    save_minutes: float | None = Field(None, gt=0, description="Minutes between checkpoints.")
    keep: int = Field(
        5, ge=2, description="Checkpoints to keep: for averaging, or if the newest is damaged."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")
    threads: int | None = Field(
        None, ge=1, le=1024, description="CPU threads; none: chosen by PyTorch."
    )
    mixed_precision: bool = Field(False, description="Autocast to bfloat16; GPUs only.")
    compile: bool = Field(False, description="Use torch.compile: starts slowly, is faster on GPUs.")


# What may differ when a run is continued: what says how long, how often and where, and what helps
# against losses that are no number. Other devices or threads may cost the last bits.
CHANGEABLE = frozenset(
    f"training.{name}"
    for name in (
        *("steps", "patience", "save_every", "save_minutes", "keep", "validate_bleu"),
        *("device", "threads", "factor", "warmup", "clip"),
    )
)


class RunSettings(Settings):
    """All settings of a run."""

    corpus: Path = Field(description="Folder that edgewise prepare wrote.")
    out: Path = Field(description="Folder of the run: checkpoints, metrics, best model.")
    init_from: Path | None = Field(None, description="Model folder to start from (fine-tuning).")
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()

    @classmethod
    def read(cls, path: Path) -> "RunSettings":
        """Read a TOML file."""
        try:
            return cls.model_validate(read_toml(path))
        except ValidationError as error:
            raise SettingError(f"{path}: {describe_mistakes(error)}") from None

    def resolved(self) -> "RunSettings":
        """Return settings with absolute paths of corpus and initial model."""
        init_from = None if self.init_from is None else self.init_from.absolute()
        return self.model_copy(update={"corpus": self.corpus.absolute(), "init_from": init_from})

    def flat(self) -> dict[str, object]:
        """Return all settings by their dotted names."""
        result: dict[str, object] = {}
        for name, value in self.model_dump(mode="json").items():
            if isinstance(value, dict):
                result |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                result[name] = value
        return result

    def toml(self) -> str:
        """Return the settings as TOML that `edgewise train` reads."""
        lines: list[str] = []
        section = ""
        for name, value in self.flat().items():
            head, _, key = name.rpartition(".")
            if head != section:
                lines += ["", f"[{head}]"]
                section = head
            lines.append(f"{key} = {_toml(value)}")
        return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
