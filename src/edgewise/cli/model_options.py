"""What all commands that run a model are told."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import model_validator

from edgewise.decoding.settings import DecodingSettings
from edgewise.errors import SettingError

if TYPE_CHECKING:
    from edgewise.decoding import Translator

MOST_THREADS = 1024
Models = Annotated[list[Path], Parameter(consume_multiple=True, negative=())]


class Flags(DecodingSettings):
    """Some of the settings: whether they fit together is known with those of the folder."""

    @model_validator(mode="after")
    def _consistent(self) -> "Flags":
        return self


Decoding = Annotated[Flags | None, Parameter(name="*")]


def load_translator(
    model: Sequence[Path],
    decoding: DecodingSettings | None = None,
    *,
    device: str = "auto",
    threads: int | None = None,
    batch_tokens: int | None = None,
    max_source_tokens: int | None = None,
) -> "Translator":
    """The translator of one or several model folders; flags go before what the folder asks for."""
    for name, value in (
        ("threads", threads),
        ("batch-tokens", batch_tokens),
        ("max-source-tokens", max_source_tokens),
    ):
        if value is not None and value < 1:
            raise SettingError(f"--{name} must be 1 or more; got {value}")
    if threads is not None and threads > MOST_THREADS:
        raise SettingError(f"--threads must be at most {MOST_THREADS}; got {threads}")
    for folder in model:
        if not folder.is_dir():
            raise SettingError(f"there is no model folder {folder}")
    import torch

    from edgewise.decoding.device import device_named
    from edgewise.decoding.native import BATCH_TOKENS
    from edgewise.decoding.translator import MAX_SOURCE_TOKENS, Translator

    if threads is not None:
        torch.set_num_threads(threads)
    translator = Translator.load(
        *model,
        device=str(device_named(device, "--device")),
        batch_tokens=batch_tokens or BATCH_TOKENS,
        max_source_tokens=max_source_tokens or MAX_SOURCE_TOKENS,
    )
    if decoding is not None:
        given = {name: getattr(decoding, name) for name in decoding.model_fields_set}
        translator.settings = translator.changed(given)
    return translator
