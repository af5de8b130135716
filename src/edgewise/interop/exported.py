"""What every exported folder has beside the engine's own files: tokenizer, settings, card."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.checkpoint.card import write_card
from edgewise.checkpoint.model_folder import read_architecture
from edgewise.data.tokenizer import TOKENIZER, Tokenizer, load_tokenizer
from edgewise.errors import DataError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import SealedFolder, open_sealed, read_json, write_json

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


@dataclass(frozen=True)
class Exported:
    """What an exported folder has beside the engine's own files."""

    folder: SealedFolder
    config: dict[str, Any]
    settings: ModelSettings
    parameters: int
    vocabulary: Tokenizer


def open_exported(path: Path, kind: str, version: int) -> Exported:
    """Open an exported folder; DataError if its parts do not belong together."""
    folder = open_sealed(path, kind, version)
    config, file = folder.json("config.json"), path / "config.json"
    settings, digest = read_architecture(config, file)
    parameters = config.get("parameters")
    if type(parameters) is not int or parameters < 0:
        raise DataError(f"{file} must have a number 'parameters'; it is {parameters!r:.80}")
    vocabulary = load_tokenizer(folder)
    if digest != vocabulary.digest:
        raise DataError(f"the vocabulary in {path} is not the one the model was trained with")
    return Exported(folder, config, settings, parameters, vocabulary)
