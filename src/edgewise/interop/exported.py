"""What every exported folder has beside the engine's own files: tokenizer, settings, card."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from edgewise.checkpoint.card import write_card
from edgewise.errors import DataError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import read_json


def write_exported(
    new: Path,
    folder: Path,
    model: Transformer,
    *,
    engine: str,
    numbers: str,
    own: Mapping[str, Any] | None = None,
) -> None:
    """Fill what is not the engine's; `own` is what the engine keeps in config.json."""
    shutil.copytree(folder / "tokenizer", new / "tokenizer")
    shutil.copyfile(folder / "generation_config.json", new / "generation_config.json")
    config = {"languages": None, "about": {}, "data": [], **read_json(folder / "config.json")}
    config |= {
        "architecture": model.settings.model_dump(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "about": {**config["about"], "numbers": numbers},
        "scores": [],  # those of the model as it was are not those of this engine
        "engine": engine,
    }
    write_card(new, {**(own or {}), **config})


def exported_settings(folder: Path) -> tuple[ModelSettings, int]:
    """How the model of an exported folder is built, and how many parameters it has."""
    config = read_json(folder / "config.json")
    try:
        return ModelSettings(**config["architecture"]), int(config["parameters"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(f"{folder / 'config.json'} cannot be read: {error}") from None
