"""The engine of this library: one model folder, or several that decide together."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.checkpoint.model_folder import load_model
from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.alignment import attention_to_source
from edgewise.decoding.batching import by_length
from edgewise.decoding.beam import beam_search
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Distribution, Logits
from edgewise.decoding.device import device_named, within_memory
from edgewise.decoding.engine import Hypothesis, Tokens, Wanted
from edgewise.decoding.fused import FusedDecoder
from edgewise.decoding.sampling import sample
from edgewise.decoding.scoring import token_log_probabilities
from edgewise.decoding.settings import BATCH_TOKENS, DecodingSettings
from edgewise.decoding.steps import WIDTH, Steps, up, wide
from edgewise.errors import DataError, SettingError
from edgewise.model.transformer import Transformer

# Hypotheses computed together at most: products with more rows are no faster, and each takes memory
# for as many positions as its translation has, which the tokens of short sources do not tell.
ROWS = 128


class NativeEngine:
    """Runs our models by PyTorch. Calls keep nothing: threads may share it."""

    def __init__(
        self,
        models: Sequence[Transformer],
        vocabulary: Tokenizer,
        *,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        """batch_tokens: of the sources, times hypotheses, computed together."""
        self.models = [model.eval() for model in models]
        self.vocabulary, self.batch_tokens = vocabulary, batch_tokens
        self._decoders = [FusedDecoder(model) for model in models]
        self._excluded = vocabulary.excluded

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
        vocabulary = loaded[0][1]
        for folder, (_, other) in zip(folders, loaded, strict=True):
            if other.digest != vocabulary.digest:
                raise SettingError(
                    f"models that translate together must have one vocabulary; {folder} has "
                    f"another than {folders[0]}"
                )
        models = [model.to(where) for model, _ in loaded]
        return cls(models, vocabulary, batch_tokens=batch_tokens)

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted | None = None,
    ) -> list[list[Hypothesis]]:
        wanted = wanted or (lambda sentence: True)
        if settings.alternatives:
            return self._alternatives(sources, prefixes, settings, wanted)
        results: list[list[Hypothesis]] = [[] for _ in sources]
        lengths = [up(len(source) + 1, WIDTH) for source in sources]
        rows = max(1, ROWS // settings.slots)
        for chosen in by_length(lengths, self.batch_tokens // settings.slots, rows):
            some = [sources[i] for i in chosen], [prefixes[i] for i in chosen]
            with self._memory():
                found = self._search(*some, settings, _renumbered(wanted, chosen))
            for i, hypotheses in zip(chosen, found, strict=True):
                results[i] = hypotheses
        return results

    def _search(
        self,
        sources: list[Tokens],
        prefixes: list[Tokens],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        if not any(map(wanted, range(len(sources)))):
            return [[] for _ in sources]
        step = _Together(self._decoders, sources, settings.slots)
        limits = [
            settings.limit(len(source), len(prefix))
            for source, prefix in zip(sources, prefixes, strict=True)
        ]
        bounds = Bounds(prefixes, limits, settings.min_length, BEGIN, END, self._excluded, wanted)
        if settings.sample:
            return sample(step, bounds, settings, sources)
        return beam_search(
            *(step, bounds),
            beam=settings.beam,
            n_best=settings.n_best,
            length_penalty=settings.length_penalty,
        )

    def _alternatives(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        """The likeliest tokens after each prefix, each with its best continuation."""
        single = settings.model_copy(update={"alternatives": False, "n_best": 1})
        excluded = torch.tensor([*self._excluded, END])
        results: list[list[Hypothesis]] = []
        for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
            if not wanted(i):
                results.append([])
                continue
            step = _Together(self._decoders, [source], 1)
            for token in (BEGIN, *prefix):
                predictions = step(torch.tensor([[token]]), None)
            tokens = predictions.best(settings.n_best, excluded).token[0].tolist()
            begun = [[*prefix, token] for token in tokens]
            same = _renumbered(wanted, [i] * len(begun))
            found = self.search([source] * len(begun), begun, single, same)
            every = (each for continued in found for each in continued)
            results.append(sorted(every, key=lambda each: -each.score))
        return results

    @torch.inference_mode()
    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        results = [0.0] * len(sources)
        for chosen, source, target in self._pairs(sources, targets):
            with self._memory():
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
            with self._memory():
                weights = sum(attention_to_source(each, source, target) for each in self.models)
            assert isinstance(weights, Tensor)
            for i, matrix in zip(chosen, weights.cpu(), strict=True):
                rows, columns = len(targets[i]), len(sources[i])
                results[i] = matrix[:rows, :columns].numpy() / len(self.models)
        return results

    def _memory(self) -> AbstractContextManager[None]:
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


def _renumbered(wanted: Wanted, numbers: Sequence[int]) -> Wanted:
    """The same of a batch, whose sentences have these numbers."""
    return lambda row: wanted(numbers[row])


class _Together:
    """The step of one model, or the mean of the probabilities of several."""

    def __init__(
        self,
        decoders: Sequence[FusedDecoder],
        sources: Sequence[Tokens],
        slots: int,
    ) -> None:
        self._outputs = [decoder.output for decoder in decoders]
        self._steps = [Steps(decoder, sources, slots) for decoder in decoders]

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Logits | Distribution:
        every = zip(self._outputs, self._steps, strict=True)
        if len(self._steps) == 1:
            ((output, step),) = every
            return output(step(tokens, parents))
        nothing = tokens.new_empty(0)
        each = [output(step(tokens, parents)).all(nothing) for output, step in every]
        return Distribution(torch.stack(each).logsumexp(0) - math.log(len(each)))

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        for step in self._steps:
            step.keep(sentences)
