"""What all commands that run a model are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import model_validator

from edgewise.decoding.settings import BATCH_TOKENS, MAX_SOURCE_TOKENS, DecodingSettings
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


@dataclass(frozen=True)
class Running:
    """Where a model runs, and how much at a time."""

    device: Annotated[str, Parameter(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")] = (
        "auto"
    )
    threads: Annotated[int | None, Parameter(help="CPU threads. [default: PyTorch's choice]")] = (
        None
    )
    batch_tokens: Annotated[
        int, Parameter(help="Tokens computed together: of sources times beam, or of pairs.")
    ] = BATCH_TOKENS
    max_source_tokens: Annotated[
        int, Parameter(help="Longest line, in pieces; a longer one is refused.")
    ] = MAX_SOURCE_TOKENS

    def __post_init__(self) -> None:
        for name in ("threads", "batch_tokens", "max_source_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"--{name.replace('_', '-')} must be 1 or more; got {value}")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise SettingError(f"--threads must be at most {MOST_THREADS}; got {self.threads}")


Run = Annotated[Running | None, Parameter(name="*")]


def load_translator(
    model: Sequence[Path], run: Running | None = None, decoding: DecodingSettings | None = None
) -> "Translator":
    """The translator of one or several model folders; flags go before what the folder asks for."""
    run = run or Running()
    for folder in model:
        if not folder.is_dir():
            raise SettingError(f"there is no model folder {folder}")
    import torch

    from edgewise.decoding.device import device_named
    from edgewise.decoding.translator import Translator

    if run.threads is not None:
        torch.set_num_threads(run.threads)
    translator = Translator.load(
        *model,
        device=str(device_named(run.device, "--device")),
        batch_tokens=run.batch_tokens,
        max_source_tokens=run.max_source_tokens,
    )
    if decoding is not None:
        given = {name: getattr(decoding, name) for name in decoding.model_fields_set}
        translator.settings = translator.changed(given)
    return translator
