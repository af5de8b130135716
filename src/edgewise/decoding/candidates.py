"""The likeliest next tokens, and their log-probabilities, with as little work on the vocabulary as
that needs.

Of the logits of a row, the greatest of each block of 32 are found, then the greatest blocks, and
only their tokens are compared. The logarithm of the sum of exponentials is taken slice by slice,
while a slice lies in the cache. No tensor of probabilities is made.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

SLICE, BLOCK = 2048, 32


class Candidates(NamedTuple):
    """The best tokens of each row, best first."""

    log_probability: Float[Tensor, "rows count"]
    token: Int[Tensor, "rows count"]


@runtime_checkable
class Predictions(Protocol):
    """How likely each next token of each hypothesis is, a row each; rows may be padding."""

    def best(self, count: int, excluded: Int[Tensor, " excluded"]) -> Candidates:
        """The likeliest tokens that are not excluded."""

    def of(self, tokens: Int[Tensor, " some_rows"]) -> Float[Tensor, " some_rows"]:
        """The log-probability of one token a row, of the first rows."""

    def all(self, excluded: Int[Tensor, " excluded"]) -> Float[Tensor, "rows vocabulary"]:
        """The log-probability of every token; -inf if it is excluded."""


class Distribution(NamedTuple):
    """Log-probabilities of all tokens."""

    values: Float[Tensor, "rows vocabulary"]

    def best(self, count: int, excluded: Int[Tensor, " excluded"]) -> Candidates:
        found = self.all(excluded).topk(min(count, self.values.shape[1]), dim=1)
        return Candidates(found.values, found.indices)

    def of(self, tokens: Int[Tensor, " some_rows"]) -> Float[Tensor, " some_rows"]:
        tokens = tokens.to(self.values.device)
        return self.values[: len(tokens)].gather(1, tokens[:, None])[:, 0]

    def all(self, excluded: Int[Tensor, " excluded"]) -> Float[Tensor, "rows vocabulary"]:
        return self.values.index_fill(1, excluded.to(self.values.device), -torch.inf)


class Logits(NamedTuple):
    """Scores of all tokens, -inf beyond the vocabulary, and what normalises them."""

    values: Float[Tensor, "rows padded_vocabulary"]
    greatest: Float[Tensor, "rows blocks"]
    log_sum: Float[Tensor, " rows"]
    vocabulary: int

    def best(self, count: int, excluded: Int[Tensor, " excluded"]) -> Candidates:
        """The best that are not excluded: among the best blocks, as many as tokens."""
        in_slice = SLICE // BLOCK
        blocks = min(count + len(excluded), self.greatest.shape[1])
        chosen = self.greatest.topk(blocks, dim=1, sorted=False).indices
        starts = chosen // in_slice * SLICE + chosen % in_slice
        columns = torch.arange(0, SLICE, in_slice, device=starts.device)
        tokens = (starts[:, :, None] + columns).flatten(1)
        hidden = torch.isin(tokens, excluded.to(tokens.device))
        values = self.values.gather(1, tokens).masked_fill_(hidden, -torch.inf)
        found = values.topk(min(count, values.shape[1]), dim=1)
        return Candidates(found.values - self.log_sum[:, None], tokens.gather(1, found.indices))

    def of(self, tokens: Int[Tensor, " some_rows"]) -> Float[Tensor, " some_rows"]:
        tokens = tokens.to(self.values.device)
        rows = len(tokens)
        return self.values[:rows].gather(1, tokens[:, None])[:, 0] - self.log_sum[:rows]

    def all(self, excluded: Int[Tensor, " excluded"]) -> Float[Tensor, "rows vocabulary"]:
        values = self.values[:, : self.vocabulary] - self.log_sum[:, None]
        return values.index_fill_(1, excluded.to(values.device), -torch.inf)


class OutputLayer:
    """The product with the embeddings, in slices."""

    def __init__(self, table: Float[Tensor, "vocabulary d_model"]) -> None:
        self.table, self.slices = table, table.split(SLICE)
        self.size = len(self.slices) * SLICE
        self._values = table.new_empty(0)
        self._exponentials = table.new_empty(0)

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Logits:
        """The logits stay valid until the next call."""
        rows = len(x)
        if len(self._values) < rows:
            self._values = x.new_full((rows, self.size), -torch.inf)
            self._exponentials = x.new_empty(rows, SLICE)
        values, exponentials = self._values[:rows], self._exponentials[:rows]
        blocks = SLICE // BLOCK
        greatest = x.new_empty(rows, len(self.slices) * blocks)
        tops = x.new_empty(rows, len(self.slices))
        sums = x.new_empty(rows, len(self.slices))
        for number, table in enumerate(self.slices):
            part = values[:, number * SLICE : (number + 1) * SLICE]
            torch.mm(x, table.t(), out=part[:, : len(table)])
            in_blocks = greatest[:, number * blocks : (number + 1) * blocks]
            torch.amax(part.view(rows, BLOCK, blocks), dim=1, out=in_blocks)
            top = tops[:, number : number + 1]
            torch.amax(in_blocks, dim=1, keepdim=True, out=top)
            torch.sub(part, top, out=exponentials).exp_()
            torch.sum(exponentials, dim=1, out=sums[:, number])
        log_sum = (sums.log_() + tops).logsumexp(dim=1)
        return Logits(values, greatest, log_sum, len(self.table))
