"""A model one position at a time, and translations that begin with given tokens."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Tokens, Wanted


@runtime_checkable
class Step(Protocol):
    """A model that has read the hypotheses of a batch so far."""

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Predictions:
        """Continue each hypothesis with a token, where it continues that of slot `parents`."""

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences only; what a copy of this object refers to stays as it is."""

    def fork(self, sentences: Int[Tensor, " chosen"]) -> "Step":
        """Return a copy that goes on with these sentences, which may repeat."""
        other = copy.copy(self)
        other.keep(sentences)
        return other

    def prefill(
        self, tokens: Int[Tensor, "batch n"], wanted: Callable[[], bool]
    ) -> Float[Tensor, "batch n-1"] | None:
        """Read all tokens but the last, before any step; the next step continues slot 0.

        Return the log-probability of each token but the first after those before it, or None as
        soon as they are no longer wanted.
        """
        values = [torch.empty(len(tokens), 0)]
        for column in range(1, tokens.shape[1]):
            if not wanted():
                return None
            predictions = self(tokens[:, column - 1 : column], None)
            values.append(predictions.of(tokens[:, column])[:, None].cpu())
        return torch.cat(values, dim=1)


class Start(NamedTuple):
    """The begun translations of a batch, which have equal lengths.

    A step has read all their tokens but the last.
    """

    tokens: Int[Tensor, "batch n"]  # the first one is that which begins every sentence
    log_probability: Float[Tensor, " batch"]

    @property
    def length(self) -> int:
        return self.tokens.shape[1] - 1


def start(step: Step, begin: int, prefixes: Sequence[Tokens], wanted: Wanted) -> Start | None:
    """Read the prefixes, which have equal lengths; None if no sentence is wanted any more."""
    tokens = torch.tensor([[begin, *prefix] for prefix in prefixes])
    values = step.prefill(tokens, lambda: any(map(wanted, range(len(prefixes)))))
    return None if values is None else Start(tokens, values.double().sum(dim=1).float())
