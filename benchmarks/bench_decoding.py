"""Beam search against the others', each contestant in its own process.

    python benchmarks/bench_decoding.py ../shared/data     # about fifteen minutes on two cores

The paper's base model with 32,768 pieces, random weights, beam 4: sentences of newstest2014 in
batches of 32, in their order, each batch forced to the length of its longest source; and single
sentences. CTranslate2 and ONNX Runtime have the weights of ours; Hugging Face's Marian has absolute
positions. Contestants take turns, batch by batch. The vocabulary is learnt from Europarl; only the
lengths depend on it.
"""

import argparse
import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from random import Random

import torch
from decoding_batch import CONTESTANTS, THREADS, length_of
from timing import Contestant, machine, save

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.vocabulary import Vocabulary
from edgewise.interop import ctranslate2, onnx
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

BATCH = Path(__file__).with_name("decoding_batch.py")
PIECES, SENTENCES, ROWS, SINGLE = 32_768, 128, 32, 16


def make(data: Path, folder: Path) -> None:
    """Models and sentences for all contestants."""
    vocabulary = Vocabulary.train(europarl(data, 60_000), PIECES)
    settings = ModelSettings(tables="layer")  # CTranslate2 has no others
    model = Transformer(settings, vocabulary.size)
    initialise(model, seed=1)
    write_model(folder / "model", weights(model), settings, vocabulary, {})
    for quantization in ("float32", "int8"):
        out = folder / f"ctranslate2-{quantization}"
        ctranslate2.export(folder / "model", out, quantization=quantization)
    onnx.export(folder / "model", folder / "onnx")
    with gzip.open(data / "newstest" / "newstest2014.en-de.en.gz", "rb") as file:
        lines = [line.rstrip(b"\n").decode() for line in islice(file, SENTENCES)]
    (folder / "sources.json").write_text(json.dumps(vocabulary.encode(lines)))


def europarl(data: Path, pairs: int) -> Iterator[str]:
    (path,) = (data / "europarl-en-de").glob("train*.gz")
    with gzip.open(path, "rb") as file:
        for line in islice(file, pairs):
            yield from line.decode().rstrip("\n").split("\t")[1:3]


def race(folder: Path, pieces: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant for all pieces of work, a number a round."""
    running = {name: Contestant(BATCH, name, str(folder)) for name in CONTESTANTS}
    for contestant in running.values():
        contestant.step(pieces[0])
    times: dict[str, list[float]] = {name: [] for name in running}
    order, random = list(running), Random(0)
    for _ in range(rounds):
        each: dict[str, list[float]] = {name: [] for name in running}
        for piece in pieces:
            for name in order:
                each[name].append(running[name].step(piece))
            # Who comes after whom matters: the threads of the one before may still be spinning.
            random.shuffle(order)
        for name, seconds in each.items():
            times[name].append(sum(seconds))
    for contestant in running.values():
        contestant.end()
    return times


def table(times: dict[str, list[float]], sentences: int, tokens: int) -> list[str]:
    median = {name: statistics.median(values) for name, values in times.items()}
    ours = median["edgewise"]
    return [
        "| | s | fastest, slowest | sentences a second | tokens a second | to edgewise |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {median[name]:.2f} | {min(values):.2f}, {max(values):.2f} | "
            f"{sentences / median[name]:.2f} | {tokens / median[name]:.0f} | "
            f"{ours / median[name]:.2f}x |"
            for name, values in times.items()
        ),
    ]


def tokens_of(pieces: list[str], sources: list[list[int]]) -> int:
    """Of the translations, the end included: all of a batch are as long as its longest source."""
    spans = [tuple(map(int, piece.split())) for piece in pieces]
    return sum((last - first) * length_of(sources[first:last]) for first, last in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("data", type=Path, help="folder with newstest and europarl-en-de")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep models here, and use those that are")
    options = parser.parse_args()
    figures: dict[str, object] = {}
    lines = ["# Beam search", "", "Each contestant in its own process, in turns; medians."]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "sources.json").exists():
            make(options.data, folder)
        batches = [f"{i} {min(i + ROWS, SENTENCES)}" for i in range(0, SENTENCES, ROWS)]
        singles = [f"{i} {i + 1}" for i in range(0, SENTENCES, SENTENCES // SINGLE)]
        sources = json.loads((folder / "sources.json").read_text())
        for title, pieces, count in (
            (f"{SENTENCES} sentences in batches of {ROWS}", batches, SENTENCES),
            (f"{len(singles)} sentences one at a time", singles, len(singles)),
        ):
            times = race(folder, pieces, options.rounds)
            figures[title] = times
            rows = table(times, count, tokens_of(pieces, sources))
            lines += ["", f"## {title}, {options.rounds} rounds", "", *rows]
    figures["machine"] = about = machine(THREADS)
    about |= {name: version(name) for name in ("ctranslate2", "onnxruntime", "transformers")}
    lines += ["", *(f"- {name}: {value}" for name, value in about.items())]
    text = "\n".join(lines) + "\n"
    print(text)
    print(save("decoding", figures, text))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
