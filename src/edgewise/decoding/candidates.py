"""The likeliest next tokens, and their log-probabilities, with as little work on the vocabulary as
that needs.

Of the logits of a row, the greatest of each block of 32 are found, then the greatest blocks, and
only their tokens are compared. The logarithm of the sum of exponentials is taken slice by slice,
while a slice lies in the cache; the whole vocabulary is never sorted or normalised.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from edgewise.decoding.product import Product

SLICE, BLOCK = 8192, 32


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
    """Scores of all tokens in slices, -inf beyond the vocabulary, and what normalises them."""

    slices: list[Float[Tensor, "rows _"]]
    greatest: list[Float[Tensor, "rows _"]]  # of each block
    log_sum: Float[Tensor, " rows"]
    vocabulary: int

    def best(self, count: int, excluded: Int[Tensor, " excluded"]) -> Candidates:
        """The best that are not excluded: among the best blocks, as many as tokens."""
        greatest = torch.cat(self.greatest, dim=1)
        blocks = min(count + len(excluded), greatest.shape[1])
        chosen = greatest.topk(blocks, dim=1, sorted=False).indices
        in_slice, in_last = SLICE // BLOCK, self.greatest[-1].shape[1]
        number, within = chosen // in_slice, chosen % in_slice
        # A block's tokens are as far apart as there are blocks in its slice.
        apart = torch.where(number == len(self.slices) - 1, in_last, in_slice)
        steps = torch.arange(BLOCK, device=chosen.device)
        tokens = (number * SLICE + within)[:, :, None] + apart[:, :, None] * steps
        tokens = tokens.flatten(1)
        hidden = torch.isin(tokens, excluded.to(tokens.device))
        values = self._values(tokens).masked_fill_(hidden, -torch.inf)
        found = values.topk(min(count, values.shape[1]), dim=1)
        return Candidates(found.values - self.log_sum[:, None], tokens.gather(1, found.indices))

    def of(self, tokens: Int[Tensor, " some_rows"]) -> Float[Tensor, " some_rows"]:
        tokens = tokens.to(self.log_sum.device)
        return self._values(tokens[:, None])[:, 0] - self.log_sum[: len(tokens)]

    def all(self, excluded: Int[Tensor, " excluded"]) -> Float[Tensor, "rows vocabulary"]:
        values = torch.cat(self.slices, dim=1)[:, : self.vocabulary] - self.log_sum[:, None]
        return values.index_fill_(1, excluded.to(values.device), -torch.inf)

    def _values(self, tokens: Int[Tensor, "some_rows n"]) -> Float[Tensor, "some_rows n"]:
        """The scores of tokens of the first rows."""
        result = self.slices[0].new_empty(tokens.shape)
        for number, part in enumerate(self.slices):
            inside = tokens - number * SLICE
            mine = (inside >= 0) & (inside < part.shape[1])
            found = part[: len(tokens)].gather(1, inside.clamp(0, part.shape[1] - 1))
            torch.where(mine, found, result, out=result)
        return result


class OutputLayer:
    """The product with the embeddings, in slices, and a bias if there is one."""

    def __init__(
        self,
        table: Float[Tensor, "vocabulary d_model"],
        bias: Float[Tensor, " vocabulary"] | None = None,
    ) -> None:
        self.vocabulary = len(table)
        self._padding = -len(table) % BLOCK  # of which a slice is a multiple
        parts = pad(table, (0, 0, 0, self._padding)).split(SLICE)
        biases: Sequence[Tensor | None] = [None] * len(parts)
        if bias is not None:
            biases = pad(bias.detach(), (0, self._padding)).split(SLICE)
        self._products = [Product(*both) for both in zip(parts, biases, strict=True)]

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Logits:
        slices, greatest, sums = [], [], []
        for number, product in enumerate(self._products):
            values = product(x)
            if self._padding and number == len(self._products) - 1:
                values[:, -self._padding :] = -torch.inf
            greatest.append(values.unflatten(1, (BLOCK, -1)).amax(dim=1))
            # A pass over each row gives its log-softmax, faster than what is needed of it alone.
            sums.append(greatest[-1].amax(dim=1) - torch.log_softmax(values, dim=1).amax(dim=1))
            slices.append(values)
        log_sum = sums[0] if len(sums) == 1 else torch.stack(sums).logsumexp(dim=0)
        return Logits(slices, greatest, log_sum, self.vocabulary)
