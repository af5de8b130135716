"""The model card: what a model is, what it was trained on, how well it does, how to load it.

All that it says stands in the folder's config.json; the card is written anew from there.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from edgewise.errors import DataError
from edgewise.storage import MANIFEST, check, new_folder, read_json, seal, write_json

CARD, CONFIG = "README.md", "config.json"

_CARD = """# A translation model{languages}

Encoder and decoder with {positions}; a model folder of edgewise
([relative positions](https://arxiv.org/abs/1803.02155)).

| | |
|---|---|
{rows}
## Training data

{data}

## Scores

{scores}

## How to load it

{load}

`config.json` has the architecture and all that stands here, `tokenizer/` the sentencepiece model,
`manifest.json` the hash of each file. Nothing here is code.
"""

# By the engine that runs such a folder.
_LOAD = {
    "edgewise": """```python
from edgewise.decoding import Translator

Translator.load("this folder").translate(["…"])
```

```sh
edgewise translate --model "this folder" < in.txt > out.txt
```""",
    "ctranslate2": """```sh
edgewise translate --engine ctranslate2 --model "this folder" < in.txt > out.txt
```

Or without edgewise, as pieces of the sentencepiece model:

```python
import ctranslate2

ctranslate2.Translator("this folder").translate_batch([["▁pieces", "▁of", "▁a", "▁sentence"]])
```""",
    "onnx": """```sh
edgewise translate --engine onnx --model "this folder" < in.txt > out.txt
```

`encoder.onnx` reads a batch of sources, `decoder.onnx` makes one step; the names of their inputs
and outputs say what they are.""",
}


@dataclass(frozen=True)
class Scored:
    """How well a model translated a test set."""

    source: str
    reference: str
    sentences: int
    search: str
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str

    @property
    def test(self) -> tuple[object, ...]:
        """What was asked for: a second answer takes the place of the first."""
        return self.source, self.reference, self.sentences, self.search


def write_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Write config.json and the card."""
    settings = config["architecture"]
    languages = config["languages"]
    facts = {
        "parameters": f"{config['parameters']:,}",
        "vocabulary": f"{config['vocabulary']['pieces']:,} pieces",
        "layers": f"{settings['encoder_layers']} + {settings['decoder_layers']}, width "
        f"{settings['d_model']}, {settings['heads']} heads",
        **config["about"],
    }
    text = _CARD.format(
        languages="" if languages is None else f": {languages[0]} to {languages[1]}",
        positions=_positions(settings),
        rows="".join(f"| {name} | {value} |\n" for name, value in facts.items()),
        data="\n".join(f"- {part}" for part in config["data"]) or "Not known.",
        scores=_table([Scored(**each) for each in config["scores"]]),
        load=_LOAD[config["engine"]],
    )
    write_json(folder / CONFIG, config)
    (folder / CARD).write_text(text, encoding="utf-8")


def add_score(folder: Path, kind: str, version: int, score: Scored) -> None:
    """Put a score into a folder's card, in place of an older one of the same test."""
    check(folder, kind, version)
    config = _completed(read_json(folder / CONFIG), folder)
    try:
        others = [each for each in config["scores"] if Scored(**each).test != score.test]
    except TypeError as error:
        raise DataError(f"{folder / CONFIG}: a score cannot be read: {error}") from None
    sealed = {Path(name) for name in read_json(folder / MANIFEST)["files"]}
    there = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    written = {Path(CARD), Path(CONFIG), Path(MANIFEST)}
    with new_folder(folder) as new:
        for name in sealed - written:
            _link(folder / name, new / name)
        write_card(new, config | {"scores": [*others, asdict(score)]})
        seal(new, kind, version)
        for name in there - sealed - written:  # what others put there stays
            _link(folder / name, new / name)


def _completed(config: Any, folder: Path) -> dict[str, Any]:
    """With what folders of an older edgewise do not say."""
    if not isinstance(config, dict):
        raise DataError(f"{folder / CONFIG} must hold settings by name")
    found: dict[str, Any] = {"languages": None, "about": {}, "data": [], "scores": []}
    found["engine"] = "edgewise"
    if "parameters" not in config:
        tensors = load_file(folder / "model.safetensors")
        found["parameters"] = sum(tensor.numel() for tensor in tensors.values())
    return found | config


def _link(path: Path, new: Path) -> None:
    """The same file once more, without a second copy where the disk can do that."""
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, new)
    except OSError:
        shutil.copyfile(path, new)


def _positions(settings: Mapping[str, Any]) -> str:
    kinds = []
    if settings["max_distance"] is not None:
        kinds.append(f"relative positions up to distance {settings['max_distance']}")
    if settings["sinusoids"]:
        kinds.append("sinusoids")
    return " and ".join(kinds) or "no positions"


def _table(scores: Sequence[Scored]) -> str:
    if not scores:
        return "None yet: `edgewise evaluate … --card` writes them here."
    lines = ["| test set | sentences | search | BLEU | chrF |", "|---|---|---|---|---|"]
    lines += [
        f"| {each.source}, {each.reference} | {each.sentences:,} | {each.search} | {each.bleu:.1f} "
        f"| {each.chrf:.1f} |"
        for each in scores
    ]
    signatures = dict.fromkeys(
        f"`{signature}`"
        for each in scores
        for signature in (each.bleu_signature, each.chrf_signature)
    )
    return "\n".join([*lines, "", f"By sacreBLEU: {', '.join(signatures)}."])
