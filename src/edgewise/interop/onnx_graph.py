"""A model in operators that ONNX has: an encoder, and one step of a decoder with its cache.

Edges of one distance are a diagonal of the logits. Turned so that diagonals are columns, each
column has one vector: the terms of keys and values are two more products, twice as wide as those
of the content, and nothing of size [n, n, d] exists.
"""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from edgewise.attention import RelationAttention
from edgewise.data.vocabulary import END, PAD
from edgewise.decoding.alignment import alignment_layer
from edgewise.model.layers import CrossAttention, DecoderLayer, EncoderLayer
from edgewise.model.transformer import Transformer, sinusoids_at


class EncoderGraph(nn.Module):
    """From a batch of sources, END and PAD at their ends, to what the decoder needs of them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Int[Tensor, "batch n_source"]) -> tuple[Tensor, ...]:
        """Which tokens are seen, [batch, n_source]; of each decoder layer keys and values,
        [batch, head, n_source, d_head].
        """
        model = self.model
        mask = source != PAD
        if not model.settings.source_end:
            first = torch.arange(source.shape[1]) == 0
            mask = mask & ((source != END) | first)
        x = model.embed(source, model.embedding)
        for layer in model.encoder:
            assert isinstance(layer, EncoderLayer)
            x = layer.compose(x, partial(attended, layer.attention, mask=mask))
        x = model.encoder_norm(x)
        outputs = [mask]
        for layer in model.decoder:
            assert isinstance(layer, DecoderLayer)
            for linear in (layer.cross.key, layer.cross.value):
                outputs.append(by_head(linear(x), layer.cross.heads))
        return tuple(outputs)


class DecoderGraph(nn.Module):
    """One position more of each hypothesis: `slots` of each sentence, one after the other."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, "batch slots"],
        parents: Int[Tensor, "batch slots"],
        mask: Bool[Tensor, "batch n_source"],
        memory: list[Float[Tensor, "batch head n_source d_head"]],
        past: list[Float[Tensor, "rows head n_past d_head"]],
    ) -> tuple[Tensor, ...]:
        """The log-probability of each next token, [batch, slots, vocabulary]; how much each source
        token was attended to, [batch, slots, n_source]; keys and values of each layer with those
        of this position, [batch * slots, head, n_past + 1, d_head].

        parents: of which row of the past each hypothesis is a continuation.
        memory, past: keys and values of each layer.
        """
        model, settings = self.model, self.model.settings
        batch, slots = tokens.shape
        origin = parents.flatten()
        n_past = past[0].shape[2]
        x = model.target_embedding(tokens.flatten()) * settings.d_model**0.5
        if settings.sinusoids:
            position = torch.arange(n_past, n_past + 1)
            x = x + sinusoids_at(position, settings.d_model)
        present: list[Tensor] = []
        alignment: list[Tensor] = []
        for number, layer in enumerate(model.decoder):
            assert isinstance(layer, DecoderLayer)
            of_layer = slice(2 * number, 2 * number + 2)
            before = [each.index_select(0, origin) for each in past[of_layer]]
            attend = partial(one_more, layer.attention, past=before, present=present)
            keys, values = memory[of_layer]
            kept = alignment if number == alignment_layer(len(model.decoder)) else None
            cross = partial(
                cross_attended, layer.cross, keys=keys, values=values, mask=mask, kept=kept
            )
            x = layer.compose(x, attend, cross)
        logits = model.logits(model.decoder_norm(x))
        return logits.log_softmax(-1).unflatten(0, (batch, slots)), *alignment, *present


def attended(
    attention: RelationAttention,
    x: Float[Tensor, "batch n d_model"],
    mask: Bool[Tensor, "batch n"],
) -> Float[Tensor, "batch n d_model"]:
    """Self-attention of all positions to all that the mask has."""
    query, key, value = attention.project(x)
    n = x.shape[1]
    logits = query @ key.mT
    if attention.key_table is not None:
        vectors = by_distance(attention, attention.key_table, torch.arange(-(n - 1), n))
        logits = logits + as_rows(query @ vectors.mT)
    logits = (logits * _scale(key)).masked_fill(~mask[:, None, None, :], -torch.inf)
    weights = logits.softmax(-1)
    output = weights @ value
    if attention.value_table is not None:
        vectors = by_distance(attention, attention.value_table, torch.arange(-(n - 1), n))
        output = output + as_columns(weights) @ vectors
    return attention.merge(output)


def one_more(
    attention: RelationAttention,
    x: Float[Tensor, "rows d_model"],
    past: list[Float[Tensor, "rows head n_past d_head"]],
    present: list[Tensor],
) -> Float[Tensor, "rows d_model"]:
    """Self-attention of the last position to all; keys and values of all are added to `present`."""
    query, *new = attention.project(x[:, None])
    keys, values = (torch.cat(both, dim=2) for both in zip(past, new, strict=True))
    present += [keys, values]
    n = keys.shape[2]
    distances = torch.arange(-(n - 1), 1)
    logits = query @ keys.mT
    if attention.key_table is not None:
        # Heads first: a product for each, not for each hypothesis.
        vectors = by_distance(attention, attention.key_table, distances)
        of_labels = query[:, :, 0].transpose(0, 1) @ vectors.mT
        logits = logits + of_labels.transpose(0, 1)[:, :, None]
    weights = (logits * _scale(keys)).softmax(-1)
    output = weights @ values
    if attention.value_table is not None:
        vectors = by_distance(attention, attention.value_table, distances)
        of_labels = weights[:, :, 0].transpose(0, 1) @ vectors
        output = output + of_labels.transpose(0, 1)[:, :, None]
    return attention.merge(output).squeeze(1)


def cross_attended(
    attention: CrossAttention,
    x: Float[Tensor, "rows d_model"],
    keys: Float[Tensor, "batch head n_source d_head"],
    values: Float[Tensor, "batch head n_source d_head"],
    mask: Bool[Tensor, "batch n_source"],
    kept: list[Tensor] | None,
) -> Float[Tensor, "rows d_model"]:
    """Attention to the encoder's output; the mean weights of the heads are added to `kept`."""
    query = attention.query(x).unflatten(0, (keys.shape[0], -1))
    logits = by_head(query, attention.heads) @ keys.mT * _scale(keys)
    weights = logits.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
    if kept is not None:
        kept.append(weights.mean(1))
    output = (weights @ values).transpose(1, 2).flatten(2).flatten(0, 1)
    result: Tensor = attention.output(output)
    return result


def by_distance(
    attention: RelationAttention, table: Tensor, distances: Int[Tensor, " m"]
) -> Float[Tensor, "tables m d_head"]:
    """The vectors of distances, of each head or of all."""
    k = attention.max_distance
    assert k is not None
    rows = table if table.dim() == 3 else table[None]
    return rows.index_select(1, distances.clamp(-k, k) + k)


def as_rows(x: Float[Tensor, "batch head n diagonals"]) -> Float[Tensor, "batch head n n"]:
    """From columns that are diagonals, from the lowest to the highest, to the matrix."""
    n = x.shape[2]
    flat = pad(x, (0, 1)).flatten(2)[:, :, n - 1 : n - 1 + n * (2 * n - 1)]
    return flat.reshape(x.shape[0], x.shape[1], n, 2 * n - 1)[..., :n]


def as_columns(x: Float[Tensor, "batch head n n"]) -> Float[Tensor, "batch head n diagonals"]:
    """The inverse; zeros where a diagonal has nothing."""
    n = x.shape[2]
    flat = pad(pad(x, (0, n - 1)).flatten(2), (n - 1, 1))
    return flat.reshape(x.shape[0], x.shape[1], n, 2 * n)[..., : 2 * n - 1]


def by_head(x: Float[Tensor, "batch n inner"], heads: int) -> Float[Tensor, "batch head n d_head"]:
    result: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return result


def _scale(keys: Tensor) -> float:
    return 1 / math.sqrt(keys.shape[-1])
