"""What every exported folder has beside the engine's own files: tokenizer, settings, card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgewise.checkpoint.card import write_card
from edgewise.data.tokenizer import TOKENIZER, Tokenizer
from edgewise.errors import DataError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.settings import describe_mistakes
from edgewise.storage import SealedFolder, read_json, write_json

GENERATION = "generation_config.json"


def write_exported(
    new: Path,
    folder: Path,
    model: Transformer,
    vocabulary: Tokenizer,
    *,
    engine: str,
    numbers: str,
    own: Mapping[str, Any] | None = None,
) -> None:
    """Fill what is not the engine's; `own` is what the engine keeps in config.json."""
    (new / TOKENIZER).mkdir()
    vocabulary.write(new / TOKENIZER)
    write_json(new / GENERATION, read_json(folder / GENERATION))
    config = {"languages": None, "about": {}, "data": [], **read_json(folder / "config.json")}
    config.pop("scores", None)  # which an older version kept there
    config |= {
        "architecture": model.settings.model_dump(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "about": {**config["about"], "numbers": numbers},
        "engine": engine,
    }
    write_card(new, {**(own or {}), **config})


def exported_settings(folder: SealedFolder) -> tuple[ModelSettings, int]:
    """Return the settings of an exported model, and the number of its parameters."""
    config, file = folder.json("config.json"), folder.path / "config.json"
    parameters = config.get("parameters") if isinstance(config, dict) else None
    if type(parameters) is not int:
        raise DataError(f"{file} must have an object 'architecture' and a number 'parameters'")
    try:
        return ModelSettings.model_validate(config.get("architecture")), parameters
    except ValidationError as error:
        raise DataError(f"{file}: {describe_mistakes(error)}") from None
