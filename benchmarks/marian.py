"""Hugging Face's Marian with the sizes of one of our models, as both benchmarks race it."""

from typing import Any

from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.model.settings import ModelSettings


def marian(sizes: ModelSettings, vocabulary: int, **more: Any) -> Any:
    """A MarianMTModel of random weights; more: of its configuration."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        decoder_layers=sizes.decoder_layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=END,
        decoder_start_token_id=BEGIN,
        **more,
    )
    return MarianMTModel(config)
