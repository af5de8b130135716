"""Real sizes and several threads: a translation is the same alone and among others, bit for bit."""

import pytest
import torch
from conftest import require_rows_alike
from selection import long_except

from edgewise.data.vocabulary import BEGIN, END
from edgewise.decoding.beam import beam_search
from edgewise.decoding.bounds import Bounds
from edgewise.decoding.fused import FusedDecoder
from edgewise.decoding.native import NativeStep
from edgewise.decoding.step import start
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

SOURCES = [[4 + (11 * i + j) % 5000 for j in range(3 + 9 * i)] for i in range(7)]


@pytest.fixture(scope="module")
def decoder() -> FusedDecoder:
    settings = ModelSettings(encoder_layers=1, decoder_layers=1, d_ff=2048, tables="layer")
    model = Transformer(settings, 5003)
    initialise(model, 1)
    return FusedDecoder(model.eval())


@pytest.mark.parametrize("threads", long_except([1, 2], [1, 2, 4]))
@pytest.mark.parametrize("beam", [1, 4])
@torch.inference_mode()
def test_the_search_of_a_model_of_the_papers_size_does_not_depend_on_the_batch(
    decoder, beam, threads
):
    require_alike(decoder, SOURCES, [[]] * 7, beam, threads)


@torch.inference_mode()
def test_prefixes_of_a_model_of_the_papers_size_do_not_depend_on_the_batch(decoder):
    sources = [[4 + (11 * i + j) % 5000 for j in range(17 + 2 * i)] for i in range(7)]
    prefixes = [[4 + (13 * i + j) % 5000 for j in range(37)] for i in range(7)]
    require_alike(decoder, sources, prefixes, beam=4, threads=2)


def require_alike(
    decoder: FusedDecoder,
    sources: list[list[int]],
    prefixes: list[list[int]],
    beam: int,
    threads: int,
) -> None:
    def found(chosen: list[int]):
        step = NativeStep(decoder, [sources[i] for i in chosen], beam)
        begun = start(step, BEGIN, [prefixes[i] for i in chosen], lambda sentence: True)
        bounds = Bounds([8 + begun.length] * len(chosen), 0, END, [0, 1, 3])
        return beam_search(step, begun, bounds, beam=beam, n_best=beam, length_penalty=0.6)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        require_rows_alike(range(16, 1024, 16), (512, 2048))  # those of the encoder
        together = found(list(range(7)))
        for chosen in ([0], [6], [3, 1], [5, 4, 2]):
            assert found(chosen) == [together[i] for i in chosen]
    finally:
        torch.set_num_threads(before)
