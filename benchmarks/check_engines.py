"""Real sentences through a trained model, by every engine.

    python benchmarks/check_engines.py MODEL test.en test.de     # some minutes on two cores

1,000 sentences with beam 4 and length penalty 0, here, in CTranslate2 and in ONNX Runtime with the
same weights: how many translations are the same, how far scores are apart, and where translations
differ, the scores of both by both. Then as they come, with the paper's penalty: BLEU, size and
speed, of int8 too, by `edgewise translate` in turns. Exits with 1 if a claim does not hold.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import torch
from timing import machine, save

from edgewise.data.text import TextFile
from edgewise.decoding import Translator
from edgewise.decoding.translator import folder_settings
from edgewise.evaluation.bleu import bleu
from edgewise.interop import ctranslate2, onnx
from edgewise.interop.ctranslate2_engine import CTranslate2Engine
from edgewise.interop.onnx_engine import OnnxEngine

SENTENCES, BEAM, THREADS, ROUNDS = 1000, 4, 2, 3
WEIGHTS = ("*.safetensors", "*.bin", "*.onnx*")


def made(model: Path, folder: Path) -> dict[str, tuple[Path, Translator]]:
    """Of each engine its folder and its translator."""
    makers: dict[str, Callable[[Path], None]] = {
        f"CTranslate2, {name}": lambda out, name=name: ctranslate2.export(
            model, out, quantization=name
        )
        for name in ("float32", "int8")
    }
    makers["ONNX Runtime"] = lambda out: onnx.export(model, out)
    result = {"edgewise": (model, Translator.load(model))}
    for i, (name, make) in enumerate(makers.items()):
        out = folder / str(i)
        make(out)
        engine = (
            OnnxEngine.load([out], threads=THREADS)
            if name.startswith("ONNX")
            else CTranslate2Engine(out, threads=THREADS)
        )
        result[name] = out, Translator(engine, folder_settings(out))
    return result


def compared(
    ours: Translator, theirs: Translator, texts: list[str]
) -> tuple[int, float, list[str]]:
    """How many translations are the same, the largest difference of scores, and the others."""
    vocabulary = ours.vocabulary
    sources = vocabulary.encode(texts)
    settings = ours.changed({"beam": BEAM, "length_penalty": 0.0})
    found = [
        [best for (best,) in each.engine.search(sources, [[]] * len(sources), settings)]
        for each in (ours, theirs)
    ]
    same, apart, others = 0, 0.0, []
    for i, (source, mine, other) in enumerate(zip(sources, *found, strict=True)):
        if other.tokens == mine.tokens:
            same += 1
            apart = max(apart, abs(mine.log_probability - other.log_probability))
            continue
        (by_us,) = ours.engine.score([source], [other.tokens])
        others.append(
            f"sentence {i + 1}: ours {mine.log_probability:.5f}, theirs by our model "
            f"{by_us:.5f}, by theirs {other.log_probability:.5f}\n"
            f"    ours:   {vocabulary.decode(mine.tokens)}\n"
            f"    theirs: {vocabulary.decode(other.tokens)}"
        )
    return same, apart, others


def seconds(engine: str, folder: Path, texts: list[str]) -> float:
    """As `edgewise translate` counts them, in a process of its own: threads do not mix well."""
    command = ["translate", "--engine", engine, "--model", str(folder), "--threads", str(THREADS)]
    done = subprocess.run(
        [sys.executable, "-m", "edgewise", *command],
        input="".join(f"{text}\n" for text in texts),
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = re.findall(r"lines in ([\d.]+) s", done.stderr)
    return float(found)


def lines_of(name: str) -> list[str]:
    return [(line or b"").decode() for line in islice(TextFile.parse(name).lines(), SENTENCES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="model folder that CTranslate2 can take")
    parser.add_argument("source", help="file of sentences")
    parser.add_argument("reference", help="file of their translations")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    texts, references = lines_of(options.source), lines_of(options.reference)
    rows, others = [], []
    with tempfile.TemporaryDirectory() as temporary:
        engines = made(options.model, Path(temporary))
        ours = engines["edgewise"][1]
        for name in ("CTranslate2, float32", "ONNX Runtime"):
            same, apart, differing = compared(ours, engines[name][1], texts)
            rows.append((name, same, apart))
            others += [f"{name}, {each}" for each in differing]
            print(*rows[-1], *differing, sep="\n", flush=True)
        bleus, times = {}, {name: [] for name in engines}
        for name, (_, translator) in engines.items():
            bleus[name] = bleu(translator.translate(texts), references)
        for _ in range(ROUNDS):
            for name, (folder, _) in engines.items():
                engine = name.split(",")[0].replace("ONNX Runtime", "onnx").lower()
                times[name].append(seconds(engine, folder, texts))
        sizes = {
            name: sum(path.stat().st_size for glob in WEIGHTS for path in folder.glob(glob))
            for name, (folder, _) in engines.items()
        }
    medians = {name: statistics.median(values) for name, values in times.items()}
    signature = bleus["edgewise"].signature
    lines = [
        "# Engines",
        "",
        f"{len(texts)} sentences, beam {BEAM}, length penalty 0, against edgewise:",
        "",
        "| | the same | largest difference of log-probabilities |",
        "|---|---|---|",
        *(f"| {name} | {same} | {apart:.2g} |" for name, same, apart in rows),
        "",
        *others,
        "",
        f"As they come ({ours.settings.described()}), {ROUNDS} rounds by turns; BLEU {signature}:",
        "",
        "| | BLEU | MB | s | sentences a second | to edgewise |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {bleus[name].value:.2f} | {sizes[name] / 1e6:.1f} | {medians[name]:.2f} | "
            f"{len(texts) / medians[name]:.1f} | {medians['edgewise'] / medians[name]:.2f}x |"
            for name in engines
        ),
        "",
        *(f"- {name}: {value}" for name, value in machine(THREADS).items()),
        *(f"- {name}: {version(name)}" for name in ("ctranslate2", "onnxruntime")),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    figures = {"same": rows, "others": others, "seconds": times, "bytes": sizes}
    print(save("engines", figures | {"bleu": {n: b.value for n, b in bleus.items()}}, text))
    holds = all(same >= 0.995 * len(texts) and apart <= 1e-3 for _, same, apart in rows)
    near = abs(bleus["CTranslate2, int8"].value - bleus["edgewise"].value) <= 0.3
    sys.exit(0 if holds and near else 1)


if __name__ == "__main__":
    main()
