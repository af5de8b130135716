"""One contestant of bench_decoding.py, in a process of its own.

    echo 0 32 | python benchmarks/decoding_batch.py edgewise FOLDER

FOLDER is what bench_decoding.py made: models and `sources.json`. Says "ready", and for each line
with the numbers of sentences, `first last` (without last), translates these as one batch: beam 4,
every hypothesis as long as the longest source. It answers with seconds, and at the end with the
most memory it ever had and what it had before the model, in bytes.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from marian import marian
from peak_memory import status

from edgewise.data.vocabulary import END, PAD, Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.engine import Engine
from edgewise.model.settings import ModelSettings

BEAM = 4
THREADS = 2
Run = Callable[[Sequence[list[int]], int], object]


def edgewise(folder: Path) -> Run:
    """Our engine; as `edgewise translate` runs it."""
    from edgewise.decoding.native import NativeEngine

    return searching(NativeEngine.load([folder], batch_tokens=1 << 30))


def onnxruntime(folder: Path) -> Run:
    """Our search over the exported graphs; as `edgewise translate --engine onnx` runs it."""
    from edgewise.interop.onnx_engine import OnnxEngine

    return searching(OnnxEngine.load([folder], threads=THREADS, batch_tokens=1 << 30))


def searching(engine: Engine) -> Run:
    def run(sources: Sequence[list[int]], length: int) -> object:
        # The end, which must come then, is one step too.
        settings = DecodingSettings(beam=BEAM, min_length=length - 1, max_length=length - 1)
        return engine.search(sources, [[]] * len(sources), settings)

    return run


def ctranslate2(folder: Path) -> Run:
    """Its own search, forced to the length."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=THREADS)
    vocabulary = Vocabulary.load(folder)

    def run(sources: Sequence[list[int]], length: int) -> object:
        pieces = [vocabulary.pieces(source) for source in sources]
        return translator.translate_batch(
            pieces,
            beam_size=BEAM,
            length_penalty=0.6,
            min_decoding_length=length,
            max_decoding_length=length,
            max_input_length=0,
        )

    return run


def hugging_face(folder: Path) -> Run:
    """MarianMTModel of the same sizes, with sinusoids, as it comes."""
    config = json.loads((folder / "config.json").read_text())
    sizes = ModelSettings.model_validate(config["architecture"])
    model = marian(sizes, config["vocabulary"]["pieces"], max_position_embeddings=1024).eval()

    @torch.inference_mode()
    def run(sources: Sequence[list[int]], length: int) -> object:
        longest = max(map(len, sources)) + 1
        rows = [[*source, END] + [PAD] * (longest - len(source) - 1) for source in sources]
        tokens = torch.tensor(rows)
        return model.generate(
            input_ids=tokens,
            attention_mask=(tokens != PAD).long(),
            num_beams=BEAM,
            length_penalty=0.6,
            min_new_tokens=length,
            max_new_tokens=length,
        )

    return run


CONTESTANTS = {
    "edgewise": (edgewise, "model"),
    "CTranslate2, float32": (ctranslate2, "ctranslate2-float32"),
    "CTranslate2, int8": (ctranslate2, "ctranslate2-int8"),
    "ONNX Runtime": (onnxruntime, "onnx"),
    "Hugging Face Marian": (hugging_face, "model"),
}


def length_of(batch: Sequence[list[int]]) -> int:
    """How long its translations are made, the end included."""
    return max(map(len, batch)) + 1


def main() -> None:
    name, where = sys.argv[1:]
    torch.set_num_threads(THREADS)
    make, model = CONTESTANTS[name]
    sources = json.loads((Path(where) / "sources.json").read_text())
    before = status("VmRSS")
    run = make(Path(where) / model)
    print("ready", flush=True)
    for line in sys.stdin:
        first, last = map(int, line.split())
        batch = sources[first:last]
        start = time.perf_counter()
        run(batch, length_of(batch))
        print(time.perf_counter() - start, flush=True)
    print(status("VmHWM"), before, flush=True)


if __name__ == "__main__":
    main()
