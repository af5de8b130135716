"""The decoder step by step: equal to the full forward pass, and blind to its batch."""

import pytest
import torch
from selection import long_except
from step_models import MODES, VOCABULARY, made
from torch import Tensor

from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.decoding.fused import FusedDecoder
from edgewise.decoding.steps import Steps, encode
from edgewise.model.transformer import Transformer

SOURCES = [[7, 8, 9, 10, 11], [20, 21], list(range(5, 45)), [30] * 16]

pytestmark = pytest.mark.usefixtures("one_thread")


def in_full(model: Transformer, source: list[int], targets: list[list[int]]) -> Tensor:
    """The decoder's output after the last token of each, by the whole forward pass."""
    memory = model.encode(torch.tensor([[*source, END]]), None)
    return model.decode(torch.tensor(targets), memory.expand(len(targets), -1, -1), None)[:, -1]


def walk(
    model: Transformer,
    sources: list[list[int]],
    slots: int,
    steps: int,
    seed: int,
    begun: int = 0,
):
    """Random hypotheses that divide and die: what a step gave, and what the full pass gives.

    begun: so many tokens are computed in one pass.
    """
    random = torch.Generator().manual_seed(seed)
    state = Steps(FusedDecoder(model), sources, slots)
    rows = list(range(len(sources)))
    given = torch.randint(4, VOCABULARY, (len(rows), begun + 1), generator=random)
    given[:, 0] = BEGIN
    if begun:
        outputs = state.prefill(given[:, :-1])[:, :begun]
        for row, i in enumerate(rows):
            memory = model.encode(torch.tensor([[*sources[i], END]]), None)
            yield outputs[row], model.decode(given[row : row + 1, :-1], memory, None)[0]
    tokens = given[:, -1:].expand(-1, slots)
    prefixes = [[row] * slots for row in given.tolist()]
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


@pytest.mark.parametrize("mode", long_except(["per head", "shared", "as other toolkits"], MODES))
@torch.inference_mode()
def test_in_float32_steps_equal_the_full_forward_to_1e_5(mode):
    for given, expected in walk(made(**MODES[mode]), SOURCES, slots=2, steps=8, seed=2):
        torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_steps_after_a_prefix_in_one_pass_equal_the_full_forward(mode, slots):
    # Longer than the clipping distance, and not a multiple of 16.
    model = made(**MODES[mode]).double()
    for given, expected in walk(model, SOURCES[:2], slots=slots, steps=3, seed=5, begun=19):
        torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_a_fork_repeats_a_sentence_and_leaves_the_state_as_it_was():
    model = made(**MODES["per head"]).double()
    random = torch.Generator().manual_seed(6)
    state = Steps(FusedDecoder(model), SOURCES[:2], 2)
    given = torch.randint(4, VOCABULARY, (2, 7), generator=random)
    given[:, 0] = BEGIN
    state.prefill(given[:, :-1])
    state(given[:, -1:].expand(-1, 2), None)

    def steps(state: Steps, sentences: list[int]) -> None:
        hypotheses = [given[i].tolist() for i in sentences for _ in range(2)]
        for _ in range(3):
            tokens = torch.randint(4, VOCABULARY, (len(sentences), 2), generator=random)
            for hypothesis, token in zip(hypotheses, tokens.flatten().tolist(), strict=True):
                hypothesis.append(token)
            x = state(tokens, None)
            for row, i in enumerate(sentences):
                targets = hypotheses[2 * row : 2 * row + 2]
                expected = in_full(model, SOURCES[i], targets)
                torch.testing.assert_close(x[2 * row : 2 * row + 2], expected, rtol=1e-9, atol=1e-9)

    for chosen in ([1, 1, 0, 1, 1], [0], [0, 1]):
        steps(state.fork(torch.tensor(chosen)), chosen)


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


@pytest.mark.parametrize("mode", ["per head", "sinusoids"])
@pytest.mark.parametrize("n", [5, 16, 40])
@torch.inference_mode()
def test_a_prefix_is_computed_alike_bit_for_bit_whatever_its_batch(mode, n):
    model = made(d_model=128, heads=4, d_ff=256, **MODES[mode])
    decoder = FusedDecoder(model)
    many = [[4 + (7 * i + j) % 40 for j in range(17 + i)] for i in range(9)]  # one padded length
    tokens = torch.randint(4, VOCABULARY, (9, n + 2), generator=torch.Generator().manual_seed(4))

    def run(chosen: list[int]) -> Tensor:
        state = Steps(decoder, [many[i] for i in chosen], 3)
        outputs = [state.prefill(tokens[chosen, :n])[:, :n]]
        for step in (n, n + 1):
            x = state(tokens[chosen, step, None].expand(-1, 3), None)
            outputs.append(x[: 3 * len(chosen)].view(len(chosen), 3, -1))
        return torch.cat(outputs, dim=1)

    together = run(list(range(9)))
    for chosen in ([0], [8], [3, 7], [5, 4, 3, 2, 1, 0]):
        assert torch.equal(run(chosen), together[chosen])


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
