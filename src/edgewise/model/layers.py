"""The sublayers of Vaswani et al. 2017, and the layers of encoder and decoder made of them."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from edgewise.attention import RelationAttention, relation_attention
from edgewise.model.dropout import Dropout
from edgewise.model.settings import Activation, ModelSettings


class CrossAttention(nn.Module):
    """Attention from the decoder to the encoder's output: without relations, as in the paper."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads, self.dropout = settings.heads, settings.attention_dropout
        d_model, bias = settings.d_model, settings.bias
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch n_target d_model"],
        memory: Float[Tensor, "batch n_source d_model"],
        mask: Bool[Tensor, "batch n_source"] | None,
    ) -> Float[Tensor, "batch n_target d_model"]:
        query, key, value = (
            projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projected in (self.query(x), self.key(memory), self.value(memory))
        )
        output = relation_attention(
            *(query, key, value, None),
            mask=None if mask is None else mask[:, None, None, :],
            dropout=self.dropout if self.training else 0.0,
        )
        result: Tensor = self.output(output.transpose(1, 2).flatten(2))
        return result


# ReLU in place: its gradient needs the result only.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
}


class FeedForward(nn.Module):
    """Two linear maps with a nonlinear function between them."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.activation: Activation = settings.activation
        self.inner = nn.Linear(settings.d_model, settings.d_ff)
        self.outer = nn.Linear(settings.d_ff, settings.d_model)

    def forward(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n d_model"]:
        result: Tensor = self.outer(ACTIVATIONS[self.activation](self.inner(x)))
        return result


class Residual(nn.Module):
    """x plus a sublayer of x, with dropout, and layer norm after the sum or before the sublayer."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.d_model, settings.norm_epsilon)
        self.dropout = Dropout(settings.dropout)
        self.before = settings.norm == "pre"

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        branch: Tensor = self.dropout(sublayer(self.into(x)))
        # In place: a sublayer ends with a product, whose gradient does not need the result. New
        # tensors here would tear the memory: a step of the base model took a sixth more of it.
        # Under autocast the branch is of lower precision than the sum must be.
        total = branch.add_(x) if branch.dtype == x.dtype else x + branch
        result: Tensor = total if self.before else self.norm(total)
        return result

    def into(self, x: Tensor) -> Tensor:
        """What the sublayer is given."""
        result: Tensor = self.norm(x) if self.before else x
        return result


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.attention = self_attention(settings)
        self.feed_forward = FeedForward(settings)
        self.around_attention = Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(
        self,
        x: Float[Tensor, "batch n d_model"],
        mask: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch n d_model"]:
        return self.compose(x, lambda x: self.attention(x, mask=mask))

    def compose(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of the layer with this function as its self-attention."""
        result: Tensor = self.around_feed_forward(
            self.around_attention(x, attend), self.feed_forward
        )
        return result


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, feed-forward."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.attention = self_attention(settings)
        self.cross = CrossAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.around_attention = Residual(settings)
        self.around_cross = Residual(settings)
        self.around_feed_forward = Residual(settings)

    def forward(
        self,
        x: Float[Tensor, "batch n_target d_model"],
        memory: Float[Tensor, "batch n_source d_model"],
        mask: Bool[Tensor, "batch n_source"] | None,
    ) -> Float[Tensor, "batch n_target d_model"]:
        return self.compose(
            x, lambda x: self.attention(x, causal=True), lambda x: self.cross(x, memory, mask)
        )

    def compose(
        self, x: Tensor, attend: Callable[[Tensor], Tensor], cross: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the output of the layer with these functions as its two attentions."""
        x = self.around_cross(self.around_attention(x, attend), cross)
        result: Tensor = self.around_feed_forward(x, self.feed_forward)
        return result


def self_attention(settings: ModelSettings) -> RelationAttention:
    """The layer of the library, as these settings want it."""
    return RelationAttention(
        settings.d_model,
        settings.heads,
        max_distance=settings.max_distance,
        on_keys=settings.on_keys,
        on_values=settings.on_values,
        per_head=settings.tables == "head",
        dropout=settings.attention_dropout,
        bias=settings.bias,
    )
