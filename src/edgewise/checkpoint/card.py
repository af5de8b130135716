"""The model card: what a model is, what it was trained on, how well it does, how to load it.

It is written with the folder; afterwards people may edit it, and scores are added to it.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.errors import DataError
from edgewise.storage import read_regular, regular_inside, write_json, write_text

CARD, CONFIG = "README.md", "config.json"
LARGEST_CARD = 16 << 20
SCORES = "## Scores"
HEADER = ("| test set | sentences | search | BLEU | chrF |", "|---|---|---|---|---|")
SIGNATURES = "By sacreBLEU:"
NO_SCORES = "None yet: `edgewise evaluate … --card` writes them here."

_CARD = """# A translation model{languages}

Encoder and decoder with {positions}; a model folder of edgewise
([relative positions](https://arxiv.org/abs/1803.02155)).

| | |
|---|---|
{rows}
## Training data

{data}

{scores}

{no_scores}

## How to load it

{load}

`config.json` has the architecture, `tokenizer/` the sentencepiece model, `manifest.json` the hash
of each file but for this one and `generation_config.json`, which may be edited. Nothing here is
code.
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
        scores=SCORES,
        no_scores=NO_SCORES,
        load=_LOAD[config["engine"]],
    )
    write_json(folder / CONFIG, config)
    (folder / CARD).write_text(text, encoding="utf-8")


def add_score(folder: Path, score: Scored) -> None:
    """Put a score into the card of a folder, in place of an older one of the same test.

    Nothing else in the card, which people may have edited, and no other file is changed.
    """
    path = folder / CARD
    text = ""
    if os.path.lexists(path):
        try:
            text = read_regular(regular_inside(folder, CARD), LARGEST_CARD).decode()
        except UnicodeDecodeError:
            raise DataError(f"{path} must be UTF-8 text") from None
    write_text(path, with_score(text, score))


def with_score(card: str, score: Scored) -> str:
    """Return a card with one more row in the table of its section Scores, which is made if needed.

    What else people have written into that section stays, after the table.
    """
    card = card.replace("\r\n", "\n")
    heading = re.search(rf"^{SCORES}[ \t]*\n", card, re.MULTILINE)
    if heading is None:
        card = f"{card.rstrip()}\n\n{SCORES}\n".lstrip()
    begin = len(card) if heading is None else heading.end()
    end = card.find("\n## ", begin - 1)
    section, rest = (card[begin:], "") if end < 0 else (card[begin:end], card[end:])
    rows, signatures, others = list[str](), list[str](), list[str]()
    ours = False  # within our table; people may have put others there
    for line in section.splitlines():
        ours = line == HEADER[0] or (ours and line.startswith("|"))
        if ours:
            rows.append(line)
        elif line.startswith(SIGNATURES):
            signatures = line.removeprefix(SIGNATURES).strip().rstrip(".").split(", ")
        elif line != NO_SCORES:
            others.append(line)
    new = _row(score)
    known = [row for row in rows if row not in HEADER]
    rows = [row for row in known if _cells(row)[:3] != _cells(new)[:3]]
    signatures += [f"`{score.bleu_signature}`", f"`{score.chrf_signature}`"]
    table = [*HEADER, *rows, new, "", f"{SIGNATURES} {', '.join(dict.fromkeys(signatures))}."]
    text = "\n".join(others).strip("\n")
    return card[:begin] + "\n".join(["", *table, *(["", text] if text else []), ""]) + rest


def _row(score: Scored) -> str:
    test, search = (
        re.sub(r"\s", " ", text).replace("|", r"\|")
        for text in (f"{score.source}, {score.reference}", score.search)
    )
    return f"| {test} | {score.sentences:,} | {search} | {score.bleu:.1f} | {score.chrf:.1f} |"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)][1:]


def _positions(settings: Mapping[str, Any]) -> str:
    kinds = []
    if settings["max_distance"] is not None:
        kinds.append(f"relative positions up to distance {settings['max_distance']}")
    if settings["sinusoids"]:
        kinds.append("sinusoids")
    return " and ".join(kinds) or "no positions"
