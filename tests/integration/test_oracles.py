"""Two oracles that nobody here wrote: CTranslate2, in C++, and transformers.

CTranslate2 has both terms, float32 and no gradients. The attention of Wav2Vec2-BERT in
transformers has the key term only, but float64 and gradients.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
from ctranslate2.specs import TransformerEncoderModelSpec, TransformerEncoderSpec
from torch import Tensor
from transformers import Wav2Vec2BertConfig
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from edgewise import RelationAttention, RelativePositions, relation_attention

MAX_DISTANCE, HEADS, D_HEAD, D_MODEL, D_FF, N_VOCABULARY = 3, 5, 8, 22, 9, 29

# In float32, for outputs of about 1; the largest difference with twenty seeds was 2.2e-6.
CLOSE = 5e-6

METHODS = ["reference", "gather", "chunked_gather", "diagonal", "blockwise"]
# Of the sentences of a batch: within the clipping distance, beyond it, padded, of several blocks,
# and so many that the dense method computes the relative terms by position.
LENGTHS = [(1,), (4,), (6,), (12, 2), (10, 14, 1), (300, 131), tuple(range(1, 20)) * 3]

every_method = pytest.mark.parametrize("method", METHODS)
all_lengths = pytest.mark.parametrize("lengths", LENGTHS, ids=lambda x: f"{len(x)}x{max(x)}")


def attend(layer: RelationAttention, x: Tensor, tokens: Tensor, method: str) -> Tensor:
    """What the layer computes, by a method of our choice."""
    query, key, value = (
        project(x).unflatten(-1, (layer.heads, layer.d_head)).transpose(1, 2)
        for project in (layer.query, layer.key, layer.value)
    )
    output = relation_attention(
        query,
        key,
        value,
        RelativePositions(layer.max_distance),
        key_table=layer.key_table,
        value_table=layer.value_table,
        mask=None if tokens.all() else tokens[:, None, None],  # so both ways are tested
        method=method,
    )
    return layer.output(output.transpose(1, 2).flatten(2))


@pytest.fixture(autouse=True)
def seed() -> None:
    """A test has the same sentences alone as after others."""
    torch.manual_seed(1)


def tokens_of(lengths: Sequence[int]) -> Tensor:
    """[batch, n]: where a sentence has a token, not padding."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


# Mistakes that an oracle has to see.


def no_key_table(layer: RelationAttention) -> None:
    layer.key_table = None


def no_value_table(layer: RelationAttention) -> None:
    layer.value_table = None


def tables_exchanged(layer: RelationAttention) -> None:
    layer.key_table, layer.value_table = layer.value_table, layer.key_table


def key_distance_negated(layer: RelationAttention) -> None:
    layer.key_table.data = layer.key_table.flip(0)


def value_distance_negated(layer: RelationAttention) -> None:
    layer.value_table.data = layer.value_table.flip(0)


def key_term_unscaled(layer: RelationAttention) -> None:
    layer.key_table.data *= math.sqrt(layer.d_head)


def clipped_one_too_early(layer: RelationAttention) -> None:
    for table in (layer.key_table, layer.value_table):
        if table is not None:
            table.data[0], table.data[-1] = table[1], table[-2]


ON_KEYS = [no_key_table, key_distance_negated, key_term_unscaled, clipped_one_too_early]
ON_VALUES = [no_value_table, value_distance_negated, tables_exchanged]


# CTranslate2


def ctranslate2_encoder(
    layer: RelationAttention, embeddings: Tensor, directory: Path
) -> ctranslate2.Encoder:
    """An encoder whose output is that of the attention layer alone."""
    encoder = TransformerEncoderSpec(
        num_layers=1,
        num_heads=layer.heads,
        head_dim=layer.d_head,
        relative_position=True,
        no_final_norm=True,
    )
    encoder.embeddings[0].weight = embeddings
    encoder.scale_embeddings = False

    attention, ffn = encoder.layer[0].self_attention, encoder.layer[0].ffn
    # Without its norm the sublayer has no residual connection either: it is plain attention.
    del attention.layer_norm
    inputs = (layer.query, layer.key, layer.value)
    attention.linear[0].weight = torch.cat([project.weight for project in inputs])
    attention.linear[1].weight = layer.output.weight
    attention.relative_position_keys = layer.key_table
    attention.relative_position_values = layer.value_table

    # Of the feed-forward sublayer the residual connection remains.
    ffn.layer_norm.gamma, ffn.layer_norm.beta = torch.ones(D_MODEL), torch.zeros(D_MODEL)
    ffn.linear_0.weight, ffn.linear_0.bias = torch.zeros(D_FF, D_MODEL), torch.zeros(D_FF)
    ffn.linear_1.weight, ffn.linear_1.bias = torch.zeros(D_MODEL, D_FF), torch.zeros(D_MODEL)

    model = TransformerEncoderModelSpec(encoder)
    model.register_vocabulary([str(token) for token in range(len(embeddings))])
    model.validate()
    model.save(str(directory))
    return ctranslate2.Encoder(str(directory), compute_type="float32", intra_threads=1)


class InCTranslate2:
    """A random layer and embeddings, and CTranslate2's encoder made of them."""

    def __init__(self, directory: Path) -> None:
        torch.manual_seed(0)
        self.layer = RelationAttention(D_MODEL, HEADS, d_head=D_HEAD, max_distance=MAX_DISTANCE)
        self.layer.requires_grad_(False)
        self.embeddings = torch.randn(N_VOCABULARY, D_MODEL)
        self.encoder = ctranslate2_encoder(self.layer, self.embeddings, directory)

    def batch(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Embedded sentences, where they have tokens, and what CTranslate2 makes of the tokens."""
        tokens = tokens_of(lengths)
        ids = torch.randint(N_VOCABULARY, tokens.shape)
        sentences = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
        output = np.array(self.encoder.forward_batch(sentences).last_hidden_state)
        return self.embeddings[ids], tokens, torch.from_numpy(output)[tokens]


@pytest.fixture(scope="module")
def in_ctranslate2(tmp_path_factory: pytest.TempPathFactory) -> InCTranslate2:
    return InCTranslate2(tmp_path_factory.mktemp("ctranslate2"))


@every_method
@all_lengths
def test_key_and_value_terms_equal_those_of_ctranslate2(in_ctranslate2, lengths, method):
    x, tokens, expected = in_ctranslate2.batch(lengths)
    output = attend(in_ctranslate2.layer, x, tokens, method)[tokens]
    torch.testing.assert_close(output, expected, atol=CLOSE, rtol=0)


@all_lengths
def test_the_layer_equals_that_of_ctranslate2(in_ctranslate2, lengths):
    x, tokens, expected = in_ctranslate2.batch(lengths)
    output = in_ctranslate2.layer(x, tokens)[tokens]
    torch.testing.assert_close(output, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("mistake", ON_KEYS + ON_VALUES)
def test_ctranslate2_sees_a_mistake(in_ctranslate2, mistake):
    x, tokens, expected = in_ctranslate2.batch((12, 2))
    wrong = copy.deepcopy(in_ctranslate2.layer)
    mistake(wrong)
    assert (wrong(x, tokens)[tokens] - expected).abs().max() > 1000 * CLOSE


# transformers


class InTransformers:
    """The attention of Wav2Vec2-BERT, and a layer with its weights."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        d_model = HEADS * D_HEAD
        config = Wav2Vec2BertConfig(
            hidden_size=d_model,
            num_attention_heads=HEADS,
            position_embeddings_type="relative_key",
            left_max_position_embeddings=MAX_DISTANCE,
            right_max_position_embeddings=MAX_DISTANCE,
            attn_implementation="eager",
        )
        self.theirs = Wav2Vec2BertSelfAttention(config).double().eval()
        self.layer = RelationAttention(
            d_model, HEADS, max_distance=MAX_DISTANCE, on_values=False, bias=True
        ).double()
        with torch.no_grad():
            for ours, theirs in self.parameters():
                ours.copy_(theirs)

    def parameters(self) -> list[tuple[Tensor, Tensor]]:
        """Each parameter of ours with theirs."""
        ours, theirs = self.layer, self.theirs
        layers = [
            (ours.query, theirs.linear_q),
            (ours.key, theirs.linear_k),
            (ours.value, theirs.linear_v),
            (ours.output, theirs.linear_out),
        ]
        pairs = [(a.weight, b.weight) for a, b in layers] + [(a.bias, b.bias) for a, b in layers]
        return [(ours.key_table, theirs.distance_embedding.weight), *pairs]

    def batch(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Random sentences, where they have tokens, and what transformers makes of them."""
        tokens = tokens_of(lengths)
        x = torch.randn(*tokens.shape, HEADS * D_HEAD, dtype=torch.float64, requires_grad=True)
        mask = x.new_zeros(tokens.shape).masked_fill(~tokens, -math.inf)
        output, _ = self.theirs(x, attention_mask=mask[:, None, None])
        return x, tokens, output


@pytest.fixture(scope="module")
def in_transformers() -> InTransformers:
    return InTransformers()


@every_method
@all_lengths
def test_key_term_and_its_gradients_equal_those_of_transformers(in_transformers, lengths, method):
    x, tokens, expected = in_transformers.batch(lengths)
    output = attend(in_transformers.layer, x, tokens, method)
    torch.testing.assert_close(output, expected, atol=1e-13, rtol=1e-13)

    ours, theirs = zip(*in_transformers.parameters(), strict=True)
    grad = torch.randn_like(output)
    grads = torch.autograd.grad(output, [x, *ours], grad)
    expected_grads = torch.autograd.grad(expected, [x, *theirs], grad)
    torch.testing.assert_close(grads, expected_grads, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("mistake", ON_KEYS)
def test_transformers_sees_a_mistake(in_transformers, mistake):
    x, tokens, expected = in_transformers.batch((12, 2))
    wrong = copy.deepcopy(in_transformers.layer)
    mistake(wrong)
    assert (wrong(x, tokens) - expected).abs().max() > 1000 * CLOSE
