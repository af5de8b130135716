"""The graphs that are exported: in PyTorch, to many digits, they are the model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from edgewise.data.vocabulary import BEGIN, END, PAD
from edgewise.decoding.alignment import attention_to_source
from edgewise.decoding.sources import seen
from edgewise.interop.onnx_graph import DecoderGraph, EncoderGraph, as_columns, as_rows
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

VOCABULARY = 31
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 3, "d_ff": 40}
MODES = {
    "per head": {"max_distance": 3},
    "per layer": {"max_distance": 3, "tables": "layer"},
    "shared": {"max_distance": 3, "tables": "shared"},
    "keys only": {"max_distance": 3, "on_values": False},
    "values only": {"max_distance": 3, "on_keys": False},
    "one label": {"max_distance": 0},
    "distance beyond all": {"max_distance": 60},
    "sinusoids": {"max_distance": None, "sinusoids": True},
    "both": {"max_distance": 3, "sinusoids": True},
    "none": {"max_distance": None},
    "norm before": {"max_distance": 3, "norm": "pre"},
    "as other toolkits": {
        **{"max_distance": 3, "bias": True, "activation": "swish", "norm": "pre"},
        **{"share_embeddings": False, "norm_epsilon": 1e-3, "source_end": False},
    },
}
SOURCE = torch.tensor(
    [
        [7, 8, 9, 10, 11, END, PAD],
        [20, 21, END, PAD, PAD, PAD, PAD],
        [*range(5, 11), END],
        [END, PAD, PAD, PAD, PAD, PAD, PAD],
    ]
)


def made(**changes: object) -> Transformer:
    model = Transformer(ModelSettings(**SIZES | {"dropout": 0.3} | changes), VOCABULARY)
    initialise(model, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


@given(n=st.integers(1, 9), seed=st.integers(0, 9))
def test_diagonals_as_columns_and_back(n: int, seed: int) -> None:
    x = torch.randn(2, 3, n, n, generator=torch.Generator().manual_seed(seed))
    columns = as_columns(x)
    assert columns.shape == (2, 3, n, 2 * n - 1)
    for i in range(n):
        for distance in range(-(n - 1), n):
            j = i + distance
            expected = x[:, :, i, j] if 0 <= j < n else torch.zeros(2, 3)
            assert torch.equal(columns[:, :, i, distance + n - 1], expected)
    assert torch.equal(as_rows(columns), x)


@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_steps_with_reorder_equal_the_whole_model(mode: str) -> None:
    model = made(**MODES[mode])
    mask, *memory = EncoderGraph(model)(SOURCE)
    assert torch.equal(mask, seen(SOURCE, model.settings))
    batch, slots, random = len(SOURCE), 2, torch.Generator().manual_seed(3)
    decoder = DecoderGraph(model)
    past = [torch.zeros(batch * slots, 3, 0, 8).double() for _ in range(2 * 3)]
    tokens = torch.full((batch, slots), BEGIN)
    parents = torch.arange(batch * slots).view(batch, slots)
    prefixes = [[[BEGIN]] * slots for _ in range(batch)]
    for _ in range(6):
        found, attention, *past = decoder(tokens, parents, mask, memory, past)
        assert found.shape == (batch, slots, VOCABULARY)
        for i in range(batch):
            expected, weights = in_full(model, SOURCE[i : i + 1], prefixes[i])
            torch.testing.assert_close(found[i], expected, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(attention[i], weights, rtol=1e-9, atol=1e-9)
        slot = torch.randint(0, slots, (batch, slots), generator=random)
        parents = torch.arange(batch)[:, None] * slots + slot
        tokens = torch.randint(4, VOCABULARY, (batch, slots), generator=random)
        prefixes = [
            [[*prefixes[i][slot[i, s]], int(tokens[i, s])] for s in range(slots)]
            for i in range(batch)
        ]


def in_full(model: Transformer, source: Tensor, targets: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Log-probabilities and attention after the last token of each, by the whole forward pass."""
    many = source.expand(len(targets), -1)
    mask = seen(many, model.settings)
    logits = model(many, mask, torch.tensor(targets))[:, -1]
    # Shifted, since a position's target is the token after it.
    after = torch.tensor([[*target[1:], END] for target in targets])
    return logits.log_softmax(-1), attention_to_source(model, many, after)[:, -1]
