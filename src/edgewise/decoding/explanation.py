"""What a model attends to in one sentence, and why: every logit in its two parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from edgewise.attention import RelationAttention, RelativePositions, attention_parts
from edgewise.data.tokenizer import Tokenizer
from edgewise.errors import ArgumentError
from edgewise.model.layers import CrossAttention, DecoderLayer, EncoderLayer
from edgewise.model.transformer import Transformer

Sublayer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer's attention: content + relation are the logits (Eq. 5, scaled; before the mask)."""

    content: Float[Tensor, "head n_query n_key"]
    relation: Float[Tensor, "head n_query n_key"] | None  # None: no positions in these keys
    weights: Float[Tensor, "head n_query n_key"]


@dataclass(frozen=True, eq=False)
class WeightByDistance:
    """Where a layer's heads look, by the distance j - i from query to key."""

    distances: list[int]
    weights: Float[Tensor, "head n_distance"]
    beyond: Float[Tensor, " head"] | None  # None: no key is farther than the clipping distance


@dataclass(frozen=True)
class Explanation:
    """One sentence and its translation in a model; one `Attention` a layer, on the CPU."""

    source: list[int]
    target: list[int]
    max_distance: int | None
    encoder: list[Attention]
    decoder: list[Attention]
    cross: list[Attention]

    def by_distance(self) -> dict[str, list[WeightByDistance]]:
        """`weight_by_distance` of each layer of the encoder, and of the decoder."""
        return {
            stack: [
                weight_by_distance(layer.weights, max_distance=self.max_distance, causal=causal)
                for layer in layers
            ]
            for stack, layers, causal in (
                ("encoder", self.encoder, False),
                ("decoder", self.decoder, True),
            )
        }


@torch.inference_mode()
def explain(model: Transformer, source: Sequence[int], target: Sequence[int]) -> Explanation:
    """The attention with which a model reads `source` and, one token after the other, `target`.

    source: as the encoder sees it, with END. target: as the decoder sees it, BEGIN and the tokens.
    The model is left as it is, so that other threads may use it meanwhile.
    """
    if model.training:
        raise ArgumentError("model must not drop out; got one in training: call model.eval()")
    encoder: list[Attention] = []
    decoder: list[Attention] = []
    cross: list[Attention] = []
    memory = model.embed(_tokens("source", source, model), model.embedding)
    for layer in model.encoder:
        assert isinstance(layer, EncoderLayer)
        memory = layer.compose(memory, _kept(encoder, layer.attention, causal=False))
    memory = model.encoder_norm(memory)
    x = model.embed(_tokens("target", target, model), model.target_embedding)
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        attend = _kept(decoder, layer.attention, causal=True)
        x = layer.compose(x, attend, _kept_cross(cross, layer.cross, memory))
    k = model.settings.max_distance
    return Explanation(list(source), list(target), k, encoder, decoder, cross)


def weight_by_distance(
    weights: Float[Tensor, "head n n"],
    *,
    max_distance: int | None,
    causal: bool,
    reach: int = 32,
) -> WeightByDistance:
    """The mean weight on the key at each distance, over those queries that have such a key.

    A query at the sentence's end has none to its right: it does not count there. Distances are
    those up to `reach` that occur, with `causal` none above 0. `beyond` is the sum of a query's
    weights on all keys farther than the clipping distance, in the mean over those queries that
    have such keys.
    """
    n = weights.shape[-1]
    farthest = min(reach, n - 1)
    distances = range(-farthest, 1 if causal else farthest + 1)
    means = [weights.diagonal(distance, dim1=1, dim2=2).mean(-1) for distance in distances]
    beyond = None
    if max_distance is not None:
        of_edges = RelativePositions(max_distance).distances(n, n, weights.device)
        far = of_edges.abs() > max_distance
        far = far & (of_edges <= 0) if causal else far
        if far.any():
            beyond = (weights * far).sum(-1)[:, far.any(-1)].mean(-1)
    return WeightByDistance(list(distances), torch.stack(means, dim=-1), beyond)


def summary(explanation: Explanation, vocabulary: Tokenizer) -> dict[str, Any]:
    """Pieces and weights by distance, as JSON can have them; `beyond` is null without such keys."""
    return {
        "source": vocabulary.pieces(explanation.source),
        "target": vocabulary.pieces(explanation.target),
        "max_distance": explanation.max_distance,
        "weight_by_distance": {
            stack: [
                {
                    "distances": layer.distances,
                    "weights": [_rounded(head) for head in layer.weights],
                    "beyond": None if layer.beyond is None else _rounded(layer.beyond),
                }
                for layer in layers
            ]
            for stack, layers in explanation.by_distance().items()
        },
    }


def _rounded(values: Float[Tensor, " n"]) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _kept(into: list[Attention], attention: RelationAttention, *, causal: bool) -> Sublayer:
    """A sublayer of self-attention that tells what it did."""

    def sublayer(x: Tensor) -> Tensor:
        k, table = attention.max_distance, attention.key_table
        relations = None if k is None else RelativePositions(k)
        query, key = _heads(attention.query(x), attention), _heads(attention.key(x), attention)
        into.append(_parts(query, key, relations, table, causal))
        result: Tensor = attention(x, causal=causal)
        return result

    return sublayer


def _kept_cross(into: list[Attention], attention: CrossAttention, memory: Tensor) -> Sublayer:
    """The same for attention to the encoder's output."""

    def sublayer(x: Tensor) -> Tensor:
        query, key = _heads(attention.query(x), attention), _heads(attention.key(memory), attention)
        into.append(_parts(query, key, None, None, causal=False))
        result: Tensor = attention(x, memory, None)
        return result

    return sublayer


def _heads(
    x: Float[Tensor, "batch n inner"], attention: RelationAttention | CrossAttention
) -> Float[Tensor, "batch head n d_head"]:
    # In half precision, too, the model has its logits and weights in float32.
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    result: Tensor = x.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
    return result


def _parts(
    query: Float[Tensor, "1 head n_query d_head"],
    key: Float[Tensor, "1 head n_key d_head"],
    relations: RelativePositions | None,
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    causal: bool,
) -> Attention:
    table = None if key_table is None else key_table.to(query.dtype)
    parts = attention_parts(query, key, relations, key_table=table, causal=causal)
    content, relation, weights = (part[0].cpu() for part in parts)
    return Attention(content, None if table is None else relation, weights)


def _tokens(name: str, tokens: Sequence[int], model: Transformer) -> Int64[Tensor, "1 n"]:
    if len(tokens) == 0 or not all(0 <= token < model.vocabulary for token in tokens):
        raise ArgumentError(
            f"{name} must be one token or more, each from 0 to {model.vocabulary - 1}; "
            f"got {list(tokens)}"
        )
    return torch.tensor([list(tokens)], device=model.embedding.weight.device)
