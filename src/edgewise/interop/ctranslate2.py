"""A model folder as a folder of CTranslate2, the C++ engine: the same scores.

`Translator(folder).translate_batch(pieces, beam_size=1, **decoding_options(vocabulary))` is greedy
decoding there. `pieces` are those of each source without END, which the engine appends. All of a
batch have one max_decoding_length, 256 unless given. A score is the log-probability among the
tokens that these options allow; that of score_batch is among all tokens.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.attention import RelationAttention
from edgewise.checkpoint.model_folder import load_model
from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END, UNKNOWN
from edgewise.decoding.alignment import alignment_layer
from edgewise.errors import DataError, EdgewiseError, SettingError
from edgewise.interop.exported import Exported, write_exported
from edgewise.model.layers import CrossAttention, DecoderLayer, EncoderLayer, FeedForward
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, sinusoids
from edgewise.storage import new_folder, read_json, require_free_folder, seal, utf8_path

KIND, VERSION = "CTranslate2 model", 2  # 2: config.json has what ours has
VOCABULARY = "shared_vocabulary.json"

# Its sinusoids are not ours (all sines, then all cosines, from position 1), and it adds them where
# it finds no positions at all: so the table is written out, ours or zeros. CTranslate2 raises a
# RuntimeError for a sentence that is longer. Relative positions have no such limit.
POSITIONS = 5000


Quantization = Literal["int8", "int8_float32", "float16", "float32"]


def export(
    folder: Path, out: Path, *, quantization: Quantization = "float32", overwrite: bool = False
) -> None:
    """Write a model folder's model for CTranslate2, with its tokenizer and card."""
    require_free_folder(out, KIND, overwrite=overwrite)
    if find_spec("ctranslate2") is None:
        raise EdgewiseError("this export needs ctranslate2: pip install 'edgewise[export]'")
    model, vocabulary = load_model(folder)
    require_exportable(model.settings, folder)
    spec = specification(model, vocabulary)
    spec.optimize(quantization=quantization)
    with new_folder(out) as new:
        with utf8_path(new) as name:
            spec.save(name)
        # Ours beside theirs, which is read by name.
        own = read_json(new / "config.json")
        write_exported(
            *(new, folder, model, vocabulary),
            engine="ctranslate2",
            numbers=quantization,
            own=own,
        )
        seal(new, KIND, VERSION)


def decoding_options(vocabulary: Tokenizer) -> dict[str, Any]:
    """For translate_batch: only text is generated, it may be empty, and no source is cut."""
    return {
        "disable_unk": True,
        "suppress_sequences": [
            vocabulary.pieces([token]) for token in vocabulary.excluded if token != UNKNOWN
        ],
        "min_decoding_length": 0,
        "max_input_length": 0,
    }


def require_exportable(settings: ModelSettings, folder: Path) -> None:
    """Raise SettingError if CTranslate2 cannot compute this model."""
    if settings.max_distance is None:
        return
    if settings.sinusoids:
        raise SettingError(
            "model.sinusoids must be false for CTranslate2 if there are relative positions: it "
            f"leaves the sinusoids out then; the model in {folder} has both (train one with "
            "sinusoids = false, or with max_distance = 'none')"
        )
    if settings.tables == "head" and settings.heads > 1:
        raise SettingError(
            "model.tables must be 'layer' or 'shared' for CTranslate2: its heads share one table; "
            f"the model in {folder} has 'head' and {settings.heads} heads (train one with "
            "tables = 'layer')"
        )


def specification(model: Transformer, vocabulary: Tokenizer) -> Any:
    """The model in CTranslate2's terms; equal arrays are stored once."""
    from ctranslate2.specs import TransformerSpec, common_spec

    settings = model.settings
    spec = TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers),
        settings.heads,
        with_relative_position=settings.max_distance is not None,
        pre_norm=settings.norm == "pre",
        activation=getattr(common_spec.Activation, settings.activation.upper()),
        # As `attention_to_source` has it.
        alignment_layer=alignment_layer(settings.decoder_layers),
        alignment_heads=settings.heads,
    )
    spec.encoder.embeddings[0].weight = array(model.embedding.weight)
    spec.decoder.embeddings.weight = array(model.target_embedding.weight)
    set_linear(spec.decoder.projection, (model.output_embedding.weight,), (model.output_bias,))
    # A flag: times the root of d_model.
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = True
    if settings.max_distance is None:
        table = sinusoids(POSITIONS, settings.d_model, torch.device("cpu"))
        positions = array(table if settings.sinusoids else torch.zeros_like(table))
        spec.encoder.position_encodings.encodings = positions
        spec.decoder.position_encodings.encodings = positions
    for part, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(layer, EncoderLayer)
        set_self_attention(part.self_attention, layer.attention)
        set_norm(part.self_attention.layer_norm, layer.around_attention.norm)
        set_feed_forward(part.ffn, layer.feed_forward, layer.around_feed_forward.norm)
    for part, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        set_self_attention(part.self_attention, layer.attention)
        set_norm(part.self_attention.layer_norm, layer.around_attention.norm)
        set_cross_attention(part.attention, layer.cross)
        set_norm(part.attention.layer_norm, layer.around_cross.norm)
        set_feed_forward(part.ffn, layer.feed_forward, layer.around_feed_forward.norm)
    for part, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        if isinstance(norm, nn.LayerNorm):  # with norm = "pre" only
            set_norm(part.layer_norm, norm)
    pieces = vocabulary.pieces(range(vocabulary.size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    for name, value in own_settings(vocabulary, settings).items():
        setattr(spec.config, name, value)
    spec.validate()
    return spec


def set_self_attention(spec: Any, attention: RelationAttention) -> None:
    """Projections and tables; queries, keys and values are one matrix there."""
    set_maps(spec.linear[0], attention.query, attention.key, attention.value)
    set_maps(spec.linear[1], attention.output)
    if attention.max_distance is None:
        return
    keys: Tensor | None = attention.key_table
    values: Tensor | None = attention.value_table
    if keys is None:
        # It takes the distance from this table, and without it there are sinusoids.
        assert values is not None
        keys = torch.zeros_like(values)
    spec.relative_position_keys = array(keys.view(-1, attention.d_head))
    if values is None:
        del spec.relative_position_values
    else:
        spec.relative_position_values = array(values.view(-1, attention.d_head))


def set_cross_attention(spec: Any, attention: CrossAttention) -> None:
    """Projections; keys and values are one matrix there."""
    set_maps(spec.linear[0], attention.query)
    set_maps(spec.linear[1], attention.key, attention.value)
    set_maps(spec.linear[2], attention.output)


def set_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.LayerNorm) -> None:
    """Two linear maps and the norm of the sublayer."""
    set_norm(spec.layer_norm, norm)
    set_maps(spec.linear_0, feed_forward.inner)
    set_maps(spec.linear_1, feed_forward.outer)


def set_maps(spec: Any, *layers: nn.Linear) -> None:
    """Linear maps of the same input, as one."""
    set_linear(spec, [layer.weight for layer in layers], [layer.bias for layer in layers])


def set_linear(spec: Any, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
    spec.weight = array(torch.cat([*weights]) if len(weights) > 1 else weights[0])
    if given := [bias for bias in biases if bias is not None]:
        spec.bias = array(torch.cat(given))


def set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def own_settings(vocabulary: Tokenizer, settings: ModelSettings) -> dict[str, object]:
    """Return what the engine keeps in config.json, by its names."""
    begin, end, unknown = vocabulary.pieces([BEGIN, END, UNKNOWN])
    return {
        "add_source_bos": False,
        "add_source_eos": settings.source_end,
        "bos_token": begin,
        "decoder_start_token": begin,
        "eos_token": end,
        "unk_token": unknown,
        "layer_norm_epsilon": settings.norm_epsilon,
    }


def require_own_settings(exported: Exported) -> None:
    """Raise DataError unless the engine is set up for this model and its vocabulary."""
    folder, vocabulary = exported.folder, exported.vocabulary
    for name, value in own_settings(vocabulary, exported.settings).items():
        found = exported.config.get(name)
        if type(found) is not type(value) or found != value:
            raise DataError(
                f"{folder.path / 'config.json'}: {name} must be {value!r} for this model; it is "
                f"{found!r:.80}"
            )
    if folder.json(VOCABULARY) != vocabulary.pieces(range(vocabulary.size)):
        raise DataError(
            f"{folder.path / VOCABULARY} must have the pieces of the tokenizer in their order"
        )


def array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()
