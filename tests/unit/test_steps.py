"""The decoder step by step: equal to the full forward pass, and blind to its batch."""

import pytest
import torch
from torch import Tensor

from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.decoding.fused import FusedDecoder
from edgewise.decoding.steps import Steps, encode
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

VOCABULARY = 53
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 3, "d_ff": 40}
MODES = {
    "per head": {"max_distance": 4},
    "per layer": {"max_distance": 4, "tables": "layer"},
    "shared": {"max_distance": 4, "tables": "shared"},
    "keys only": {"max_distance": 3, "on_values": False},
    "values only": {"max_distance": 3, "on_keys": False},
    "one label": {"max_distance": 0},
    "distance 1": {"max_distance": 1},
    "distance beyond all": {"max_distance": 60},
    "sinusoids": {"max_distance": None, "sinusoids": True},
    "both": {"max_distance": 4, "sinusoids": True},
    "none": {"max_distance": None},
    "norm before": {"max_distance": 4, "norm": "pre"},
    "biases": {"max_distance": 4, "bias": True},
    "as other toolkits": {
        "max_distance": None,
        "sinusoids": True,
        "bias": True,
        "activation": "swish",
        "share_embeddings": False,
        "norm_epsilon": 1e-3,
    },
    "gelu": {"max_distance": 4, "norm": "pre", "activation": "gelu"},
}
SOURCES = [[7, 8, 9, 10, 11], [20, 21], list(range(5, 45)), [30] * 16]

pytestmark = pytest.mark.usefixtures("one_thread")


def made(seed: int = 1, **changes: object) -> Transformer:
    model = Transformer(ModelSettings(**SIZES | {"dropout": 0.3} | changes), VOCABULARY)
    initialise(model, seed)
    with torch.no_grad():  # norms and biases that are not those of the start
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def in_full(model: Transformer, source: list[int], targets: list[list[int]]) -> Tensor:
    """The decoder's output after the last token of each, by the whole forward pass."""
    memory = model.encode(torch.tensor([[*source, END]]), None)
    return model.decode(torch.tensor(targets), memory.expand(len(targets), -1, -1), None)[:, -1]


def walk(model: Transformer, sources: list[list[int]], slots: int, steps: int, seed: int):
    """Random hypotheses that divide and die: what a step gave, and what the full pass gives."""
    random = torch.Generator().manual_seed(seed)
    state = Steps(FusedDecoder(model), sources, slots)
    rows = list(range(len(sources)))
    tokens = torch.full((len(rows), slots), BEGIN)
    prefixes = [[[BEGIN] for _ in range(slots)] for _ in rows]
    parents = None
    for step in range(steps):
        x = state(tokens, parents)
        assert x.shape[0] % 4 == 0
        for row, i in enumerate(rows):
            given = x[row * slots : (row + 1) * slots]
            yield given, in_full(model, sources[i], prefixes[row])
        if step == steps // 2 and len(rows) > 1:
            kept = torch.tensor([r for r in range(len(rows)) if r != 1])
            state.keep(kept)
            rows = [rows[r] for r in kept.tolist()]
            prefixes = [prefixes[r] for r in kept.tolist()]
        shape = len(rows), slots
        parents = torch.randint(0, slots, shape, generator=random)
        tokens = torch.randint(4, VOCABULARY, shape, generator=random)
        prefixes = [
            [[*prefixes[r][parents[r, s]], int(tokens[r, s])] for s in range(slots)]
            for r in range(len(rows))
        ]


@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_steps_with_reorder_equal_the_full_forward(mode):
    for given, expected in walk(made(**MODES[mode]).double(), SOURCES, slots=3, steps=12, seed=1):
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_in_float32_steps_equal_the_full_forward_to_1e_5(mode):
    for given, expected in walk(made(**MODES[mode]), SOURCES, slots=2, steps=8, seed=2):
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_one_hypothesis_needs_no_lineage():
    for given, expected in walk(made().double(), SOURCES, slots=1, steps=36, seed=3):
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["per head", "sinusoids"])
@pytest.mark.parametrize("slots", [1, 3, 4])
@pytest.mark.parametrize("sizes", [(128, 4), (48, 4), (20, 5)])
@torch.inference_mode()
def test_a_sentence_is_computed_alike_bit_for_bit_whatever_its_batch(mode, slots, sizes):
    # Small products take other paths than those of real sizes.
    model = made(d_model=sizes[0], heads=sizes[1], d_ff=2 * sizes[0], **MODES[mode])
    decoder = FusedDecoder(model)
    many = [[4 + (7 * i + j) % 40 for j in range(3 + 5 * i)] for i in range(11)]
    steps = 12
    random = torch.Generator().manual_seed(4)
    tokens = torch.randint(4, VOCABULARY, (steps, len(many), slots), generator=random)
    parents = torch.randint(0, slots, (steps, len(many), slots), generator=random)

    def run(chosen: list[int]) -> Tensor:
        state = Steps(decoder, [many[i] for i in chosen], slots)
        outputs = [
            state(tokens[step][chosen], parents[step][chosen])[: len(chosen) * slots]
            for step in range(steps)
        ]
        return torch.stack(outputs).view(steps, len(chosen), slots, -1)

    together = run(list(range(len(many))))
    for chosen in ([0], [10], [3, 7], [10, 9, 1], [5, 4, 3, 2, 1, 0]):
        assert torch.equal(run(chosen), together[:, chosen])


@torch.inference_mode()
def test_the_encoder_sees_only_sentences_of_one_padded_length_together():
    model = made(d_model=128, heads=4, d_ff=256, max_distance=4)
    alone = [encode(model, [source])[0][1][0] for source in SOURCES]
    for chosen, memory, lengths in encode(model, SOURCES):
        assert memory.shape[1] % 16 == 0
        for i, one, length in zip(chosen, memory, lengths, strict=True):
            assert length == len(SOURCES[i]) + 1
            assert torch.equal(one, alone[i])


def test_padding_of_the_source_is_not_seen():
    model = made(max_distance=4)
    with torch.inference_mode():
        (_, memory, (length,)) = encode(model, [SOURCES[0]])[0]
        tokens = torch.tensor([[*SOURCES[0], END]])
        expected = model.encode(tokens, tokens != PAD)
    torch.testing.assert_close(memory[:, :length], expected, rtol=1e-5, atol=1e-5)
