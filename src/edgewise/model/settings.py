"""Architecture; the defaults are the paper's base model with relative positions."""

from typing import Literal

from pydantic import Field, model_validator

from edgewise.settings import Settings

Activation = Literal["relu", "swish", "gelu"]


class ModelSettings(Settings):
    """The architecture, without the size of the vocabulary, which depends on the corpus."""

    encoder_layers: int = Field(6, ge=1, le=1000, description="Layers of the encoder.")
    decoder_layers: int = Field(6, ge=1, le=1000, description="Layers of the decoder.")
    d_model: int = Field(
        512, ge=2, le=1 << 16, multiple_of=2, description="Width d_x of the model."
    )
    heads: int = Field(8, ge=1, description="Attention heads, each d_model / heads wide.")
    d_ff: int = Field(1024, ge=1, le=1 << 20, description="Inner width of the feed-forward layers.")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="Dropout on embeddings and on each sublayer's output."
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on attention weights.")
    norm: Literal["post", "pre"] = Field(
        "post", description="Layer norm after residual sums (the paper) or before sublayers."
    )
    sinusoids: bool = Field(False, description="Add sinusoidal positions to the embeddings.")
    max_distance: int | None = Field(
        16,
        ge=0,
        le=1 << 20,
        description="Clipping distance k of relative positions; none disables them.",
    )
    tables: Literal["head", "layer", "shared"] = Field(
        "head",
        description="Table of relative positions per head and layer, per layer, or per stack.",
    )
    on_keys: bool = Field(True, description="Add relative positions to keys (a^K).")
    on_values: bool = Field(True, description="Add relative positions to values (a^V).")
    # The paper has one value of each of these; models of other toolkits have others.
    activation: Activation = Field("relu", description="Activation of the feed-forward layers.")
    bias: bool = Field(False, description="Biases in attention and on the output logits.")
    share_embeddings: bool = Field(
        True, description="Share one embedding matrix among source, target and output."
    )
    source_end: bool = Field(True, description="Append the end-of-sentence token to sources.")
    norm_epsilon: float = Field(1e-5, gt=0, le=1e-2, description="Epsilon of the layer norms.")

    @model_validator(mode="after")
    def _consistent(self) -> "ModelSettings":
        if self.d_model % self.heads:
            raise ValueError(
                f"d_model must be a multiple of heads; got d_model={self.d_model}, "
                f"heads={self.heads}"
            )
        if self.max_distance is not None and not (self.on_keys or self.on_values):
            raise ValueError(
                "max_distance needs on_keys or on_values; got neither (max_distance = 'none' turns "
                "relative positions off)"
            )
        return self
