"""Checkpoints of OpenNMT-py, imported. CTranslate2 reads them too: it scores and translates as the
imported model does.
"""

import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from ctranslate2.converters import OpenNMTPyConverter
from foreign_models import (
    D_MODEL,
    ENGLISH,
    GERMAN,
    HEADS,
    hostile,
    opennmt_checkpoint,
    opennmt_options,
    pieces_of,
    spm,
)
from messages import assert_mentions, raises
from safetensors.torch import save_file

from edgewise.checkpoint.model_folder import load_model
from edgewise.data.vocabulary import BEGIN, END, UNKNOWN
from edgewise.decoding import Translator
from edgewise.errors import DataError, SettingError
from edgewise.interop.foreign_weights import read_saved
from edgewise.interop.opennmt import import_opennmt
from edgewise.model.settings import ModelSettings

LINES = 50
MOST = 40  # tokens of a translation
# In float32; the largest difference of these was 4e-5.
CLOSE = 1e-4

# Of the checkpoint; two: a vocabulary and a sentencepiece model for each side.
KINDS: dict[str, dict[str, Any]] = {
    "one matrix": {"shared": True, "tied": True},
    "one for source and target, another for the output": {"shared": True},
    "one for target and output, another for the source": {"tied": True},
    "no biases, gelu": {"bias": False, "pos_ffn_activation_fn": "gelu"},
    "silu": {"pos_ffn_activation_fn": "silu", "self_attn_type": "scaled-dot"},
    "two vocabularies": {"two": True},
    "two vocabularies, the target's matrix the output's": {"two": True, "tied": True},
    "it starts with the end": {"shared": True, "tied": True, "decoder_start_token": "</s>"},
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    sizes = {"both": 400, "en": 370, "de": 340}
    for name, size in sizes.items():
        (folder / name).write_bytes(spm(name, size))
    return {name: folder / name for name in sizes}


@dataclass(frozen=True)
class Imported:
    """A model folder, and the same model in CTranslate2."""

    folder: Path
    oracle: ctranslate2.Translator


@pytest.fixture(scope="module", params=KINDS)
def imported(
    request: pytest.FixtureRequest,
    tokenizers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Imported:
    folder = tmp_path_factory.mktemp("imported")
    kind = dict(KINDS[request.param])
    names = ("en", "de") if kind.pop("two", False) else ("both", "both")
    files = [tokenizers[name] for name in names]
    checkpoint = opennmt_checkpoint(*(pieces_of(file.read_bytes()) for file in files), **kind)
    checkpoint["vocab"]["decoder_start_token"] = kind.get("decoder_start_token", "<s>")
    torch.save(checkpoint, folder / "model.pt")
    other = None if files[0] == files[1] else files[1]
    import_opennmt(folder / "model.pt", files[0], folder / "model", target_tokenizer=other)
    with torch.serialization.safe_globals([Namespace]):
        OpenNMTPyConverter(str(folder / "model.pt")).convert(str(folder / "oracle"))
    return Imported(
        folder / "model", ctranslate2.Translator(str(folder / "oracle"), intra_threads=1)
    )


# The same numbers.


def test_scores_are_those_of_ctranslate2(imported: Imported) -> None:
    model, vocabulary = load_model(imported.folder)
    sources, targets = vocabulary.encode(ENGLISH[:15]), vocabulary.encode_target(GERMAN[:15])
    scores = imported.oracle.score_batch(
        [vocabulary.pieces(source) for source in sources],
        [vocabulary.pieces(target) for target in targets],
        max_input_length=0,
    )
    for source, target, score in zip(sources, targets, scores, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([source]), None, torch.tensor([[BEGIN, *target]]))
        wanted = torch.tensor([[*target, END]])
        expected = logits.log_softmax(-1).gather(-1, wanted[..., None])[0, :, 0]
        torch.testing.assert_close(torch.tensor(score.log_probs), expected, atol=CLOSE, rtol=0)


def test_greedy_translations_are_those_of_ctranslate2(imported: Imported) -> None:
    translator = Translator.load(imported.folder)
    vocabulary = translator.vocabulary
    theirs = imported.oracle.translate_batch(
        [vocabulary.pieces(source) for source in vocabulary.encode(ENGLISH[:LINES])],
        beam_size=1,
        max_decoding_length=MOST,
        min_decoding_length=0,
        max_input_length=0,
        # What ours never has either.
        disable_unk=True,
        suppress_sequences=[["<s>"], ["<blank>"]],
    )
    ours = translator.translations(ENGLISH[:LINES], beam=1, length_penalty=0.0, max_length=MOST)
    found = [each.pieces for (each,) in ours]
    assert found == [tuple(result.hypotheses[0]) for result in theirs]
    assert len(set(found)) > LINES // 3  # sources matter
    assert any(0 < len(pieces) < MOST for pieces in found)  # and so does the end


# What is written.


def test_one_matrix_is_stored_where_one_is_enough(
    tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    pieces = pieces_of(tokenizers["both"].read_bytes())
    for name, kind in (("one", {"shared": True, "tied": True}), ("three", {"tied": True})):
        torch.save(opennmt_checkpoint(pieces, pieces, **kind), tmp_path / "model.pt")
        import_opennmt(tmp_path / "model.pt", tokenizers["both"], tmp_path / name)
    one, three = (load_model(tmp_path / name)[0] for name in ("one", "three"))
    assert one.settings.share_embeddings and not three.settings.share_embeddings


def test_the_settings_are_the_checkpoint_s(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    out = written(tokenizers, tmp_path, shared=True, tied=True, norm_eps=...)
    assert load_model(out)[0].settings == ModelSettings(
        **{"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 3, "d_ff": 40},
        **{"norm": "pre", "max_distance": 4, "tables": "layer", "bias": True},
        source_end=False,
        norm_epsilon=1e-6,
    )
    assert "model.pt, a checkpoint of OpenNMT-py" in (out / "README.md").read_text()


def test_half_precision_becomes_single(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    def halved(checkpoint: dict[str, Any]) -> None:
        for part in ("model", "generator"):
            checkpoint[part] = {name: x.half() for name, x in checkpoint[part].items()}

    model, _ = load_model(written(tokenizers, tmp_path, change=halved))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_an_older_generator_is_the_same(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    def older(checkpoint: dict[str, Any]) -> None:
        generator = checkpoint["generator"]
        checkpoint["generator"] = {f"0.{name}": tensor for name, tensor in generator.items()}

    new = written(tokenizers, tmp_path, name="new")
    old = written(tokenizers, tmp_path, name="old", change=older)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (new, old)]
    assert weights[0] == weights[1]


def test_a_piece_of_one_side_is_never_of_the_other(
    tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    pieces = [pieces_of(tokenizers[name].read_bytes()) for name in ("en", "de")]
    torch.save(opennmt_checkpoint(*pieces), tmp_path / "model.pt")
    import_opennmt(
        *(tmp_path / "model.pt", tokenizers["en"], tmp_path / "out"),
        target_tokenizer=tokenizers["de"],
    )
    _, vocabulary = load_model(tmp_path / "out")
    assert vocabulary.size == 4 + len({*pieces[0], *pieces[1]})
    every = {vocabulary.pieces([i])[0]: i for i in range(4, vocabulary.size)}
    assert vocabulary.excluded == sorted(
        [0, BEGIN, UNKNOWN, *(every[piece] for piece in {*pieces[0]} - {*pieces[1]})]
    )
    for encode, side in ((vocabulary.encode, pieces[0]), (vocabulary.encode_target, pieces[1])):
        seen = {token for tokens in encode(ENGLISH + GERMAN) for token in tokens}
        assert UNKNOWN in seen and {*vocabulary.pieces([*seen])} <= {*side, "<unk>"}


def test_what_is_there_is_replaced_only_on_request(
    tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    out = written(tokenizers, tmp_path)
    before = (out / "model.safetensors").read_bytes()
    with raises(SettingError, out, "--overwrite"):
        written(tokenizers, tmp_path, seed=2)
    assert (out / "model.safetensors").read_bytes() == before
    written(tokenizers, tmp_path, seed=2, overwrite=True)
    assert (out / "model.safetensors").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with raises(SettingError, tmp_path / "mine", "--overwrite", "--out"):
        written(tokenizers, tmp_path, name="mine", overwrite=True)


# Refusals.


def written(
    tokenizers: dict[str, Path],
    folder: Path,
    *,
    change: Callable[[dict[str, Any]], None] = lambda checkpoint: None,
    name: str = "out",
    overwrite: bool = False,
    **kind: Any,
) -> Path:
    """An imported checkpoint of one vocabulary. change: of what is stored."""
    pieces = pieces_of(tokenizers["both"].read_bytes())
    checkpoint = opennmt_checkpoint(pieces, pieces, **kind)
    change(checkpoint)
    torch.save(checkpoint, folder / "model.pt")
    import_opennmt(folder / "model.pt", tokenizers["both"], folder / name, overwrite=overwrite)
    return folder / name


def options(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint.update(opt=opennmt_options(**changes))


def vocab(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint["vocab"].update(changes)


def without(part: str) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint.pop(part)


def tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return lambda checkpoint: checkpoint["model"].update({name: torch.ones(shape, dtype=dtype)})


TABLE = "encoder.transformer.1.self_attn.relative_positions_embeddings.weight"
INNER = "decoder.transformer_layers.2.feed_forward.w_1"
REFUSED: list[tuple[Callable[[dict[str, Any]], Any], tuple[object, ...]]] = [
    (options(encoder_type="rnn"), ("encoder_type", "transformer", "rnn")),
    (options(encoder_type=...), ("encoder_type", "transformer", "rnn")),
    (options(decoder_type="transformer_lm"), ("decoder_type", "transformer", "transformer_lm")),
    (options(model_task="lm"), ("model_task", "seq2seq", "lm")),
    (
        options(max_relative_positions=0, position_encoding=True),
        ("position_encoding", False, True),
    ),
    (options(position_encoding=True), ("position_encoding", False, True)),
    (options(max_relative_positions=0), ("max_relative_positions", 1, 0, "absolute")),
    (options(max_relative_positions=...), ("max_relative_positions", 1, 0, "absolute")),
    (options(max_relative_positions=-1), ("max_relative_positions", -1, "rotary")),
    (options(max_relative_positions=-2), ("max_relative_positions", -2, "ALiBi")),
    (options(max_relative_positions=5), ("max_relative_positions", 4, 5)),
    (options(max_relative_positions="4"), ("max_relative_positions", "'4'")),
    (
        options(self_attn_type="average"),
        ("self_attn_type", "scaled-dot", "scaled-dot-flash", "average"),
    ),
    (options(layer_norm="rms"), ("layer_norm", "standard", "rms")),
    (options(parallel_residual=True), ("parallel_residual", False, True)),
    (options(multiquery=True), ("multiquery", False, True)),
    (options(num_kv=1), ("num_kv", 0, HEADS, 1)),
    (options(relative_positions_buckets=32), ("relative_positions_buckets", 0, 32)),
    (options(copy_attn=True), ("copy_attn", False, True)),
    (options(num_experts=4), ("num_experts", 0, 4)),
    (options(generator_function="sparsemax"), ("generator_function", "softmax", "sparsemax")),
    (
        options(pos_ffn_activation_fn="fast_gelu"),
        ("pos_ffn_activation_fn", "relu", "gelu", "silu", "fast_gelu"),
    ),
    (options(pos_ffn_activation_fn=torch.ones(2)), ("pos_ffn_activation_fn", "relu", "tensor")),
    (options(copy_attn=torch.ones(2)), ("copy_attn", False, "tensor")),
    (options(heads={"a": [1]}), ("heads", "{'a': [1]}")),
    (options(heads=4), ("heads", 3, 4)),
    (options(heads=...), ("heads", 3, 8)),
    (options(norm_eps="small"), ("norm_eps", "small")),
    (options(norm_eps=0.5), ("norm_epsilon", 0.01)),
    (options(enc_layers=3), ("enc_layers", 2, 3)),
    (vocab(data_task="lm"), ("data_task", "seq2seq", "lm")),
    (vocab(src_feats=torch.ones(2)), ("src_feats", "tensor")),
    (vocab(src_feats={"case": ["a"]}), ("src_feats", "{'case': ['a']}")),
    (vocab(decoder_start_token="<go>"), ("decoder_start_token", "target", "<go>")),
    (vocab(decoder_start_token=7), ("decoder_start_token", 7)),
    (vocab(tgt=None), ("tgt", None)),
    (vocab(src=["<unk>", 3]), ("src", "['<unk>', 3]")),
    (vocab(src=["a"]), ("source", "<unk>")),
    (vocab(tgt=["<unk>", "<s>"]), ("target", "</s>")),
    (vocab(src=["<unk>", "a", "a"]), ("source", "'a'")),
    (without("opt"), ("OpenNMT-py", "opt")),
    (without("vocab"), ("OpenNMT-py", "vocab")),
    (without("generator"), ("OpenNMT-py", "generator")),
    (lambda checkpoint: checkpoint.update(opt={"heads": 3}), ("opt", "argparse.Namespace")),
    (lambda checkpoint: checkpoint.update(vocab=[1]), ("[1]",)),
    (lambda checkpoint: checkpoint.update(model=[1]), ("model", "generator")),
    (lambda checkpoint: checkpoint["model"].pop(TABLE), (TABLE,)),
    (
        lambda checkpoint: checkpoint["model"].pop("decoder.layer_norm.bias"),
        ("decoder.layer_norm.bias",),
    ),
    (
        lambda checkpoint: checkpoint["generator"].update({"0.weight": torch.ones(401, D_MODEL)}),
        ("generator.bias", 1),
    ),
    (lambda checkpoint: checkpoint["model"].pop(f"{INNER}.weight"), (f"{INNER}.weight",)),
    (tensor(f"{INNER}.weight", 41, D_MODEL), (f"{INNER}.weight", "[40, 24]", "[41, 24]")),
    (tensor(f"{INNER}.bias", 2), (f"{INNER}.bias", "[40]", "[2]")),
    (
        tensor("encoder.embeddings.make_embedding.emb_luts.0.weight", 7),
        ("encoder.embeddings.make_embedding.emb_luts.0.weight", "[7]"),
    ),
    (
        tensor("decoder.embeddings.make_embedding.emb_luts.0.weight", 9, D_MODEL),
        ("decoder.embeddings.make_embedding.emb_luts.0.weight", "[401, 24]", "[9, 24]"),
    ),
    (
        tensor("encoder.transformer.0.feed_forward.w_3.weight", 2, 2),
        ("encoder.transformer.0.feed_forward.w_3.weight",),
    ),
    (
        tensor(f"{INNER}.weight", 40, D_MODEL, dtype=torch.int8),
        (f"{INNER}.weight", "torch.int8"),
    ),
    (lambda checkpoint: checkpoint["model"].update(x=3), ("x", "int")),
]


@pytest.mark.parametrize(("change", "facts"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(
    change: Callable[[dict[str, Any]], None],
    facts: tuple[object, ...],
    tokenizers: dict[str, Path],
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.pt"
    with raises(DataError, file) as caught:
        written(tokenizers, tmp_path, change=change)
    assert_mentions(str(caught.value).replace(str(file), ""), *facts)
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt"}


# Files that are something else.


@pytest.mark.parametrize("way", ["os.system", "eval"])
@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("where", ["opt", "model", "optim"])
def test_nothing_of_a_hostile_file_is_run(
    where: str, legacy: bool, way: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    pieces = pieces_of(tokenizers["both"].read_bytes())
    checkpoint = opennmt_checkpoint(pieces, pieces)
    marker = tmp_path / "marker"
    if where == "opt":
        checkpoint["opt"].heads = hostile(way, marker)
    else:
        checkpoint[where]["x"] = hostile(way, marker)
    file = tmp_path / "model.pt"
    torch.save(checkpoint, file, _use_new_zipfile_serialization=not legacy)
    with raises(DataError, file, way.replace("os.", "posix.")):
        import_opennmt(file, tokenizers["both"], tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt"}
    torch.load(file, weights_only=False)  # which shows that it would have
    assert marker.exists()


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def damage(path: Path) -> None:
    """The list of what to read is cut, in a zip that is whole."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data[:-100] if name.endswith("data.pkl") else data)


@pytest.mark.parametrize(
    "change",
    [
        truncate,
        damage,
        lambda path: path.write_text("The old man sleeps.\n"),
        lambda path: path.write_bytes(b""),
        lambda path: save_file({"a": torch.ones(2)}, path),
        lambda path: zipfile.ZipFile(path, "w").close(),
    ],
)
def test_a_file_that_is_no_checkpoint_is_told(
    change: Callable[[Path], None], tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    written(tokenizers, tmp_path)
    change(tmp_path / "model.pt")
    with raises(DataError, tmp_path / "model.pt", "torch.save"):
        import_opennmt(tmp_path / "model.pt", tokenizers["both"], tmp_path / "other")


@pytest.mark.parametrize("legacy", [True, False])
def test_wherever_a_checkpoint_is_cut_short_it_is_told(legacy: bool, tmp_path: Path) -> None:
    checkpoint = opennmt_checkpoint(["a"], ["b"])
    torch.save(checkpoint, tmp_path / "model.pt", _use_new_zipfile_serialization=not legacy)
    content = (tmp_path / "model.pt").read_bytes()
    for end in range(1, len(content), len(content) // 60):
        (tmp_path / "model.pt").write_bytes(content[:end])
        with raises(DataError, tmp_path / "model.pt", "torch.save"):
            read_saved(tmp_path / "model.pt")


def test_a_tensor_alone_is_no_checkpoint(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    torch.save(torch.ones(3), tmp_path / "model.pt")
    with raises(DataError, tmp_path / "model.pt", "OpenNMT-py"):
        import_opennmt(tmp_path / "model.pt", tokenizers["both"], tmp_path / "out")


@pytest.mark.parametrize("name", ["nowhere.pt", ""])
def test_a_path_that_is_no_file_is_told(
    name: str, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    with raises(SettingError, tmp_path / name, "OpenNMT-py"):
        import_opennmt(tmp_path / name, tokenizers["both"], tmp_path / "out")


# Tokenizers.


def test_a_missing_tokenizer_is_told(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    written(tokenizers, tmp_path)
    for wrong, given in (
        (tmp_path / "none", {"tokenizer": tmp_path / "none"}),
        (tmp_path, {"tokenizer": tokenizers["both"], "target_tokenizer": tmp_path}),
    ):
        with raises(SettingError, wrong, "tokenizer"):
            import_opennmt(tmp_path / "model.pt", out=tmp_path / "other", **given)


@pytest.mark.parametrize("content", [b"", b"no model"])
def test_a_tokenizer_that_is_none_is_told(
    content: bytes, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    written(tokenizers, tmp_path)
    (tmp_path / "spm").write_bytes(content)
    with raises(DataError, tmp_path / "spm", "damaged"):
        import_opennmt(tmp_path / "model.pt", tmp_path / "spm", tmp_path / "other")


def test_a_tokenizer_of_another_model_is_refused_with_counts(
    tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    english, german = (pieces_of(tokenizers[name].read_bytes()) for name in ("en", "de"))
    known = len({*english} & {*german})
    torch.save(opennmt_checkpoint(german, german), tmp_path / "model.pt")
    with raises(DataError, tokenizers["en"], known, 337, "--tokenizer"):
        import_opennmt(tmp_path / "model.pt", tokenizers["en"], tmp_path / "out")
    # One that is of the target only is enough for a vocabulary that both have.
    both = {"tokenizer": tokenizers["en"], "target_tokenizer": tokenizers["de"]}
    import_opennmt(tmp_path / "model.pt", out=tmp_path / "out", **both)
