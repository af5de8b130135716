"""The engine of this library: one model folder, or several that decide together."""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from edgewise.checkpoint.model_folder import load_model
from edgewise.data.tokenizer import Tokenizer
from edgewise.decoding.alignment import attention_to_source
from edgewise.decoding.candidates import Logits
from edgewise.decoding.device import device_named, within_memory
from edgewise.decoding.engine import Tokens
from edgewise.decoding.fused import FusedDecoder
from edgewise.decoding.scoring import token_log_probabilities
from edgewise.decoding.settings import BATCH_TOKENS
from edgewise.decoding.step import Step
from edgewise.decoding.stepped import ROWS, SteppedEngine, Together, same_vocabulary
from edgewise.decoding.steps import WIDTH, Steps, up, wide
from edgewise.errors import DataError
from edgewise.model.transformer import Transformer


class NativeEngine(SteppedEngine):
    """Runs our models by PyTorch."""

    def __init__(
        self,
        models: Sequence[Transformer],
        vocabulary: Tokenizer,
        *,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        parameters = sum(parameter.numel() for parameter in models[0].parameters())
        super().__init__(vocabulary, models[0].settings, parameters, batch_tokens)
        self.models = [model.eval() for model in models]
        self._decoders = [FusedDecoder(model) for model in models]

    @classmethod
    def load(
        cls,
        folders: Sequence[Path],
        *,
        device: torch.device | str = "cpu",
        batch_tokens: int = BATCH_TOKENS,
    ) -> "NativeEngine":
        """The models of folders; more than one must have the same vocabulary."""
        where = device_named(str(device))
        loaded = [load_model(folder) for folder in folders]
        vocabulary = same_vocabulary(folders, [each for _, each in loaded])
        models = [model.to(where) for model, _ in loaded]
        return cls(models, vocabulary, batch_tokens=batch_tokens)

    def begin(self, sources: Sequence[Tokens], slots: int) -> Step:
        return Together([NativeStep(decoder, sources, slots) for decoder in self._decoders])

    @torch.inference_mode()
    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        results = [0.0] * len(sources)
        for chosen, source, target in self._pairs(sources, targets):
            with self.memory():
                together = [token_log_probabilities(each, source, target) for each in self.models]
            each = torch.stack(together).logsumexp(0) - math.log(len(together))
            for i, values in zip(chosen, each, strict=True):
                results[i] = float(values[: len(targets[i]) + 1].double().sum())
        if not all(map(math.isfinite, results)):
            raise DataError("the model's output is not a number: its weights are damaged")
        return results

    @torch.inference_mode()
    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        results: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(sources)
        for chosen, source, target in self._pairs(sources, targets):
            with self.memory():
                weights = sum(attention_to_source(each, source, target) for each in self.models)
            assert isinstance(weights, Tensor)
            for i, matrix in zip(chosen, weights.cpu(), strict=True):
                rows, columns = len(targets[i]), len(sources[i])
                results[i] = matrix[:rows, :columns].numpy() / len(self.models)
        return results

    def memory(self) -> AbstractContextManager[None]:
        return within_memory(
            f"on {self.models[0].embedding.weight.device}: lower batch_tokens (it is "
            f"{self.batch_tokens}), or give shorter sentences"
        )

    def _pairs(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[tuple[list[int], Int[Tensor, "some n"], Int[Tensor, "some m"]]]:
        """Batches of pairs whose padded lengths are the same, so that none depends on another."""
        shapes: dict[tuple[int, int], list[int]] = {}
        for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
            shape = up(len(source) + 1, WIDTH), up(len(target) + 1, WIDTH)
            shapes.setdefault(shape, []).append(i)
        device = self.models[0].embedding.weight.device
        batches = []
        for (n, m), members in shapes.items():
            count = max(1, self.batch_tokens // max(n, m))
            for start in range(0, len(members), count):
                chosen = members[start : start + count]
                batches.append(
                    (
                        chosen,
                        wide([sources[i] for i in chosen], n).to(device),
                        wide([targets[i] for i in chosen], m).to(device),
                    )
                )
        return batches


class NativeStep(Step):
    """A model of ours, a position at a time."""

    def __init__(self, decoder: FusedDecoder, sources: Sequence[Tokens], slots: int) -> None:
        self._output, self._steps = decoder.output, Steps(decoder, sources, slots)

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Logits:
        return self._output(self._steps(tokens, parents))

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        self._steps.keep(sentences)

    def fork(self, sentences: Int[Tensor, " chosen"]) -> "NativeStep":
        other = copy.copy(self)
        other._steps = self._steps.fork(sentences)
        return other

    def prefill(
        self, tokens: Int[Tensor, "batch n"], wanted: Callable[[], bool]
    ) -> Float[Tensor, "batch n-1"] | None:
        """All in one pass; the vocabulary's logits of a few positions at a time."""
        if tokens.shape[1] == 1:
            return super().prefill(tokens, wanted)
        states = self._steps.prefill(tokens[:, :-1])
        following = pad(tokens[:, 1:], (0, states.shape[1] - tokens.shape[1] + 1))
        values = []
        for some, each in zip(
            states.flatten(0, 1).split(ROWS), following.flatten().split(ROWS), strict=True
        ):
            if not wanted():
                return None
            values.append(self._output(some).of(each).cpu())
        return torch.cat(values).view(following.shape)[:, : tokens.shape[1] - 1]
