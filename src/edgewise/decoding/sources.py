"""Sources as a model reads them: with an end, or without one."""

from collections.abc import Sequence

from jaxtyping import Bool, Int
from torch import Tensor

from edgewise.data.vocabulary import END, PAD
from edgewise.model.settings import ModelSettings


def as_read(source: Sequence[int], settings: ModelSettings) -> list[int]:
    """The tokens that the encoder is given; never none at all."""
    return [*source, END] if settings.source_end or not source else [*source]


def seen(
    source: Int[Tensor, "batch n_source"], settings: ModelSettings
) -> Bool[Tensor, "batch n_source"]:
    """Which tokens are attended to, of rows that have END and then PAD at their ends."""
    mask = source != PAD
    if not settings.source_end:
        mask[:, 1:] &= source[:, 1:] != END
    return mask
