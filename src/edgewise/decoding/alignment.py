"""Which source words a translation's words come from, by attention."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from edgewise.attention import attention_parts
from edgewise.data.vocabulary import BEGIN
from edgewise.decoding.sources import seen
from edgewise.model.layers import DecoderLayer
from edgewise.model.transformer import Transformer

SPACE = "\u2581"  # sentencepiece's


def attention_to_source(
    model: Transformer,
    source: Int[Tensor, "batch n_source"],
    target: Int[Tensor, "batch n_target"],
) -> Float[Tensor, "batch n_target n_source"]:
    """How much the decoder looked at each source token when it gave each target token: the mean of
    the heads of the last layer but one, which align best (Garg et al. 2019).
    """
    mask = seen(source, model.settings)
    memory = model.encode(source, mask)
    x = model.embed(pad(target[:, :-1], (1, 0), value=BEGIN), model.target_embedding)
    *before, layer = list(model.decoder)[: alignment_layer(len(model.decoder)) + 1]
    for earlier in before:
        x = earlier(x, memory, mask)
    assert isinstance(layer, DecoderLayer)
    x = layer.around_attention(x, lambda x: layer.attention(x, causal=True))
    cross = layer.cross
    query, key = (
        projected.unflatten(-1, (cross.heads, -1)).transpose(1, 2)
        for projected in (cross.query(layer.around_cross.into(x)), cross.key(memory))
    )
    parts = attention_parts(query, key, None, mask=mask[:, None, None, :])
    return parts.weights.mean(dim=1)


def alignment_layer(layers: int) -> int:
    """The decoder layer whose attention tells which words belong together."""
    return max(0, layers - 2)


def word_links(
    weights: NDArray[np.float32], source: Sequence[str], target: Sequence[str]
) -> list[tuple[int, int]]:
    """Pairs of word numbers (source, target): each target word and the source word that its pieces
    attend to most. Words begin where a piece begins with a space.
    """
    source_words, target_words = word_numbers(source), word_numbers(target)
    if not source_words or not target_words:
        return []
    sums = np.zeros((max(target_words) + 1, max(source_words) + 1))
    for row, word in enumerate(target_words):
        np.add.at(sums[word], source_words, weights[row])
    return [(int(best), word) for word, best in enumerate(sums.argmax(axis=1))]


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Which word each piece belongs to, from 0; spaces belong to the word after them, the last to
    the last word. Nothing but spaces has no words.
    """
    numbers: list[int] = []
    current, inside = 0, False
    for piece in pieces:
        if piece.startswith(SPACE) and inside:
            current, inside = current + 1, False
        numbers.append(current)
        inside = inside or bool(piece.strip(SPACE))
    words = current + inside
    return [min(number, words - 1) for number in numbers] if words else []
