"""Shared by the tests of imports: random models as other toolkits store them."""

import io
import json
import math
import os
from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor

from edgewise.data.grammar import pairs

TEXTS = list(pairs(600, 1))
ENGLISH, GERMAN = ([pair[side] for pair in TEXTS] for side in range(2))

D_MODEL, HEADS, D_FF, DISTANCE = 24, 3, 40, 4
# Of the end, so that translations have one.
END_BIAS = 3.0
LAYERS = {"encoder": 2, "decoder": 3}


@cache
def spm(language: str, size: int) -> bytes:
    """A sentencepiece model of en, de or both, as they are by default: it normalises."""
    lines = {"en": ENGLISH, "de": GERMAN, "both": ENGLISH + GERMAN}[language]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, minloglevel=2
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """What text is cut into."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]


class Hostile:
    """What a pickle can ask for."""

    def __init__(self, function: Any, argument: str) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> Any:
        return self.call


def hostile(way: str, marker: Path) -> Hostile:
    """An object that makes a file when it is read."""
    if way == "os.system":
        return Hostile(os.system, f"touch '{marker}'")
    return Hostile(eval, f"open({str(marker)!r}, 'w').close()")


def opennmt_options(**changes: Any) -> Namespace:
    values = {
        **{"encoder_type": "transformer", "decoder_type": "transformer", "heads": HEADS},
        **{"enc_layers": LAYERS["encoder"], "dec_layers": LAYERS["decoder"]},
        **{"max_relative_positions": DISTANCE, "position_encoding": False},
        # CTranslate2 does not read it, and has this one.
        "norm_eps": 1e-5,
    }
    return Namespace(**{k: v for k, v in (values | changes).items() if v is not Ellipsis})


def opennmt_checkpoint(
    source: Sequence[str],
    target: Sequence[str],
    *,
    shared: bool = False,
    tied: bool = False,
    bias: bool = True,
    seed: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """A random model; norms and biases are random too, so that each one counts.

    source, target: pieces; the special tokens come before them, in OpenNMT-py's order. shared: one
    matrix for both; tied: that of the target is the output's. options: Ellipsis leaves one out.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    model: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, *, biased: bool = True) -> None:
        # Large, so that translations vary: the sublayers outweigh the token before.
        model[f"{name}.weight"] = random(rows, columns, scale=2.5 / math.sqrt(columns))
        if biased:
            model[f"{name}.bias"] = random(rows, scale=0.3)

    def norm(name: str) -> None:
        model[f"{name}.weight"] = 1 + random(D_MODEL, scale=0.3)
        model[f"{name}.bias"] = random(D_MODEL, scale=0.3)

    def attention(name: str) -> None:
        for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
            linear(f"{name}.{part}", D_MODEL, D_MODEL, biased=bias)

    special = ["<unk>", "<blank>", "<s>", "</s>"]
    vocab = {"src": [*special, *source], "tgt": [*special, *target], "data_task": "seq2seq"}
    vocab["decoder_start_token"] = "<s>"
    for side, key, layers in (
        ("encoder", "src", "transformer"),
        ("decoder", "tgt", "transformer_layers"),
    ):
        table = random(len(vocab[key]), D_MODEL, scale=0.4)
        model[f"{side}.embeddings.make_embedding.emb_luts.0.weight"] = table
        norm(f"{side}.layer_norm")
        for i in range(LAYERS[side]):
            layer = f"{side}.{layers}.{i}"
            attention(f"{layer}.self_attn")
            model[f"{layer}.self_attn.relative_positions_embeddings.weight"] = random(
                2 * DISTANCE + 1, D_MODEL // HEADS
            )
            linear(f"{layer}.feed_forward.w_1", D_FF, D_MODEL, biased=bias)
            linear(f"{layer}.feed_forward.w_2", D_MODEL, D_FF, biased=bias)
            norm(f"{layer}.feed_forward.layer_norm")
            if side == "encoder":
                norm(f"{layer}.layer_norm")
            else:
                attention(f"{layer}.context_attn")
                norm(f"{layer}.layer_norm_1")
                norm(f"{layer}.layer_norm_2")
    tables = [f"{side}.embeddings.make_embedding.emb_luts.0.weight" for side in LAYERS]
    if shared:
        model[tables[1]] = model[tables[0]]
    of_target = model[tables[1]]
    output = {"weight": of_target if tied else random(*of_target.shape, scale=0.4)}
    output["bias"] = random(len(vocab["tgt"]), scale=0.3)
    output["bias"][3] += END_BIAS
    return {
        **{"model": model, "generator": output, "vocab": vocab},
        **{"opt": opennmt_options(**options), "optim": {"state": {}, "training_step": 7}},
    }


def marian_folder(
    folder: Path,
    *,
    two: bool = False,
    codes: Sequence[str] = (),
    pickled: bool = False,
    unnamed: int = 0,
    updates: int = 0,
    **changes: Any,
) -> Any:
    """A random model, written by transformers to "model"; that model and its tokenizer.

    two: a vocabulary for each side; codes: of languages, as >>fra<<; pickled: the weights are in
    pytorch_model.bin; unnamed: rows without a piece; updates: see `train`; changes: of the
    MarianConfig.
    """
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    parts = folder / "parts"
    parts.mkdir(parents=True)
    models = spm("en", 240), spm("de", 270)
    each = [pieces_of(model) for model in models]
    # What the vocabulary leaves out is unknown.
    sides = each if two else [list(dict.fromkeys([*codes, *each[0][:-9], *each[1]]))] * 2
    # Two must have <pad> at one place; one has it at its end.
    before, after = (["<pad>"], []) if two else ([], ["<pad>"])
    vocabularies = [
        {piece: i for i, piece in enumerate(["</s>", "<unk>", *before, *pieces, *after])}
        for pieces in sides
    ]
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (parts / name).write_bytes(model)
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=True):
        (parts / name).write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        *(str(parts / name) for name in ("source.spm", "target.spm", "vocab.json")),
        target_vocab_file=str(parts / "target_vocab.json") if two else None,
        separate_vocabs=two,
        source_lang="en",
        target_lang="de",
    )
    pad = vocabularies[1]["<pad>"]
    config = MarianConfig(
        **{
            **{"vocab_size": len(vocabularies[0]) + unnamed, "d_model": D_MODEL},
            **{"decoder_vocab_size": len(vocabularies[1]) + unnamed},
            **{f"{side}_layers": count for side, count in LAYERS.items()},
            **{f"{side}_attention_heads": HEADS for side in LAYERS},
            **{f"{side}_ffn_dim": D_FF for side in LAYERS},
            **{"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0},
            **{"forced_eos_token_id": 0, "scale_embedding": True, "activation_function": "swish"},
            **{"share_encoder_decoder_embeddings": not two, "max_position_embeddings": 128},
            **changes,
        }
    )
    torch.manual_seed(3)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 1:
                x.copy_(0.2 * torch.randn_like(x) + ("norm" in name and name.endswith("weight")))
            elif "layers" in name:
                x.copy_(torch.randn_like(x) / math.sqrt(x.shape[1]))
            elif "embed_positions" not in name:
                x.copy_(0.2 * torch.randn_like(x))
        model.final_logits_bias.copy_(0.3 * torch.randn_like(model.final_logits_bias))
    train(model, tokenizer, updates)
    if pickled:
        (folder / "model").mkdir()
        config.save_pretrained(folder / "model")
        torch.save(model.state_dict(), folder / "model" / "pytorch_model.bin")
    else:
        model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return model, tokenizer


def train(model: Any, tokenizer: Any, updates: int) -> None:
    """Some dozens of updates, and translations vary and end; those of random models do not."""
    batch = tokenizer(ENGLISH[:20], text_target=GERMAN[:20], return_tensors="pt", padding=True)
    labels = batch["labels"]
    batch["labels"] = labels.masked_fill(labels == model.config.pad_token_id, -100)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learnt, lr=0.006)
    for _ in range(updates):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
