"""What a model is made of; the defaults are the paper's base model with relative positions."""

from typing import Literal

from pydantic import Field, model_validator

from edgewise.settings import Settings

Activation = Literal["relu", "swish", "gelu"]


class ModelSettings(Settings):
    """The architecture, but for the size of the vocabulary, which is the corpus's."""

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
        "post",
        description="Layer norm after each sum (the paper) or before each sublayer.",
    )
    sinusoids: bool = Field(False, description="Absolute positions: sinusoids on the embeddings.")
    max_distance: int | None = Field(
        16,
        ge=0,
        le=1 << 20,
        description="Relative positions, clipped at this distance k; none: without them.",
    )
    tables: Literal["head", "layer", "shared"] = Field(
        "head",
        description="Relative positions of each head in each layer, of each layer, or one for all.",
    )
    on_keys: bool = Field(True, description="Relative positions in the keys, a^K.")
    on_values: bool = Field(True, description="Relative positions in the values, a^V.")
    # The paper has one value of each of these; models of other toolkits have others.
    activation: Activation = Field(
        "relu", description="Between the two maps of the feed-forward layers."
    )
    bias: bool = Field(False, description="Biases in attention and of the output's logits.")
    share_embeddings: bool = Field(
        True, description="One matrix of embeddings for source, target and output, else three."
    )
    source_end: bool = Field(True, description="Sources end with the token that says so.")
    norm_epsilon: float = Field(
        1e-5, gt=0, le=1e-2, description="What layer norms add to the variance."
    )

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
