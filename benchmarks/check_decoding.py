"""Real sentences through a trained model, by ways that must not differ.

    python benchmarks/check_decoding.py MODEL ../shared/data/multi30k/test_2016_flickr.en.gz

500 sentences one by one, in batches and in another order: identical bytes. Exits with 1 if they are
not.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path

import torch
from timing import machine, save

from edgewise.data.text import TextFile
from edgewise.decoding import Translator
from edgewise.decoding.native import NativeEngine

SENTENCES = 500
THREADS = 2


def lines_that_differ(translator: Translator, texts: list[str], **settings: object) -> list[str]:
    """Ways in which some sentence came out otherwise than alone, text or score."""
    alone = [translator.translations([text], **settings)[0] for text in texts]
    engine = translator.engine
    assert isinstance(engine, NativeEngine)
    small = NativeEngine(engine.models, engine.vocabulary, batch_tokens=300)
    ways = {
        "in batches": translator.translations(texts, **settings),
        "backwards": translator.translations(texts[::-1], **settings)[::-1],
        "in small batches": Translator(small, translator.settings).translations(texts, **settings),
    }
    return [
        f"{way}: sentence {i + 1}"
        for way, found in ways.items()
        for i in range(len(texts))
        if found[i] != alone[i]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("source", help="file of sentences")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    translator = Translator.load(options.model)
    texts = [
        (line or b"").decode() for line in islice(TextFile.parse(options.source).lines(), SENTENCES)
    ]
    rows = []
    for name, settings in (("beam 4", {}), ("greedy", {"beam": 1})):
        differing = lines_that_differ(translator, texts, **settings)
        rows.append((f"{SENTENCES} sentences, {name}, that depend on their batch", len(differing)))
        print(*rows[-1], *differing[:5], sep="\n", flush=True)
    lines = [
        *("# Decoding: the same whatever the way", "", "| | |", "|---|---|"),
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        *(f"- {name}: {value}" for name, value in machine(THREADS).items()),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("decoding-checks", {"rows": rows}, text))
    sys.exit(1 if any(count for _, count in rows) else 0)


if __name__ == "__main__":
    main()
