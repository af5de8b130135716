"""A model as a folder: settings, weights, tokenizer, manifest and card."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgewise.checkpoint.card import write_card
from edgewise.checkpoint.tensors import save_tensors
from edgewise.data.tokenizer import Tokenizer, load_tokenizer
from edgewise.errors import DataError, SettingError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import check, new_folder, read_json, seal, write_json

KIND, VERSION = "model", 1
# How such a model is meant to be used: as in the paper. Any of the DecodingSettings may stand here.
GENERATION = {"beam": 4, "length_penalty": 0.6, "extra_tokens": 50}


def weights(model: Transformer) -> dict[str, Tensor]:
    """Each parameter once, by its first name, on the CPU."""
    return {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}


def write_model(
    folder: Path,
    tensors: Mapping[str, Tensor],
    settings: ModelSettings,
    vocabulary: Tokenizer,
    about: Mapping[str, object],
    languages: tuple[str, str] | None = None,
    data: Sequence[str] = (),
    generation: Mapping[str, object] = GENERATION,
) -> None:
    """Fill a new, empty folder and seal it. `about` and `data` are for the card's reader.

    languages: codes of source and target, if they are known. data: what it was trained on.
    generation: how it asks to be used.
    """
    (folder / "tokenizer").mkdir(parents=True)
    vocabulary.write(folder / "tokenizer")
    save_tensors(tensors, folder / "model.safetensors")
    write_json(folder / "generation_config.json", dict(generation))
    config = {
        "architecture": settings.model_dump(),
        "vocabulary": {"pieces": vocabulary.size, "sha256": vocabulary.digest},
        "languages": languages,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "about": {name: str(value) for name, value in about.items()},
        "data": list(data),
        "scores": [],
        "engine": "edgewise",
    }
    write_card(folder, config)
    seal(folder, KIND, VERSION)


def read_model(folder: Path) -> tuple[dict[str, Tensor], ModelSettings, Tokenizer]:
    """The parts of a model folder, every file checked against the manifest."""
    if (folder / "last").is_dir():
        raise SettingError(
            f"{folder} is a training run; its models are {folder / 'best'} and {folder / 'last'}"
        )
    check(folder, KIND, VERSION)
    config = read_json(folder / "config.json")
    vocabulary = load_tokenizer(folder)
    try:
        settings = ModelSettings(**config["architecture"])
        digest = config["vocabulary"]["sha256"]
        tensors = load_file(folder / "model.safetensors")
    except (KeyError, TypeError, ValidationError, SafetensorError) as error:
        raise DataError(f"{folder} cannot be read: {error}") from None
    if digest != vocabulary.digest:
        raise DataError(f"the vocabulary in {folder} is not the one the model was trained with")
    return tensors, settings, vocabulary


def model_data(folder: Path) -> list[str]:
    """What a model was trained on, as far as its folder says."""
    config = read_json(folder / "config.json")
    data = config.get("data", []) if isinstance(config, dict) else []
    return [str(part) for part in data] if isinstance(data, list) else []


def model_languages(folder: Path) -> tuple[str, str] | None:
    """The codes of the source's and the target's language; None if the folder does not say."""
    config = read_json(folder / "config.json")
    found = config.get("languages") if isinstance(config, dict) else None
    if found is None:
        return None
    if not isinstance(found, list) or list(map(type, found)) != [str, str]:
        raise DataError(f"{folder / 'config.json'} must name two languages; got {found!r}")
    source, target = found
    return source, target


def load_model(folder: Path) -> tuple[Transformer, Tokenizer]:
    """The model of a folder, ready to translate, and its vocabulary."""
    tensors, settings, vocabulary = read_model(folder)
    model = Transformer(settings, vocabulary.size)
    set_weights(model, tensors, str(folder))
    return model.eval(), vocabulary


@torch.no_grad()
def set_weights(model: Transformer, tensors: Mapping[str, Tensor], name: str) -> None:
    """Copy the tensors into the model; DataError unless they are just its parameters."""
    parameters = dict(model.named_parameters())
    expected = {key: list(value.shape) for key, value in parameters.items()}
    found = {key: list(value.shape) for key, value in tensors.items()}
    if expected != found:
        key = next(k for k in sorted({*expected, *found}) if expected.get(k) != found.get(k))
        raise DataError(
            f"{name} must have the parameters of the model; {key} is "
            f"{found.get(key, 'missing')} there and {expected.get(key, 'missing')} in the model"
        )
    for key, parameter in parameters.items():
        parameter.copy_(tensors[key])


def copy_model(folder: Path, out: Path) -> None:
    """Put a copy of a model folder at `out`, in place of what may be there."""
    check(folder, KIND, VERSION)
    with new_folder(out) as new:
        shutil.copytree(folder, new, dirs_exist_ok=True)
