"""Options of all commands that run a model."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from cyclopts import Parameter
from pydantic import model_validator

from edgewise.decoding.settings import BATCH_TOKENS, MAX_SOURCE_TOKENS, DecodingSettings
from edgewise.errors import SettingError
from edgewise.storage import kind_of

if TYPE_CHECKING:
    from edgewise.decoding import Translator

MOST_THREADS = 1024
Engines = Literal["edgewise", "ctranslate2", "onnx"]
Models = Annotated[list[Path], Parameter(consume_multiple=True, negative=())]


class Flags(DecodingSettings):
    """Decoding settings given as flags; checked after they are merged with those of the folder."""

    @model_validator(mode="after")
    def _consistent(self) -> "Flags":
        return self


Decoding = Annotated[Flags | None, Parameter(name="*")]


@dataclass(frozen=True)
class Running:
    """Engine, device, threads and batch size."""

    engine: Annotated[
        Engines, Parameter(help="Inference engine; ctranslate2 and onnx need an exported model.")
    ] = "edgewise"
    device: Annotated[str, Parameter(help="cpu, cuda, cuda:1, …; auto: a GPU if there is one.")] = (
        "auto"
    )
    threads: Annotated[
        int | None, Parameter(help="CPU threads. [default: chosen by the engine]")
    ] = None
    batch_tokens: Annotated[
        int, Parameter(help="Tokens per batch: of sources times beam, or of pairs.")
    ] = BATCH_TOKENS
    max_source_tokens: Annotated[
        int, Parameter(help="Maximum tokens per sentence; longer ones are refused.")
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
    model: Sequence[Path],
    run: Running | None = None,
    decoding: DecodingSettings | None = None,
    *,
    searched: bool = True,
) -> "Translator":
    """Load a translator from one or several model folders; flags override the folder's settings.

    searched: it translates, so settings that its engine does not support are refused first.
    """
    run = run or Running()
    for folder in model:
        if not folder.is_dir():
            raise SettingError(f"there is no model folder {folder}")
        require_engine(folder, run)
    translator = _LOADERS[run.engine](model, run)
    if decoding is not None:
        given = {name: getattr(decoding, name) for name in decoding.model_fields_set}
        translator.settings = translator.changed(given)
    if searched:
        translator.engine.search([], [], translator.settings)
    return translator


_FORMATS: dict[Engines, str] = {
    "edgewise": "checkpoint.model_folder",
    "ctranslate2": "interop.ctranslate2",
    "onnx": "interop.onnx",
}


def folder_format(run: Running | None) -> tuple[str, int]:
    """The kind of folder that the engine runs, and its version."""
    module = importlib.import_module(f"edgewise.{_FORMATS[(run or Running()).engine]}")
    return module.KIND, module.VERSION


def run_of(folder: Path, run: Running | None) -> Running:
    """Return the options with the engine that the folder was exported for."""
    run = run or Running()
    kind = kind_of(folder)
    for engine in get_args(Engines):
        other = replace(run, engine=engine)
        if folder_format(other)[0] == kind:
            return other
    return run


def require_engine(folder: Path, run: Running) -> None:
    """Raise SettingError if a folder is for another engine than the one requested."""
    other = run_of(folder, run)
    if other.engine != run.engine:
        raise SettingError(
            f"{folder} is for --engine {other.engine}; --engine {run.engine} was asked for"
        )


def _edgewise(model: Sequence[Path], run: Running) -> "Translator":
    import torch

    from edgewise.decoding.device import device_named
    from edgewise.decoding.translator import Translator

    if run.threads is not None:
        torch.set_num_threads(run.threads)
    return Translator.load(
        *model,
        device=str(device_named(run.device, "--device")),
        batch_tokens=run.batch_tokens,
        max_source_tokens=run.max_source_tokens,
    )


def _ctranslate2(model: Sequence[Path], run: Running) -> "Translator":
    from edgewise.decoding.device import device_named
    from edgewise.decoding.translator import Translator, folder_settings
    from edgewise.interop.ctranslate2_engine import CTranslate2Engine

    if len(model) > 1:
        raise SettingError(
            f"--engine ctranslate2 runs one model; --model names {len(model)} (the engines "
            "edgewise and onnx run several together)"
        )
    engine = CTranslate2Engine(
        model[0],
        device=str(device_named(run.device, "--device")),
        threads=run.threads,
        batch_tokens=run.batch_tokens,
    )
    return Translator(engine, folder_settings(model[0]), max_source_tokens=run.max_source_tokens)


def _onnx(model: Sequence[Path], run: Running) -> "Translator":
    import torch

    from edgewise.decoding.translator import Translator, folder_settings
    from edgewise.interop.onnx_engine import OnnxEngine

    if run.device not in ("auto", "cpu"):
        raise SettingError(f"--device must be cpu for --engine onnx; got {run.device!r}")
    if run.threads is not None:  # the search is PyTorch's
        torch.set_num_threads(run.threads)
    engine = OnnxEngine.load(model, threads=run.threads, batch_tokens=run.batch_tokens)
    return Translator(engine, folder_settings(model[0]), max_source_tokens=run.max_source_tokens)


_LOADERS: dict[Engines, Callable[[Sequence[Path], Running], "Translator"]] = {
    "edgewise": _edgewise,
    "ctranslate2": _ctranslate2,
    "onnx": _onnx,
}
