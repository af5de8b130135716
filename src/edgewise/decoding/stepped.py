"""Search with any model that says, a position at a time, how likely each next token is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.batching import by_length
from edgewise.decoding.beam import Step, beam_search
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Distribution, Predictions
from edgewise.decoding.engine import Engine, Hypothesis, Tokens, Wanted
from edgewise.decoding.sampling import sample
from edgewise.decoding.settings import DecodingSettings
from edgewise.decoding.steps import WIDTH, up
from edgewise.errors import SettingError
from edgewise.model.settings import ModelSettings

# Hypotheses computed together at most: products with more rows are no faster, and each takes memory
# for as many positions as its translation has, which the tokens of short sources do not tell.
ROWS = 128


class SteppedEngine(ABC):
    """Beam search and sampling in batches. Calls keep nothing: threads may share it."""

    def __init__(
        self, vocabulary: Tokenizer, settings: ModelSettings, parameters: int, batch_tokens: int
    ) -> None:
        """settings, parameters: of the first model.

        batch_tokens: of the sources, times hypotheses, computed together.
        """
        self.vocabulary, self.batch_tokens = vocabulary, batch_tokens
        self.settings, self.parameters = settings, parameters

    @abstractmethod
    def begin(self, sources: Sequence[Tokens], slots: int) -> Step:
        """The model when it has read these sources and written nothing."""

    @abstractmethod
    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        """The log-probability of each target, its end included."""

    @abstractmethod
    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        """How much each target token attends to each source token, [target, source] a pair."""

    def memory(self) -> AbstractContextManager[None]:
        """What says so where memory does not suffice."""
        return nullcontext()

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
            return alternatives(self, self._likeliest, sources, prefixes, settings, wanted)
        results: list[list[Hypothesis]] = [[] for _ in sources]
        lengths = [up(len(source) + 1, WIDTH) for source in sources]
        rows = max(1, ROWS // settings.slots)
        for chosen in by_length(lengths, self.batch_tokens // settings.slots, rows):
            some = [sources[i] for i in chosen], [prefixes[i] for i in chosen]
            with self.memory():
                found = self._search(*some, settings, renumbered(wanted, chosen))
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
        step = self.begin(sources, settings.slots)
        limits = limits_of(sources, prefixes, settings)
        excluded = self.vocabulary.excluded
        bounds = Bounds(prefixes, limits, settings.min_length, BEGIN, END, excluded, wanted)
        if settings.sample:
            return sample(step, bounds, settings, sources)
        return beam_search(
            *(step, bounds),
            beam=settings.beam,
            n_best=settings.n_best,
            length_penalty=settings.length_penalty,
        )

    def _likeliest(self, source: Tokens, prefix: Tokens, count: int) -> list[int]:
        step = self.begin([source], 1)
        for token in (BEGIN, *prefix):
            predictions = step(torch.tensor([[token]]), None)
        excluded = torch.tensor([*self.vocabulary.excluded, END])
        return list(map(int, predictions.best(count, excluded).token[0]))


class Together:
    """The step of one model, or the mean of the probabilities of several."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Predictions:
        if len(self._steps) == 1:
            return self._steps[0](tokens, parents)
        nothing = tokens.new_empty(0)
        each = [step(tokens, parents).all(nothing) for step in self._steps]
        return Distribution(torch.stack(each).logsumexp(0) - math.log(len(each)))

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        for step in self._steps:
            step.keep(sentences)


def limits_of(
    sources: Sequence[Tokens], prefixes: Sequence[Tokens], settings: DecodingSettings
) -> list[int]:
    """The most tokens of each translation."""
    return [
        settings.limit(len(source), len(prefix))
        for source, prefix in zip(sources, prefixes, strict=True)
    ]


def alternatives(
    engine: Engine,
    likeliest: Callable[[Tokens, Tokens, int], list[int]],
    sources: Sequence[Tokens],
    prefixes: Sequence[Tokens],
    settings: DecodingSettings,
    wanted: Wanted,
) -> list[list[Hypothesis]]:
    """The likeliest tokens after each prefix, each with its best continuation, best first."""
    single = settings.model_copy(update={"alternatives": False, "n_best": 1})
    results: list[list[Hypothesis]] = []
    for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        if not wanted(i):
            results.append([])
            continue
        tokens = likeliest(source, prefix, settings.n_best)
        begun = [[*prefix, token] for token in tokens]
        still = renumbered(wanted, [i] * len(begun))
        found = engine.search([source] * len(begun), begun, single, still)
        every = (each for continued in found for each in continued)
        results.append(sorted(every, key=lambda each: -each.score))
    return results


def same_vocabulary(folders: Sequence[Path], vocabularies: Sequence[Tokenizer]) -> Tokenizer:
    """That of all folders; SettingError if they have different ones."""
    for folder, vocabulary in zip(folders, vocabularies, strict=True):
        if vocabulary.digest != vocabularies[0].digest:
            raise SettingError(
                f"models that translate together must have one vocabulary; {folder} has another "
                f"than {folders[0]}"
            )
    return vocabularies[0]


def renumbered(wanted: Wanted, numbers: Sequence[int]) -> Wanted:
    """The same of a batch, whose sentences have these numbers."""
    return lambda row: wanted(numbers[row])
