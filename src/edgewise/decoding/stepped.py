"""Search with any model that says, a position at a time, how likely each next token is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.batching import by_length
from edgewise.decoding.beam import beam_search
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.candidates import Distribution, Predictions
from edgewise.decoding.engine import Hypothesis, Tokens, Wanted
from edgewise.decoding.sampling import sample
from edgewise.decoding.settings import DecodingSettings
from edgewise.decoding.step import Start, Step, start
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
        results: list[list[Hypothesis]] = [[] for _ in sources]
        find = self._alternatives if settings.alternatives else self._search
        for chosen in self._equal_prefixes(sources, prefixes, settings):
            some = [sources[i] for i in chosen], [prefixes[i] for i in chosen]
            with self.memory():
                found = find(*some, settings, renumbered(wanted, chosen))
            for i, hypotheses in zip(chosen, found, strict=True):
                results[i] = hypotheses
        return results

    def _equal_prefixes(
        self, sources: Sequence[Tokens], prefixes: Sequence[Tokens], settings: DecodingSettings
    ) -> Iterator[list[int]]:
        """Numbers of sentences that are computed together: their prefixes have one length.

        With prefixes, their sources have one padded length, too (see `steps`).
        """
        if settings.alternatives:
            yield from ([i] for i in range(len(sources)))
            return
        slots = settings.slots
        padded = [up(len(source) + 1, WIDTH) for source in sources]
        groups: dict[tuple[int, int], list[int]] = {}
        for i, (length, prefix) in enumerate(zip(padded, prefixes, strict=True)):
            groups.setdefault((len(prefix), length if prefix else 0), []).append(i)
        for (begun, _), members in groups.items():
            # All hypotheses of a sentence share its prefix.
            lengths = [max(padded[i], -(-begun // slots)) for i in members]
            for rows in by_length(lengths, self.batch_tokens // slots, max(1, ROWS // slots)):
                yield [members[row] for row in rows]

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
        begun = start(step, BEGIN, prefixes, wanted)
        if begun is None:
            return [[] for _ in sources]
        return self._continued(step, begun, sources, settings, wanted)

    def _continued(
        self,
        step: Step,
        begun: Start,
        sources: list[Tokens],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        limits = [settings.limit(len(source), begun.length) for source in sources]
        bounds = Bounds(limits, settings.min_length, END, self.vocabulary.excluded, wanted)
        if settings.sample:
            return sample(step, begun, bounds, settings, sources)
        return beam_search(
            *(step, begun, bounds),
            beam=settings.beam,
            n_best=settings.n_best,
            length_penalty=settings.length_penalty,
        )

    def _alternatives(
        self,
        sources: list[Tokens],
        prefixes: list[Tokens],
        settings: DecodingSettings,
        wanted: Wanted,
    ) -> list[list[Hypothesis]]:
        """The likeliest tokens after the prefix, each with its best continuation, best first.

        What comes before these tokens is computed once.
        """
        (source,), (prefix,) = sources, prefixes
        if not wanted(0):
            return [[]]
        step = self.begin([source], settings.beam)
        begun = start(step, BEGIN, [prefix], wanted)
        if begun is None:
            return [[]]
        last = begun.tokens[:, -1:].expand(-1, settings.beam)
        excluded = torch.tensor([*self.vocabulary.excluded, END])
        best = step(last, torch.zeros_like(last)).best(settings.n_best, excluded)
        values, tokens = best.log_probability[0].cpu(), best.token[0].cpu()
        tokens = tokens[values > -torch.inf]  # a small vocabulary has fewer
        single = settings.model_copy(update={"alternatives": False, "n_best": 1})
        every: list[Hypothesis] = []
        copies = [source] * len(tokens), [[*prefix, int(token)] for token in tokens]
        for chosen in self._equal_prefixes(*copies, single):
            if not wanted(0):
                return [[]]
            rows = torch.tensor(chosen)
            given = torch.cat((begun.tokens.expand(len(rows), -1), tokens[rows, None]), dim=1)
            alternative = Start(given, begun.log_probability + values[rows])
            fork, some = step.fork(torch.zeros_like(rows)), copies[0][: len(rows)]
            found = self._continued(fork, alternative, some, single, lambda row: wanted(0))
            every += [hypothesis for hypotheses in found for hypothesis in hypotheses]
        return [sorted(every, key=lambda each: -each.score)]


class Together(Step):
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

    def fork(self, sentences: Int[Tensor, " chosen"]) -> "Together":
        return Together([step.fork(sentences) for step in self._steps])

    def prefill(
        self, tokens: Int[Tensor, "batch n"], wanted: Callable[[], bool]
    ) -> Float[Tensor, "batch n-1"] | None:
        each = []
        for step in self._steps:
            if (values := step.prefill(tokens, wanted)) is None:
                return None
            each.append(values)
        return torch.stack(each).logsumexp(0) - math.log(len(each))


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
