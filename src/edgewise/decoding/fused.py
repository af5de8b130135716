"""The decoder's weights, arranged for one position at a time: few products, relations for free.

The logit of a label is q·w^K[l] = x·(W^Q w^K[l]), so its weights are more columns of the product
that gives queries, keys and values; what a label adds to the output goes through W^O, so its
vectors are more rows of that. Two things make them few. A causal query sees no label of a positive
distance. And adding one vector to all rows of a table changes no weight (softmax) and adds one
vector to every output (weights sum to one): so the row of the greatest distance is subtracted from
all, and only the last k positions have a label at all.
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
    """Self-attention: columns of the first product are queries, keys, values, logits of labels."""

    into: Product
    out: Product  # of the heads' outputs and of the weights summed by label
    key_labels: int  # the last so many positions have a logit of their label; 0: none
    value_labels: int

    @classmethod
    def of(cls, attention: RelationAttention) -> "FusedSelfAttention":
        heads, d_head = attention.heads, attention.d_head
        scale = 1 / math.sqrt(d_head)
        query, key, value, out = (
            layer.weight.detach()
            for layer in (attention.query, attention.key, attention.value, attention.output)
        )
        into, outs, constant = [query * scale, key, value], [out], None
        key_labels = value_labels = 0
        if attention.max_distance and attention.key_table is not None:
            nearby, _ = _causal_rows(attention.key_table.detach(), attention)
            key_labels = nearby.shape[1]
            by_head = query.view(heads, d_head, -1) * scale
            into.append(torch.einsum("hdm,hld->hlm", by_head, nearby).flatten(0, 1))
        if attention.max_distance is not None and attention.value_table is not None:
            nearby, farthest = _causal_rows(attention.value_table.detach(), attention)
            value_labels = nearby.shape[1]
            by_head = out.view(-1, heads, d_head)
            outs.append(torch.einsum("mhd,hld->mhl", by_head, nearby).flatten(1))
            constant = torch.einsum("mhd,hd->m", by_head, farthest)
        # The constant is what the subtracted row adds to each output.
        return cls(
            Product(torch.cat(into)),
            Product(torch.cat(outs, dim=1), constant),
            key_labels,
            value_labels,
        )


def _causal_rows(
    table: Float[Tensor, "*head n_label d_head"], attention: RelationAttention
) -> tuple[Float[Tensor, "head k d_head"], Float[Tensor, "head d_head"]]:
    """The rows of distances -k+1 to 0 less that of -k, and that of -k; by head."""
    assert attention.max_distance is not None
    rows = table.expand(attention.heads, -1, -1)[:, : attention.max_distance + 1]
    return rows[:, 1:] - rows[:, :1], rows[:, 0]


@dataclass(frozen=True)
class FusedCrossAttention:
    """Attention to the encoder's output: keys and values of a sentence are computed once."""

    query: Product
    key_value: Product
    out: Product

    @classmethod
    def of(cls, attention: CrossAttention) -> "FusedCrossAttention":
        query, key, value, out = (
            layer.weight.detach()
            for layer in (attention.query, attention.key, attention.value, attention.output)
        )
        scale = 1 / math.sqrt(query.shape[0] // attention.heads)
        return cls(Product(query * scale), Product(torch.cat((key, value))), Product(out))


@dataclass(frozen=True)
class FusedFeedForward:
    """Two linear maps with a ReLU between them."""

    inner: Product
    outer: Product

    @classmethod
    def of(cls, layer: FeedForward) -> "FusedFeedForward":
        return cls(
            Product(layer.inner.weight, layer.inner.bias, relu=True),
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
        self.embedding = model.embedding.weight.detach()
        self.output = OutputLayer(self.embedding)
        self.layers = [
            FusedLayer.of(layer) for layer in model.decoder if isinstance(layer, DecoderLayer)
        ]
        last = model.decoder_norm
        self.last_norm = Norm.of(last) if isinstance(last, nn.LayerNorm) else None
