"""A model folder as a folder of CTranslate2, the C++ engine: the same scores.

`Translator(folder).translate_batch(pieces, beam_size=1, **decoding_options(vocabulary))` is greedy
decoding there. `pieces` are those of each source without END, which the engine appends. All of a
batch have one max_decoding_length, 256 unless given. A score is the log-probability among the
tokens that these options allow; that of score_batch is among all tokens.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.attention import RelationAttention
from edgewise.checkpoint.model_folder import load_model
from edgewise.data.tokenizer import Tokenizer
from edgewise.data.vocabulary import BEGIN, END, UNKNOWN
from edgewise.errors import EdgewiseError, SettingError
from edgewise.model.layers import CrossAttention, DecoderLayer, EncoderLayer, FeedForward
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, sinusoids
from edgewise.storage import new_folder, require_free, seal

KIND, VERSION = "CTranslate2 model", 1

# Its sinusoids are not ours (all sines, then all cosines, from position 1), and it adds them where
# it finds no positions at all: so the table is written out, ours or zeros. CTranslate2 raises a
# RuntimeError for a sentence that is longer. Relative positions have no such limit.
POSITIONS = 5000


def export(folder: Path, out: Path, *, overwrite: bool = False) -> None:
    """Write a model folder's model for CTranslate2, in float32, with its tokenizer."""
    require_free(out, KIND, overwrite=overwrite)
    if find_spec("ctranslate2") is None:
        raise EdgewiseError("this export needs ctranslate2: pip install 'edgewise[export]'")
    model, vocabulary = load_model(folder)
    require_exportable(model.settings, folder)
    spec = specification(model, vocabulary)
    with new_folder(out) as new:
        spec.save(str(new))
        (new / "tokenizer").mkdir()
        vocabulary.write(new / "tokenizer")
        shutil.copyfile(folder / "generation_config.json", new / "generation_config.json")
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
    from ctranslate2.specs import TransformerSpec

    settings = model.settings
    spec = TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers),
        settings.heads,
        with_relative_position=settings.max_distance is not None,
        pre_norm=settings.norm == "pre",
    )
    embedding = array(model.embedding.weight)
    spec.encoder.embeddings[0].weight = embedding
    spec.decoder.embeddings.weight = embedding
    spec.decoder.projection.weight = embedding
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
    set_tokens(spec, vocabulary)
    spec.config.layer_norm_epsilon = nn.LayerNorm(1).eps  # all of ours have this one
    spec.validate()
    spec.optimize()
    return spec


def set_self_attention(spec: Any, attention: RelationAttention) -> None:
    """Projections and tables; queries, keys and values are one matrix there."""
    inputs = (attention.query, attention.key, attention.value)
    spec.linear[0].weight = array(torch.cat([layer.weight for layer in inputs]))
    spec.linear[1].weight = array(attention.output.weight)
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
    spec.linear[0].weight = array(attention.query.weight)
    inputs = (attention.key, attention.value)
    spec.linear[1].weight = array(torch.cat([layer.weight for layer in inputs]))
    spec.linear[2].weight = array(attention.output.weight)


def set_feed_forward(spec: Any, feed_forward: FeedForward, norm: nn.LayerNorm) -> None:
    """Two linear maps and the norm of the sublayer."""
    set_norm(spec.layer_norm, norm)
    for part, layer in ((spec.linear_0, feed_forward.inner), (spec.linear_1, feed_forward.outer)):
        part.weight, part.bias = array(layer.weight), array(layer.bias)


def set_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = array(norm.weight), array(norm.bias)


def set_tokens(spec: Any, vocabulary: Tokenizer) -> None:
    """All pieces in order, and what those without text are for."""
    pieces = vocabulary.pieces(range(vocabulary.size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    config = spec.config
    config.unk_token, config.bos_token, config.eos_token = (
        pieces[token] for token in (UNKNOWN, BEGIN, END)
    )
    config.decoder_start_token = pieces[BEGIN]
    config.add_source_bos, config.add_source_eos = False, True


def array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().float().numpy()
