"""A model as a folder: settings, weights, tokenizer, manifest and card."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from edgewise.checkpoint.card import write_card
from edgewise.checkpoint.tensors import (
    load_tensors,
    require_shapes,
    require_tensors,
    save_tensors,
    tensor_names,
)
from edgewise.data.tokenizer import Tokenizer, load_tokenizer
from edgewise.errors import DataError, SettingError
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, parameter_shapes
from edgewise.settings import describe_mistakes
from edgewise.storage import MANIFEST, new_folder, open_sealed, read_json, seal, write_json

KIND, VERSION = "model", 1
WEIGHTS = "model.safetensors"
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
    save_tensors(tensors, folder / WEIGHTS)
    write_json(folder / "generation_config.json", dict(generation))
    config = {
        "architecture": settings.model_dump(),
        "vocabulary": {"pieces": vocabulary.size, "sha256": vocabulary.digest},
        "languages": languages,
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "about": {name: str(value) for name, value in about.items()},
        "data": list(data),
        "engine": "edgewise",
    }
    write_card(folder, config)
    seal(folder, KIND, VERSION)


def read_model(folder: Path) -> tuple[dict[str, Tensor], ModelSettings, Tokenizer]:
    """Return the weights, settings and vocabulary of a model folder, all verified.

    The settings are compared with the header of the weights before anything is allocated.
    """
    if (folder / "run.json").is_file() and (folder / "last").is_dir():
        raise SettingError(
            f"{folder} is a training run; its models are {folder / 'best'} and {folder / 'last'}"
        )
    sealed = open_sealed(folder, KIND, VERSION)
    settings, digest = read_architecture(sealed.json("config.json"), folder / "config.json")
    vocabulary = load_tokenizer(sealed)
    if digest != vocabulary.digest:
        raise DataError(f"the vocabulary in {folder} is not the one the model was trained with")
    require_parameters(sealed.located(WEIGHTS), settings, vocabulary.size)
    tensors = load_tensors(sealed.file(WEIGHTS))
    sealed.require_unchanged()
    return tensors, settings, vocabulary


def read_architecture(config: object, file: Path) -> tuple[ModelSettings, object]:
    """Return the settings of a model, and the hash of its vocabulary."""
    vocabulary = config.get("vocabulary") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(vocabulary, dict):
        raise DataError(f"{file} must have the objects 'architecture' and 'vocabulary'")
    try:
        return ModelSettings.model_validate(config.get("architecture")), vocabulary.get("sha256")
    except ValidationError as error:
        raise DataError(f"{file}: {describe_mistakes(error)}") from None


def require_parameters(weights: Path, settings: ModelSettings, vocabulary: int) -> None:
    """Raise DataError unless a file of weights is of a model with these settings."""
    names = tensor_names(weights)
    for side in ("encoder", "decoder"):
        # First, since settings may name any number of layers.
        layers = len({name.split(".")[1] for name in names if name.startswith(f"{side}.")})
        expected = getattr(settings, f"{side}_layers")
        if layers != expected:
            raise DataError(
                f"{weights} must have {expected} layers of the {side}, as the settings say; it has "
                f"{layers}"
            )
    require_tensors(weights, parameter_shapes(settings, vocabulary))


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
    expected, found = (
        {key: tuple(value.shape) for key, value in each.items()} for each in (parameters, tensors)
    )
    require_shapes(name, found, expected)
    for key, parameter in parameters.items():
        parameter.copy_(tensors[key])


def copy_model(folder: Path, out: Path) -> None:
    """Put a copy of a model folder at `out`, in place of what may be there."""
    sealed = open_sealed(folder, KIND, VERSION)
    with new_folder(out) as new:
        for name in (*sealed.names, MANIFEST):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, new / name)
