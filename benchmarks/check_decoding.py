"""Real sentences through a trained model, by ways that must not differ.

    python benchmarks/check_decoding.py MODEL ../shared/data/multi30k/test_2016_flickr.en.gz

500 sentences one by one, in batches and in another order: identical bytes. Then 1,000 with beam 4
and length penalty 0, here and in CTranslate2 with the same weights: how many translations are the
same, how far scores are apart, and where translations differ, the scores of both by both. Exits
with 1 if a claim does not hold.
"""

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path

import ctranslate2
import torch
from timing import machine, save

from edgewise.data.text import TextFile
from edgewise.decoding import Translator
from edgewise.decoding.native import NativeEngine
from edgewise.interop.ctranslate2 import export

ALONE, TOGETHER, BEAM, MOST = 500, 1000, 4, 200
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


def against_ctranslate2(
    translator: Translator, folder: Path, texts: list[str]
) -> tuple[int, float, list[str]]:
    """How many translations are the same, the largest difference of scores, and the others.

    With its options against <unk> CTranslate2 would normalise the probabilities anew: a score would
    be another, though the translation is not.
    """
    vocabulary = translator.vocabulary
    tokens = vocabulary.encode(texts)
    settings = translator.changed({"beam": BEAM, "length_penalty": 0.0, "max_length": MOST})
    ours = [best for (best,) in translator.engine.search(tokens, [[]] * len(tokens), settings)]
    with tempfile.TemporaryDirectory() as temporary:
        export(folder, Path(temporary) / "ct2")
        engine = ctranslate2.Translator(
            f"{temporary}/ct2", compute_type="float32", intra_threads=THREADS
        )
        theirs = engine.translate_batch(
            [vocabulary.pieces(source) for source in tokens],
            beam_size=BEAM,
            length_penalty=0.0,
            max_decoding_length=MOST,
            max_batch_size=64,
            return_scores=True,
            min_decoding_length=0,
            max_input_length=0,
        )
        number = {piece: i for i, piece in enumerate(vocabulary.pieces(range(vocabulary.size)))}
        same, apart, others = 0, 0.0, []
        for i, (source, mine, other) in enumerate(zip(tokens, ours, theirs, strict=True)):
            found = [number[piece] for piece in other.hypotheses[0]]
            same += tuple(found) == mine.tokens
            if tuple(found) == mine.tokens and len(found) < MOST:
                apart = max(apart, abs(mine.log_probability - other.scores[0]))
                continue
            if tuple(found) == mine.tokens:
                others.append(
                    f"sentence {i + 1}: the same {MOST} tokens, after which ours must end "
                    f"({mine.log_probability:.5f}) and theirs is cut off ({other.scores[0]:.5f})"
                )
                continue
            (by_us,) = translator.engine.score([source], [found])
            others.append(
                f"sentence {i + 1}: ours {mine.log_probability:.5f}, theirs by our model "
                f"{by_us:.5f}, by theirs {other.scores[0]:.5f}\n"
                f"    ours:   {vocabulary.decode(mine.tokens)}\n"
                f"    theirs: {vocabulary.decode(found)}"
            )
    return same, apart, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="model folder that CTranslate2 can take")
    parser.add_argument("source", help="file of sentences")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    translator = Translator.load(options.model)
    texts = [
        (line or b"").decode() for line in islice(TextFile.parse(options.source).lines(), TOGETHER)
    ]
    rows = []
    for name, settings in (("beam 4", {}), ("greedy", {"beam": 1})):
        differing = lines_that_differ(translator, texts[:ALONE], **settings)
        rows.append((f"{ALONE} sentences, {name}, that depend on their batch", len(differing)))
        print(*rows[-1], *differing[:5], sep="\n", flush=True)
    same, apart, others = against_ctranslate2(translator, options.model, texts)
    rows += [
        (f"of {len(texts)} translations, the same in CTranslate2", same),
        ("largest difference of their log-probabilities", f"{apart:.2g}"),
    ]
    lines = [
        *("# Decoding: the same whatever the way", "", "| | |", "|---|---|"),
        *(f"| {name} | {value} |" for name, value in rows),
        *("", *others, ""),
        *(f"- {name}: {value}" for name, value in machine(THREADS).items()),
        f"- ctranslate2: {ctranslate2.__version__}",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("decoding-checks", {"rows": rows, "others": others}, text))
    holds = rows[0][1] == rows[1][1] == 0 and same >= 0.995 * len(texts) and apart <= 1e-3
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
