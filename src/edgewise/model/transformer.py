"""Encoder, decoder and embeddings: one matrix for source, target and output, or three."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from edgewise.attention import RelationAttention
from edgewise.model.dropout import Dropout
from edgewise.model.layers import DecoderLayer, EncoderLayer
from edgewise.model.settings import ModelSettings


class Transformer(nn.Module):
    """The translation model of the paper. Parameters are initialised by `initialise`."""

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings, self.vocabulary = settings, vocabulary
        self.embedding = nn.Embedding(vocabulary, settings.d_model)
        self.target_embedding = self.output_embedding = self.embedding
        if not settings.share_embeddings:
            self.target_embedding = nn.Embedding(vocabulary, settings.d_model)
            self.output_embedding = nn.Embedding(vocabulary, settings.d_model)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary)) if settings.bias else None
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        if settings.tables == "shared":
            # Encoder and decoder have each their own: one looks both ways, the other back.
            share_tables(self.encoder)
            share_tables(self.decoder)
        # With the norm before each sublayer, nothing else would normalise the sum of them all.
        sizes = settings.d_model, settings.norm_epsilon
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(*sizes) if settings.norm == "pre" else nn.Identity() for _ in range(2)
        )
        self.dropout = Dropout(settings.dropout)

    def forward(
        self,
        source: Int[Tensor, "batch n_source"],
        mask: Bool[Tensor, "batch n_source"] | None,
        target: Int[Tensor, "batch n_target"],
    ) -> Float[Tensor, "batch n_target vocabulary"]:
        """Logits of each next target token. mask: True = token; None where there is no padding."""
        return self.logits(self.states(source, mask, target))

    def states(
        self,
        source: Int[Tensor, "batch n_source"],
        mask: Bool[Tensor, "batch n_source"] | None,
        target: Int[Tensor, "batch n_target"],
    ) -> Float[Tensor, "batch n_target d_model"]:
        """What the logits are made of: `summed_loss` never holds them all."""
        return self.decode(target, self.encode(source, mask), mask)

    def encode(
        self,
        source: Int[Tensor, "batch n_source"],
        mask: Bool[Tensor, "batch n_source"] | None,
    ) -> Float[Tensor, "batch n_source d_model"]:
        x = self.embed(source, self.embedding)
        for layer in self.encoder:
            x = layer(x, mask)
        result: Tensor = self.encoder_norm(x)
        return result

    def decode(
        self,
        target: Int[Tensor, "batch n_target"],
        memory: Float[Tensor, "batch n_source d_model"],
        mask: Bool[Tensor, "batch n_source"] | None,
    ) -> Float[Tensor, "batch n_target d_model"]:
        x = self.embed(target, self.target_embedding)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        result: Tensor = self.decoder_norm(x)
        return result

    def logits(self, x: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n vocabulary"]:
        return linear(x, self.output_embedding.weight, self.output_bias)

    def embed(
        self, tokens: Int[Tensor, "batch n"], embedding: nn.Embedding
    ) -> Float[Tensor, "batch n d_model"]:
        """What the first layer is given, by the embeddings of source or target."""
        x = embedding(tokens).mul_(math.sqrt(self.settings.d_model))
        if self.settings.sinusoids:
            x.add_(sinusoids(tokens.shape[1], self.settings.d_model, x.device))
        result: Tensor = self.dropout(x)
        return result


class _WithoutRandomNumbers(TorchFunctionMode):
    """Skips the random initialisation by `nn.init`.

    On the meta device PyTorch does this through its compiler, whose import takes a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def parameter_shapes(settings: ModelSettings, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter, without allocating any."""
    with torch.device("meta"), _WithoutRandomNumbers():
        model = Transformer(settings, vocabulary)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def sinusoids(n: int, d_model: int, device: torch.device) -> Float[Tensor, "n d_model"]:
    """Section 3.5 of Vaswani et al.: sines in the even columns, cosines in the odd ones."""
    return sinusoids_at(torch.arange(n, device=device), d_model)


def sinusoids_at(positions: Int[Tensor, " n"], d_model: int) -> Float[Tensor, "n d_model"]:
    """The same of any positions."""
    power = torch.arange(0, d_model, 2, dtype=torch.float32, device=positions.device) / d_model
    angle = positions.float()[:, None] * torch.exp(-math.log(10000.0) * power)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def share_tables(layers: Iterable[nn.Module]) -> None:
    """Give all layers the tables of the first."""
    attentions = [module for layer in layers for module in layer.modules()]
    relative = [module for module in attentions if isinstance(module, RelationAttention)]
    for before, attention in pairwise(relative):
        attention.key_table, attention.value_table = before.key_table, before.value_table
