"""What the commands need of an engine that runs a model: ours, or another's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edgewise.data.tokenizer import Tokenizer
from edgewise.decoding.settings import DecodingSettings
from edgewise.model.settings import ModelSettings

Tokens = Sequence[int]
# Asked again and again during a search whether a sentence, by its number, is still wanted.
Wanted = Callable[[int], bool]


@dataclass(frozen=True)
class Hypothesis:
    """A translation as tokens, without begin and end."""

    tokens: tuple[int, ...]
    log_probability: float  # of all tokens and the end
    score: float  # by which hypotheses are compared: the above, with the length penalty


@runtime_checkable
class Engine(Protocol):
    """Runs a model on sentences given as tokens, in any number and of any length.

    An answer of ours never depends on which other sentences are asked for in the same call; one of
    another engine does not but for rounding.
    """

    @property
    def vocabulary(self) -> Tokenizer: ...

    @property
    def settings(self) -> ModelSettings:
        """How the model is built; of several the first."""

    @property
    def parameters(self) -> int:
        """How many numbers that model has."""

    @property
    def batch_tokens(self) -> int:
        """Of the sources, times hypotheses, computed together."""

    def search(
        self,
        sources: Sequence[Tokens],
        prefixes: Sequence[Tokens],
        settings: DecodingSettings,
        wanted: Wanted | None = None,
    ) -> list[list[Hypothesis]]:
        """The best translations of each source that begin with its prefix, best first.

        A sentence that is no longer wanted may be given up: it comes back without translations.
        """

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[float]:
        """The log-probability of each target, its end included."""

    def align(
        self, sources: Sequence[Tokens], targets: Sequence[Tokens]
    ) -> list[NDArray[np.float32]]:
        """How much each target token attends to each source token, [target, source] a pair."""
