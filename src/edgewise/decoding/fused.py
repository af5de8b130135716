"""The decoder's weights, arranged for one position at a time: few products, and few labels.

A causal query sees no label of a positive distance. And adding one vector to all rows of a table
changes no weight (softmax) and adds one vector to every output (weights sum to one): so the row of
the greatest distance is subtracted from all, what it adds to the output is a bias, and only the
last k positions have a label at all.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from edgewise.attention import RelationAttention
from edgewise.decoding.candidates import OutputLayer
from edgewise.decoding.product import Product
from edgewise.model.layers import CrossAttention, DecoderLayer, FeedForward
from edgewise.model.transformer import Transformer


@dataclass(frozen=True)
class Norm:
    """A layer norm."""

    weight: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    epsilon: float

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> "Norm":
        return cls(norm.weight.detach(), norm.bias.detach(), norm.eps)

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True)
class FusedSelfAttention:
    """Self-attention: columns of the first product are queries, keys, values."""

    into: Product
    out: Product
    # Of keys and of values, the rows for the last k positions; zeros where there is no table.
    labels: Float[Tensor, "2 tables k d_head"]

    @classmethod
    def of(cls, attention: RelationAttention) -> "FusedSelfAttention":
        query, key, value, out = (
            layer.weight.detach()
            for layer in (attention.query, attention.key, attention.value, attention.output)
        )
        distance, heads = attention.max_distance or 0, attention.heads
        tables = heads if attention.per_head else 1
        labels, bias = query.new_zeros(2, tables, distance, attention.d_head), None
        if attention.key_table is not None:
            labels[0], _ = _causal_rows(attention.key_table.detach(), distance)
        if attention.value_table is not None:
            labels[1], farthest = _causal_rows(attention.value_table.detach(), distance)
            bias = out @ farthest.expand(heads, -1).flatten()
        if (own := attention.output.bias) is not None:
            bias = own.detach() if bias is None else bias + own.detach()
        scale = 1 / math.sqrt(attention.d_head)
        return cls(
            Product(torch.cat((query * scale, key, value)), _biases(attention, scale)),
            Product(out, bias),
            labels,
        )


def _biases(attention: RelationAttention, scale: float) -> Float[Tensor, " inner_3"] | None:
    """Of queries, keys and values, for one product."""
    if attention.query.bias is None:
        return None
    return torch.cat((attention.query.bias * scale, attention.key.bias, attention.value.bias))


def _causal_rows(
    table: Float[Tensor, "*head n_label d_head"], distance: int
) -> tuple[Float[Tensor, "*head k d_head"], Float[Tensor, "*head d_head"]]:
    """The rows of distances -k+1 to 0 less that of -k, and that of -k."""
    farthest = table[..., :1, :]
    return table[..., 1 : distance + 1, :] - farthest, farthest[..., 0, :]


@dataclass(frozen=True)
class FusedCrossAttention:
    """Attention to the encoder's output: keys and values of a sentence are computed once."""

    query: Product
    # No `Product`: it is used once a sentence, and oneDNN would keep code for each number of rows.
    key_value: Float[Tensor, "key_value d_model"]
    key_value_bias: Float[Tensor, " key_value"] | None
    out: Product

    @classmethod
    def of(cls, attention: CrossAttention) -> "FusedCrossAttention":
        query, key, value, out = (
            (layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
            for layer in (attention.query, attention.key, attention.value, attention.output)
        )
        scale = 1 / math.sqrt(len(query[0]) // attention.heads)
        return cls(
            Product(query[0] * scale, None if query[1] is None else query[1] * scale),
            torch.cat((key[0], value[0])),
            None if key[1] is None or value[1] is None else torch.cat((key[1], value[1])),
            Product(*out),
        )


@dataclass(frozen=True)
class FusedFeedForward:
    """Two linear maps with a nonlinear function between them."""

    inner: Product
    outer: Product

    @classmethod
    def of(cls, layer: FeedForward) -> "FusedFeedForward":
        return cls(
            Product(layer.inner.weight, layer.inner.bias, activation=layer.activation),
            Product(layer.outer.weight, layer.outer.bias),
        )

    def __call__(self, x: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows d_model"]:
        return self.outer(self.inner(x))


@dataclass(frozen=True)
class FusedLayer:
    """A decoder layer; the norms in the order of the sublayers."""

    attention: FusedSelfAttention
    cross: FusedCrossAttention
    feed_forward: FusedFeedForward
    norms: tuple[Norm, Norm, Norm]

    @classmethod
    def of(cls, layer: DecoderLayer) -> "FusedLayer":
        around = (layer.around_attention, layer.around_cross, layer.around_feed_forward)
        first, second, third = (Norm.of(residual.norm) for residual in around)
        return cls(
            FusedSelfAttention.of(layer.attention),
            FusedCrossAttention.of(layer.cross),
            FusedFeedForward.of(layer.feed_forward),
            (first, second, third),
        )


class FusedDecoder:
    """A model's decoder for `Steps`. Later changes of the model's weights are not seen."""

    @torch.no_grad()
    def __init__(self, model: Transformer) -> None:
        settings = model.settings
        self.model, self.heads, self.d_model = model, settings.heads, settings.d_model
        self.norm_before, self.sinusoids = settings.norm == "pre", settings.sinusoids
        self.embedding = model.target_embedding.weight.detach()
        self.output = OutputLayer(model.output_embedding.weight.detach(), model.output_bias)
        self.layers = [
            FusedLayer.of(layer) for layer in model.decoder if isinstance(layer, DecoderLayer)
        ]
        last = model.decoder_norm
        self.last_norm = Norm.of(last) if isinstance(last, nn.LayerNorm) else None
