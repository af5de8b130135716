"""A MarianMT folder of Hugging Face's as a model folder.

Its sinusoids have all sines first, ours alternate: the features of the model are put in that order,
in every parameter, and it computes the same. Positions beyond its longest go on.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Int
from pydantic import ValidationError
from torch import Tensor

from edgewise.checkpoint.model_folder import GENERATION, KIND, write_model
from edgewise.checkpoint.tensors import load_tensors
from edgewise.data.languages import NAMES
from edgewise.data.vocabulary import BEGIN, PAD, UNKNOWN
from edgewise.decoding.settings import DecodingSettings
from edgewise.errors import DataError, SettingError
from edgewise.interop.arrangement import Arrangement, Special, divide_embeddings, unused
from edgewise.interop.fields import Fields
from edgewise.interop.foreign_layers import modules, settings_of, shapes_of, take_modules
from edgewise.interop.foreign_weights import ForeignWeights, read_saved
from edgewise.interop.sentencepieces import LARGEST, text_pieces
from edgewise.model.settings import Activation, ModelSettings
from edgewise.model.transformer import sinusoids
from edgewise.settings import describe_mistakes
from edgewise.storage import new_folder, read_json, read_regular, require_free_folder

ACTIVATIONS: dict[str, Activation] = {
    **{"relu": "relu", "gelu": "gelu"},
    **{"swish": "swish", "silu": "swish"},
}
# Of each setting of the search that ours does not have: the default, and what does nothing.
SEARCH: dict[str, tuple[str | int | float, tuple[str | int | float, ...]]] = {
    "do_sample": (False, (False,)),
    "no_repeat_ngram_size": (0, (0,)),
    "encoder_no_repeat_ngram_size": (0, (0,)),
    "repetition_penalty": (1.0, (1.0,)),
    "encoder_repetition_penalty": (1.0, (1.0,)),
    "diversity_penalty": (0.0, (0.0,)),
    "num_beam_groups": (1, (1,)),
    "renormalize_logits": (False, (False,)),
}
ABSENT = (
    *("forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
    *("force_words_ids", "constraints", "min_new_tokens"),
)
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_ENCODER = {
    **{f"attention.{own}": f"self_attn.{other}" for own, other in _ATTENTION.items()},
    "around_attention.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "around_feed_forward.norm": "final_layer_norm",
}
_DECODER = {
    **_ENCODER,
    **{f"cross.{own}": f"encoder_attn.{other}" for own, other in _ATTENTION.items()},
    "around_cross.norm": "encoder_attn_layer_norm",
}
SHARED, SOURCE, TARGET, OUTPUT = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)


def import_marian(folder: Path, out: Path, *, overwrite: bool = False) -> None:
    """Write a MarianMT folder's model as a model folder.

    It asks to be used as it did before, by its beam and its lengths, but for the length penalty:
    the power is taken over, the formula is ours.
    """
    require_free_folder(out, KIND, overwrite=overwrite)
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}; expected a MarianMT model")
    config = _fields(folder, "config.json", required=True)
    config.chosen("model_type", "none", ("marian",))
    generation = config
    if (folder / "generation_config.json").is_file():
        of_use = _fields(folder, "generation_config.json")
        generation = Fields({**config.values, **of_use.values}, of_use.file)
    tokenizer = _fields(folder, "tokenizer_config.json")
    if kwargs := tokenizer.get("sp_model_kwargs", None):
        raise tokenizer.refusal("sp_model_kwargs", "empty", kwargs)
    source, target = (_sentencepiece(folder, f"{side}.spm") for side in ("source", "target"))
    weights = _weights(folder)
    names = _matrices(weights, config)
    sizes = [weights.size(name, 0) for name in names[:2]]
    config.agreed("vocab_size", 58101, sizes[0])
    if not config.flag("share_encoder_decoder_embeddings", True):
        config.agreed("decoder_vocab_size", sizes[0], sizes[1])
    arrangement, unsaid = arranged(folder, sizes, generation, tokenizer)
    tensors, settings = converted(weights, names, config, arrangement)
    about = {"imported from": f"{folder.resolve().name}, a MarianMT model"}
    wanted = decoding(generation, {arrangement.target[t] for t in (PAD, BEGIN, UNKNOWN)})
    with new_folder(out) as new:
        vocabulary = arrangement.vocabulary(source, target, unsaid)
        write_model(
            *(new, tensors, settings, vocabulary, about),
            languages=_languages(tokenizer),
            generation=wanted,
        )


def arranged(
    folder: Path, sizes: Sequence[int], generation: Fields, tokenizer: Fields
) -> tuple[Arrangement, set[str]]:
    """The tokens in our order; and pieces that are there for rows that have none.

    sizes: rows of the source's and of the target's matrix.
    """
    names = ["vocab.json"] * 2
    if tokenizer.flag("separate_vocabs", False):
        names = ["vocab.json", "target_vocab.json"]
    (source, extra), (target, more) = (
        _pieces(_required(folder, name), rows) for name, rows in zip(names, sizes, strict=True)
    )
    start = generation.whole("decoder_start_token_id", 58100)
    if not 0 <= start < len(target):
        raise generation.refusal("decoder_start_token_id", f"below {len(target)}", start)
    special = Special(
        pad=_token(tokenizer, "pad_token", "<pad>"),
        begin=None,
        end=_token(tokenizer, "eos_token", "</s>"),
        unknown=_token(tokenizer, "unk_token", "<unk>"),
        start=target[start],
    )
    result = Arrangement.of(*(source, target, special), source_end=True, file=folder / "vocab.json")
    for token in _added(folder, tokenizer):
        if token not in result.pieces:
            raise tokenizer.refusal("added_tokens_decoder", "of tokens in vocab.json", token)
    end, number = generation.get("eos_token_id", 0), target.index(special.end)
    if end not in (number, [number]):
        raise generation.refusal("eos_token_id", f"that of {special.end!r}, {number},", end)
    return result, extra | more


def converted(
    weights: ForeignWeights,
    names: tuple[str, str, str],
    config: Fields,
    arrangement: Arrangement,
) -> tuple[dict[str, Tensor], ModelSettings]:
    """Parameters by our names, their features in our order, and the settings of their model.

    names: of the matrices of source, target and output.
    """
    sides = {"encoder": _ENCODER, "decoder": _DECODER}
    layers = {
        side: config.agreed(f"{side}_layers", 12, weights.layers(f"model.{side}.layers."))
        for side in sides
    }
    activation = config.chosen("activation_function", "gelu", tuple(ACTIVATIONS))
    d_model = config.agreed("d_model", 1024, weights.size(names[0], 1))
    d_ff = weights.size("model.encoder.layers.0.fc1.weight", 0)
    values: dict[str, object] = {
        **{f"{side}_layers": count for side, count in layers.items()},
        **{"d_model": d_model, "heads": _both(config, "attention_heads", 16)},
        **{"d_ff": _both(config, "ffn_dim", 4096, d_ff), "activation": ACTIVATIONS[activation]},
        **{"max_distance": None, "sinusoids": True, "bias": True},
    }
    shapes = shapes_of(settings_of(weights, values))
    pairs: list[tuple[str, str]] = []
    for side, parts in sides.items():
        pairs += modules(layers[side], side, f"model.{side}.layers", parts)
    tensors = take_modules(weights, pairs, shapes, biases=True)
    n_source, n_target = arrangement.n_source, arrangement.n_target
    rows = dict.fromkeys((SHARED, TARGET, OUTPUT), n_target) | {SOURCE: n_source}
    matrices = {
        name: weights.take(name, (n, d_model)) for name, n in rows.items() if name in weights
    }
    source, target, output = (matrices[name] for name in names)
    bias = weights.take_or_zeros("final_logits_bias", (1, n_target))[0]
    tensors |= arrangement.embeddings(source, target, output, bias)
    for side in sides:
        _require_sinusoids(weights, f"model.{side}.embed_positions.weight", d_model)
    weights.require_empty()
    if not config.flag("scale_embedding", False):
        last = layers["decoder"] - 1
        divide_embeddings(tensors, f"decoder.{last}.around_feed_forward.norm")
    values["share_embeddings"] = "target_embedding.weight" not in tensors
    order = torch.arange(d_model).view(2, -1).T.flatten()
    result = {name: alternating(name, tensor, order) for name, tensor in tensors.items()}
    return result, settings_of(weights, values)


def alternating(name: str, tensor: Tensor, order: Int[Tensor, " d_model"]) -> Tensor:
    """A parameter with the features of the model in another order; those of heads stay."""
    module, _, part = name.rpartition(".")
    if module.endswith((".output", ".outer", ".norm")):
        return tensor[order]
    return tensor[:, order].contiguous() if part == "weight" else tensor


def decoding(generation: Fields, unsaid: Collection[int]) -> dict[str, object]:
    """How the folder asks to be used, in our terms. unsaid: rows that no translation has."""
    for name, (default, supported) in SEARCH.items():
        generation.chosen(name, default, supported)
    for name in ABSENT:
        if (value := generation.get(name, None)) is not None:
            raise generation.refusal(name, "absent", value)
    words = generation.get("bad_words_ids", None)
    if words is not None and not (
        isinstance(words, list) and all(word in [[row] for row in unsaid] for word in words)
    ):
        raise generation.refusal("bad_words_ids", "of padding and the unknown token alone", words)
    wanted: dict[str, object] = {
        **GENERATION,
        "beam": generation.whole("num_beams", 1),
        "length_penalty": generation.number("length_penalty", 1.0),
        # There lengths count the start and the end; that of new tokens the end.
        "min_length": max(0, generation.whole("min_length", 0) - 1),
    }
    if generation.get("max_new_tokens", None) is not None:
        wanted["max_length"] = generation.whole("max_new_tokens", 0) - 1
    elif generation.get("max_length", None) is not None:
        wanted["max_length"] = generation.whole("max_length", 0) - 2
    try:
        DecodingSettings.model_validate(wanted)
    except ValidationError as error:
        raise DataError(
            f"{generation.file}: in our terms, {describe_mistakes(error)} (change it there)"
        ) from None
    return wanted


def _required(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DataError(f"{folder} is not a MarianMT model: it has no {name}")
    return folder / name


def _fields(folder: Path, name: str, *, required: bool = False) -> Fields:
    """The settings of a file; none if it is not there and need not be."""
    file = folder / name
    if not required and not file.is_file():
        return Fields({}, file)
    return Fields(read_json(_required(folder, name)), file)


def _sentencepiece(folder: Path, name: str) -> bytes:
    model = read_regular(_required(folder, name), LARGEST)
    text_pieces(model, folder / name)
    return model


def _weights(folder: Path) -> ForeignWeights:
    safe, saved = folder / "model.safetensors", folder / "pytorch_model.bin"
    if safe.is_file():
        return ForeignWeights(load_tensors(safe), safe)
    if saved.is_file():
        return ForeignWeights(read_saved(saved), saved)
    raise DataError(
        f"{folder} is not a MarianMT model: it has neither {safe.name} nor {saved.name}"
    )


def _pieces(file: Path, rows: int) -> tuple[list[str], set[str]]:
    """The piece of each row, and which of them were made up for rows without one."""
    numbers = read_json(file)
    if not isinstance(numbers, Mapping) or set(map(type, numbers.values())) != {int}:
        raise DataError(f"{file} must give each piece a number")
    pieces: dict[int, str] = {}
    for piece, number in numbers.items():
        if not 0 <= number < rows:
            raise DataError(f"{file}: {piece!r} must have a number below {rows}; it has {number}")
        if number in pieces:
            raise DataError(f"{file} gives the number {number} to {pieces[number]!r} and {piece!r}")
        pieces[number] = piece
    extra = {row: unused(f"<row {row}>", numbers) for row in range(rows) if row not in pieces}
    every = pieces | extra
    return [every[row] for row in range(rows)], set(extra.values())


def _token(tokenizer: Fields, name: str, default: str) -> str:
    """A special token: a string, or what describes one."""
    value = tokenizer.get(name, default)
    content = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(content, str):
        raise tokenizer.refusal(name, "a string", value)
    return content


def _added(folder: Path, tokenizer: Fields) -> list[str]:
    """Tokens that are given beside the vocabulary."""
    listed = tokenizer.get("added_tokens_decoder", {})
    entries = listed.values() if isinstance(listed, Mapping) else []
    named = [each.get("content") for each in entries if isinstance(each, Mapping)]
    return [str(token) for token in (*named, *_fields(folder, "added_tokens.json").values)]


def _languages(tokenizer: Fields) -> tuple[str, str] | None:
    source, target = (str(tokenizer.get(f"{side}_lang", None)) for side in ("source", "target"))
    return (source, target) if source in NAMES and target in NAMES else None


def _both(config: Fields, name: str, default: int, found: int | None = None) -> int:
    """A size of encoder and decoder, which must be one, and that of the weights if it is found."""
    encoder, decoder = (config.whole(f"{side}_{name}", default) for side in ("encoder", "decoder"))
    if encoder != decoder:
        raise config.refusal(f"decoder_{name}", f"encoder_{name}, {encoder},", decoder)
    return encoder if found is None else config.agreed(f"encoder_{name}", default, found)


def _matrices(weights: ForeignWeights, config: Fields) -> tuple[str, str, str]:
    """Which are of source, target and output: each its own, or one that it is tied to."""
    groups = [[SOURCE], [TARGET], [OUTPUT]]
    if shared := config.flag("share_encoder_decoder_embeddings", True):
        groups[:2] = [SOURCE, SHARED, TARGET], [TARGET, SHARED, SOURCE]
    if config.flag("tie_word_embeddings", True):
        groups[1:] = [*groups[1], OUTPUT], [OUTPUT, *groups[1]]
        groups[0] += [OUTPUT] if shared else []
    for group in groups:
        if not any(name in weights for name in group):
            raise DataError(f"{weights.file} has no {group[0]}")
    first, second, third = (next(name for name in group if name in weights) for group in groups)
    return first, second, third


def _require_sinusoids(weights: ForeignWeights, name: str, d_model: int) -> None:
    """A table of positions, if there is one, must be what is computed here."""
    if name not in weights:
        return
    table = weights.take(name, (weights.size(name, 0), d_model))
    ours = sinusoids(len(table), d_model, table.device)
    if not torch.allclose(table, torch.cat((ours[:, ::2], ours[:, 1::2]), dim=1), atol=5e-3):
        raise DataError(f"{weights.file}: {name} must hold sinusoids; it holds other positions")
