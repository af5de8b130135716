"""Beam search over a step function: any model that says how likely each next token is."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from edgewise.decoding.candidates import Predictions
from edgewise.decoding.engine import Hypothesis, Tokens
from edgewise.decoding.settings import penalty
from edgewise.errors import DataError

# Finished sentences leave when they are so many of the batch: leaving moves what was computed.
LEAVING = 1 / 8


@runtime_checkable
class Step(Protocol):
    """A model that has seen the hypotheses of a batch so far."""

    def __call__(
        self, tokens: Int[Tensor, "batch slots"], parents: Int[Tensor, "batch slots"] | None
    ) -> Predictions:
        """Continue each hypothesis with a token, where it continues that of slot `parents`."""

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Go on with these sentences only."""


def beam_search(
    step: Step,
    *,
    beam: int,
    n_best: int,
    length_penalty: float,
    min_length: int,
    limits: Sequence[int],
    prefixes: Sequence[Tokens],
    begin: int,
    end: int,
    excluded: Sequence[int],
) -> list[list[Hypothesis]]:
    """The best translations found of each sentence, best first.

    Of all continuations of the kept hypotheses the best `beam` that go on are kept. Those with the
    end among the best `beam` of all are finished. A sentence is done when nothing that goes on
    could overtake its `n_best` finished ones: a log-probability only falls, and the penalty of the
    greatest length favours it most. At its limit a hypothesis must end.
    """
    sentences = [
        _Sentence(limit, list(prefix)) for limit, prefix in zip(limits, prefixes, strict=True)
    ]
    living = list(range(len(sentences)))  # which sentence each row of the batch is
    scores = np.full((len(sentences), beam), -np.inf, dtype=np.float32)
    scores[:, 0] = 0
    tokens = np.full((len(sentences), beam), begin)
    parents: NDArray[np.int64] | None = None
    history = np.zeros((len(sentences), beam, 0), dtype=np.int64)
    always = torch.tensor(excluded, dtype=torch.int64)
    early = torch.tensor([*excluded, end], dtype=torch.int64)
    for length in range(max(limits) + 1):
        predictions = step(
            torch.from_numpy(tokens), None if parents is None else torch.from_numpy(parents)
        )
        values, choices = _candidates(
            predictions,
            beam,
            early if length < min_length else always,
            [sentences[i].forced(length, end) for i in living],
            len(living),
        )
        total = torch.from_numpy(scores)[:, :, None] + values
        top = total.flatten(1).topk(min(2 * beam, total[0].numel()), dim=1)
        ranked = top.values.numpy()
        if np.isnan(ranked).any():
            raise DataError("the model's output is not a number: its weights are damaged")
        origin = (top.indices // values.shape[2]).numpy()
        token = choices.flatten(1).gather(1, top.indices).numpy()
        ends = token == end
        for row, rank in zip(
            *np.nonzero(ends[:, :beam] & (ranked[:, :beam] > -np.inf)), strict=True
        ):
            value = float(ranked[row, rank])
            sentences[living[row]].finished.append(
                Hypothesis(
                    tuple(history[row, origin[row, rank]].tolist()),
                    value,
                    value / penalty(length + 1, length_penalty),
                )
            )
        order = np.argsort(ends, axis=1, kind="stable")[:, :beam]
        at = np.arange(len(living))[:, None]
        # What ended takes no slot, though too few may be left to fill them all.
        scores = np.where(ends[at, order], -np.inf, ranked[at, order]).astype(np.float32)
        # A slot without a hypothesis goes on with anything.
        tokens = np.where(scores == -np.inf, end, token[at, order])
        parents = origin[at, order]
        history = np.concatenate((history[at, parents], tokens[:, :, None]), axis=2)
        done = np.array(
            [
                sentences[i].is_done(float(scores[row, 0]), n_best, length_penalty)
                for row, i in enumerate(living)
            ]
        )
        scores[done] = -np.inf
        if done.all():
            break
        if done.sum() >= LEAVING * len(living):
            (kept,) = np.nonzero(~done)
            step.keep(torch.from_numpy(kept))
            living = [living[row] for row in kept]
            scores, tokens = scores[kept], tokens[kept]
            parents, history = parents[kept], history[kept]
    return [sentence.best(n_best) for sentence in sentences]


class _Sentence:
    def __init__(self, limit: int, prefix: list[int]) -> None:
        self.limit, self.prefix = limit, prefix
        self.finished: list[Hypothesis] = []

    def forced(self, length: int, end: int) -> int | None:
        """The token that must come after so many; None if any may."""
        if length < len(self.prefix):
            return self.prefix[length]
        return end if length >= self.limit else None

    def is_done(self, value: float, n_best: int, power: float) -> bool:
        """Whether the best that goes on, with this log-probability, has no hope."""
        if value == -np.inf:
            return True
        if len(self.finished) < n_best:
            return False
        return self.best(n_best)[-1].score >= value / penalty(self.limit + 1, power)

    def best(self, count: int) -> list[Hypothesis]:
        return sorted(self.finished, key=lambda hypothesis: -hypothesis.score)[:count]


def _candidates(
    predictions: Predictions,
    beam: int,
    excluded: Tensor,
    forced: list[int | None],
    batch: int,
) -> tuple[Float[Tensor, "batch beam count"], Int[Tensor, "batch beam count"]]:
    """The best continuations of each hypothesis, on the CPU; where one is forced, only that."""
    # One that goes on may have as many as the beam; and the end.
    found = predictions.best(beam + 1, excluded)
    rows = batch * beam
    values = found.log_probability[:rows].view(batch, beam, -1).cpu()
    tokens = found.token[:rows].view(batch, beam, -1).cpu()
    if any(token is not None for token in forced):
        wanted = torch.tensor([0 if token is None else token for token in forced])
        given = predictions.of(wanted.repeat_interleave(beam)).view(batch, beam).cpu()
        for row, token in enumerate(forced):
            if token is not None:
                values[row] = -torch.inf
                values[row, :, 0], tokens[row, :, 0] = given[row], token
    return values, tokens
