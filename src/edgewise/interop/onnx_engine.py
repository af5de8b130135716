"""Runs exported folders by ONNX Runtime, on CPUs: the search is ours, with all that it can do."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.batches import padded
from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN
from edgewise.decoding.batching import by_length
from edgewise.decoding.candidates import Distribution
from edgewise.decoding.engine import Tokens
from edgewise.decoding.settings import BATCH_TOKENS
from edgewise.decoding.step import Step
from edgewise.decoding.stepped import ROWS, SteppedEngine, Together, same_vocabulary
from edgewise.errors import DataError, EdgewiseError
from edgewise.interop.exported import open_exported
from edgewise.interop.onnx import KIND, VERSION, layer_names
from edgewise.storage import SealedFolder

LARGEST_GRAPH = 1 << 31  # bytes; larger ones have their weights in a file beside them


class OnnxEngine(SteppedEngine):
    """One exported folder, or several that decide together."""

    def __init__(
        self, models: Sequence["OnnxModel"], vocabulary: Tokenizer, batch_tokens: int
    ) -> None:
        super().__init__(vocabulary, models[0].settings, models[0].parameters, batch_tokens)
        self.models = models

    @classmethod
    def load(
        cls,
        folders: Sequence[Path],
        *,
        threads: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> "OnnxEngine":
        """threads: None is the runtime's own choice."""
        models = [OnnxModel(folder, threads) for folder in folders]
        vocabulary = same_vocabulary(folders, [model.vocabulary for model in models])
        return cls(models, vocabulary, batch_tokens)

    def begin(self, sources: Sequence[Tokens], slots: int) -> Step:
        return Together([OnnxSteps(model, sources, slots) for model in self.models])

    @torch.inference_mode()
    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        results = [0.0] * len(sources)
        for chosen, length in self._batches(sources, targets):
            step = self.begin([sources[i] for i in chosen], 1)
            tokens = padded([targets[i] for i in chosen])
            before = np.full(len(chosen), BEGIN)
            for column in range(length + 1):
                predictions = step(torch.from_numpy(before[:, None]), None)
                values = predictions.of(torch.from_numpy(tokens[:, column]))
                for row, i in enumerate(chosen):
                    if column <= len(targets[i]):
                        results[i] += float(values[row])
                before = tokens[:, column]
        if not all(map(math.isfinite, results)):
            raise DataError("the model's output is not a number: its weights are damaged")
        return results

    @torch.inference_mode()
    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        results = [
            np.zeros((len(target), len(source)), np.float32)
            for source, target in zip(sources, targets, strict=True)
        ]
        for chosen, length in self._batches(sources, targets):
            steps = [OnnxSteps(each, [sources[i] for i in chosen], 1) for each in self.models]
            tokens = padded([[BEGIN, *targets[i]] for i in chosen])
            for column in range(length):
                for step in steps:
                    step(torch.from_numpy(tokens[:, column : column + 1]), None)
                    for row, i in enumerate(chosen):
                        if column < len(targets[i]):
                            seen = step.attention[row, 0, : len(sources[i])]
                            results[i][column] += seen / len(steps)
        return results

    def _batches(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> Iterator[tuple[list[int], int]]:
        """Pairs that are computed together, and how long the longest target is."""
        both = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
        for chosen in by_length(both, self.batch_tokens, ROWS):
            yield chosen, max(len(targets[i]) for i in chosen)


class OnnxModel:
    """The two graphs of a folder."""

    def __init__(self, folder: Path, threads: int | None) -> None:
        exported = open_exported(folder, KIND, VERSION)
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise EdgewiseError(
                "this engine needs onnxruntime: pip install 'edgewise[export]'"
            ) from None
        self.settings, self.parameters = exported.settings, exported.parameters
        self.vocabulary, settings = exported.vocabulary, exported.settings
        self.heads, self.d_head = settings.heads, settings.d_model // settings.heads
        self.memory, self.past, self.present = (
            layer_names(settings.decoder_layers, kind) for kind in ("memory", "past", "present")
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        # Buffers of one size after the other are of no use again: each step has another length.
        options.enable_mem_pattern = False
        try:
            self._encoder, self._decoder = (
                onnxruntime.InferenceSession(
                    _graph(exported.folder, name), options, providers=["CPUExecutionProvider"]
                )
                for name in ("encoder", "decoder")
            )
        except EdgewiseError:
            raise
        except Exception as error:  # of several kinds, which it does not document
            raise DataError(f"ONNX Runtime cannot run {folder}: {error!s:.300}") from None
        exported.folder.require_unchanged()
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy

        found = {each.name for each in self._decoder.get_inputs()}
        if found != {"tokens", "parents", "mask", *self.memory, *self.past}:
            raise DataError(f"{folder}: decoder.onnx must have the layers that config.json names")

    def encode(self, source: NDArray[np.int64]) -> list[Any]:
        """The mask, then the memory."""
        return _run(self._encoder, ["mask", *self.memory], {"source": self.value(source)})

    def decode(self, inputs: dict[str, Any]) -> list[Any]:
        """Log-probabilities, attention, then what is the past of the next step."""
        return _run(self._decoder, ["log_probabilities", "attention", *self.present], inputs)


def _graph(folder: SealedFolder, name: str) -> bytes | Path:
    """Return the content of a graph; its path, if its weights are in a file beside it."""
    if f"{name}.onnx.data" not in folder:
        return folder.read(f"{name}.onnx", limit=LARGEST_GRAPH)
    folder.file(f"{name}.onnx.data")
    return folder.file(f"{name}.onnx")


def _run(session: Any, outputs: list[str], inputs: dict[str, Any]) -> list[Any]:
    try:
        return list(session.run_with_ort_values(outputs, inputs))
    except Exception as error:  # of several kinds, which it does not document
        first = str(error).splitlines()[0]
        raise EdgewiseError(
            f"ONNX Runtime failed: {first} (where memory is short, lower batch_tokens)"
        ) from None


class OnnxSteps(Step):
    """The state of a search: what the decoder has seen of each hypothesis."""

    attention: NDArray[np.float32]  # of the last step, to each source token: [batch, slots, n]

    def __init__(self, model: OnnxModel, sources: Sequence[Tokens], slots: int) -> None:
        self._model = model
        self._slots = slots  # of the past: fewer are enough for what translations begin with
        self._mask, *self._memory = model.encode(padded(sources).astype(np.int64))
        nothing = np.zeros((len(sources) * slots, model.heads, 0, model.d_head), np.float32)
        self._past = [model.value(nothing)] * len(model.past)
        self._of_past = np.arange(len(sources))  # where the past of each sentence stands

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Distribution:
        own = np.arange(tokens.shape[1])[None].repeat(len(tokens), axis=0)
        rows = self._of_past[:, None] * self._slots + (own if parents is None else parents.numpy())
        self._slots = tokens.shape[1]
        inputs = {
            "tokens": self._model.value(tokens.numpy()),
            "parents": self._model.value(rows),
            "mask": self._mask,
            **dict(zip(self._model.memory, self._memory, strict=True)),
            **dict(zip(self._model.past, self._past, strict=True)),
        }
        values, attention, *self._past = self._model.decode(inputs)
        self._of_past = np.arange(len(tokens))
        self.attention = attention.numpy()
        return Distribution(torch.from_numpy(values.numpy()).flatten(0, 1))

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences only."""
        kept, value = sentences.numpy(), self._model.value
        self._mask = value(self._mask.numpy()[kept])
        self._memory = [value(each.numpy()[kept]) for each in self._memory]
        self._of_past = self._of_past[kept]
