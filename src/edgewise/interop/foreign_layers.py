"""Parameters by our names from layers by the names of another toolkit."""

from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from torch import Tensor

from edgewise.errors import DataError
from edgewise.interop.foreign_weights import ForeignWeights
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import parameter_shapes
from edgewise.settings import describe_mistakes


def settings_of(weights: ForeignWeights, values: Mapping[str, object]) -> ModelSettings:
    """The settings; DataError if no model of ours can have them."""
    try:
        return ModelSettings.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{weights.file}: {describe_mistakes(error)}") from None


def shapes_of(settings: ModelSettings) -> dict[str, tuple[int, ...]]:
    """Of each parameter; embeddings are of one token."""
    return parameter_shapes(settings, 1)


def modules(
    layers: int, ours: str, theirs: str, names: Mapping[str, str]
) -> Iterable[tuple[str, str]]:
    """Our names and theirs of the modules of each layer."""
    for layer in range(layers):
        for own, other in names.items():
            yield f"{ours}.{layer}.{own}", f"{theirs}.{layer}.{other}"


def take_modules(
    weights: ForeignWeights,
    pairs: Iterable[tuple[str, str]],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    biases: bool,
) -> dict[str, Tensor]:
    """Weights and biases of linear maps and norms. biases: maps must have them; else it is zero."""
    tensors = {}
    for own, other in pairs:
        tensors[f"{own}.weight"] = weights.take(f"{other}.weight", shapes[f"{own}.weight"])
        take = weights.take if biases or own.endswith("norm") else weights.take_or_zeros
        tensors[f"{own}.bias"] = take(f"{other}.bias", shapes[f"{own}.bias"])
    return tensors
