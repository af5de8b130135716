"""A checkpoint of OpenNMT-py 3 as a model folder: translation models with relative positions.

There heads share one table a layer, for keys and values alike; norms stand before the sublayers;
a source has no end; and embeddings are not multiplied by the root of d_model.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from edgewise.checkpoint.model_folder import KIND, write_model
from edgewise.errors import DataError, SettingError
from edgewise.interop.arrangement import Arrangement, Special, divide_embeddings
from edgewise.interop.fields import Fields
from edgewise.interop.foreign_layers import modules, settings_of, shapes_of, take_modules
from edgewise.interop.foreign_weights import ForeignWeights, read_saved
from edgewise.interop.sentencepieces import LARGEST, text_pieces
from edgewise.model.settings import Activation, ModelSettings
from edgewise.storage import new_folder, read_regular, require_free_folder

ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "swish"}
# Of each option that changes what is computed: the default there, and what is imported.
OPTIONS: dict[str, tuple[str | int, tuple[str | int, ...]]] = {
    "model_task": ("seq2seq", ("seq2seq",)),
    "encoder_type": ("rnn", ("transformer",)),
    "decoder_type": ("rnn", ("transformer",)),
    "self_attn_type": ("scaled-dot", ("scaled-dot", "scaled-dot-flash")),
    "layer_norm": ("standard", ("standard",)),
    "position_encoding": (False, (False,)),
    "relative_positions_buckets": (0, (0,)),
    "parallel_residual": (False, (False,)),
    "multiquery": (False, (False,)),
    "copy_attn": (False, (False,)),
    "num_experts": (0, (0,)),
    "generator_function": ("softmax", ("softmax",)),
}
POSITIONS = {0: "absolute positions", -1: "rotary positions", -2: "ALiBi"}
DISTANCE = "max_relative_positions"
TABLE = "{}.self_attn.relative_positions_embeddings.weight"
EMBEDDINGS = "{}.embeddings.make_embedding.emb_luts.0.weight"
_ATTENTION = {
    "query": "linear_query",
    "key": "linear_keys",
    "value": "linear_values",
    "output": "final_linear",
}
_FEED_FORWARD = {
    "feed_forward.inner": "feed_forward.w_1",
    "feed_forward.outer": "feed_forward.w_2",
    "around_feed_forward.norm": "feed_forward.layer_norm",
}
_SELF = {f"attention.{own}": f"self_attn.{other}" for own, other in _ATTENTION.items()}
_CROSS = {f"cross.{own}": f"context_attn.{other}" for own, other in _ATTENTION.items()}
_ENCODER = _SELF | _FEED_FORWARD | {"around_attention.norm": "layer_norm"}
_DECODER = (
    _SELF
    | _CROSS
    | _FEED_FORWARD
    | {"around_attention.norm": "layer_norm_1", "around_cross.norm": "layer_norm_2"}
)
# Of each side: the option that counts its layers, where they are, and what is in them.
SIDES = {
    "encoder": ("enc_layers", "encoder.transformer", _ENCODER),
    "decoder": ("dec_layers", "decoder.transformer_layers", _DECODER),
}


def import_opennmt(
    file: Path,
    tokenizer: Path,
    out: Path,
    *,
    target_tokenizer: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write a checkpoint's model as a model folder.

    tokenizer: the sentencepiece model that cut the text it was trained with; target_tokenizer: that
    of the translations, if it is another.
    """
    require_free_folder(out, KIND, overwrite=overwrite)
    files = tokenizer, target_tokenizer or tokenizer
    models = _sentencepiece(files[0]), _sentencepiece(files[1])
    if not file.is_file():
        raise SettingError(f"there is no file {file}; expected a checkpoint of OpenNMT-py")
    checkpoint = read_saved(file)
    if not isinstance(checkpoint, Mapping):
        raise DataError(f"{file} is not a checkpoint of OpenNMT-py: it holds no parts by name")
    for part in ("model", "generator", "vocab", "opt"):
        if part not in checkpoint:
            raise DataError(f"{file} is not a checkpoint of OpenNMT-py: it has no {part!r}")
    if not isinstance(checkpoint["opt"], Namespace):
        raise DataError(f"{file}: 'opt' must be an argparse.Namespace")
    options = Fields(vars(checkpoint["opt"]), file)
    require_supported(options)
    source, target, start = _vocabularies(Fields(checkpoint["vocab"], file), options)
    _require_fitting((source, target), models, files)
    special = Special("<blank>", "<s>", "</s>", "<unk>", start)
    arrangement = Arrangement.of(source, target, special, source_end=False, file=file)
    weights = ForeignWeights(_named(checkpoint, file), file)
    tensors, settings = converted(weights, options, arrangement)
    vocabulary = arrangement.vocabulary(*models, unsaid=("<s>",))  # where it does not start one
    with new_folder(out) as new:
        about = {"imported from": f"{file.name}, a checkpoint of OpenNMT-py"}
        write_model(new, tensors, settings, vocabulary, about)


def require_supported(options: Fields) -> None:
    """Raise DataError for an option that ours cannot honour."""
    for name, (default, supported) in OPTIONS.items():
        options.chosen(name, default, supported)
    distance = options.whole(DISTANCE, 0)
    if distance <= 0:
        kind = POSITIONS.get(distance, "unknown")
        raise DataError(
            f"{options.file}: {DISTANCE} must be 1 or more, for only models with "
            f"relative positions are imported; it is {distance}, {kind}"
        )
    heads = options.whole("heads", 8)
    options.chosen("num_kv", 0, (0, heads))


def converted(
    weights: ForeignWeights, options: Fields, arrangement: Arrangement
) -> tuple[dict[str, Tensor], ModelSettings]:
    """Parameters by our names, and the settings of their model."""
    sources, targets = EMBEDDINGS.format("encoder"), EMBEDDINGS.format("decoder")
    d_model = weights.size(sources, 1)
    activation = options.chosen("pos_ffn_activation_fn", "relu", tuple(ACTIVATIONS))
    layers = {}
    for side, (option, prefix, _) in SIDES.items():
        count = weights.layers(f"{prefix}.")
        layers[side] = options.agreed(option, count, count)
    table = TABLE.format("encoder.transformer.0")
    d_head = weights.size(table, 1)
    values = {
        **{f"{side}_layers": count for side, count in layers.items()},
        **{"d_model": d_model, "heads": options.agreed("heads", 8, d_model // max(1, d_head))},
        "d_ff": weights.size("encoder.transformer.0.feed_forward.w_1.weight", 0),
        **{"norm": "pre", "norm_epsilon": options.number("norm_eps", 1e-6)},
        "max_distance": options.agreed(DISTANCE, 0, weights.size(table, 0) // 2),
        "tables": "layer",
        **{"activation": ACTIVATIONS[activation], "bias": True, "source_end": False},
    }
    shapes = shapes_of(settings_of(weights, values))
    pairs = [(f"{side}_norm", f"{side}.layer_norm") for side in SIDES]
    for side, (_, prefix, names) in SIDES.items():
        pairs += modules(layers[side], side, prefix, names)
    tensors = take_modules(weights, pairs, shapes, biases=False)
    for side, (_, prefix, _) in SIDES.items():
        for layer in range(layers[side]):
            own, theirs = f"{side}.{layer}.attention", TABLE.format(f"{prefix}.{layer}")
            both = weights.take(theirs, shapes[f"{own}.key_table"])
            tensors |= {f"{own}.key_table": both, f"{own}.value_table": both.clone()}
    n_target = arrangement.n_target
    generator = "generator.0" if "generator.0.weight" in weights else "generator"  # older ones
    tensors |= arrangement.embeddings(
        weights.take(sources, (arrangement.n_source, d_model)),
        weights.take(targets, (n_target, d_model)),
        weights.take(f"{generator}.weight", (n_target, d_model)),
        weights.take_or_zeros(f"{generator}.bias", (n_target,)),
    )
    weights.require_empty()
    divide_embeddings(tensors, "decoder_norm")
    values["share_embeddings"] = "target_embedding.weight" not in tensors
    return tensors, settings_of(weights, values)


def _named(checkpoint: Mapping[object, object], file: Path) -> dict[object, object]:
    """The tensors of model and generator."""
    model, generator = checkpoint["model"], checkpoint["generator"]
    if not isinstance(model, Mapping) or not isinstance(generator, Mapping):
        raise DataError(f"{file}: 'model' and 'generator' must hold tensors by their names")
    return {**model} | {f"generator.{name}": tensor for name, tensor in generator.items()}


def _vocabularies(vocab: Fields, options: Fields) -> tuple[list[str], list[str], str]:
    """The pieces of source and target by their numbers, and what a translation starts with."""
    sides = []
    for side in ("src", "tgt"):
        pieces = vocab.get(side, None)
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise vocab.refusal(side, "a list of strings", pieces)
        sides.append(pieces)
    vocab.chosen("data_task", "seq2seq", ("seq2seq",))
    features = vocab.get("src_feats", None)
    if not (features is None or (isinstance(features, list | dict) and not features)):
        raise vocab.refusal("src_feats", "empty, without word features,", features)
    start = vocab.text("decoder_start_token", options.text("decoder_start_token", "<s>"))
    if start not in sides[1]:
        raise vocab.refusal("decoder_start_token", "a token of the target vocabulary", start)
    return sides[0], sides[1], start


def _sentencepiece(path: Path) -> bytes:
    if not path.is_file():
        raise SettingError(f"there is no file {path}; --tokenizer must be a sentencepiece model")
    return read_regular(path, LARGEST)


def _require_fitting(
    vocabularies: tuple[list[str], list[str]], models: tuple[bytes, bytes], files: tuple[Path, Path]
) -> None:
    """Raise DataError unless these models cut text into at least half of the pieces."""
    made = [text_pieces(model, path) for model, path in zip(models, files, strict=True)]
    if vocabularies[0] == vocabularies[1]:
        made = [made[0] | made[1]] * 2
    for pieces, possible, path in zip(vocabularies, made, files, strict=True):
        text = set(pieces) - {"<unk>", "<blank>", "<s>", "</s>"}
        known = len(text & possible)
        if 2 * known < len(text):
            raise DataError(
                f"{path} does not fit this model: only {known:,} of the {len(text):,} pieces of "
                "its vocabulary can come of it (--tokenizer must be the one it was trained with)"
            )
