"""Decoding step by step gives what the whole sequence gives at once."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from torch import Tensor

from edgewise import RelationAttention
from edgewise.errors import ArgumentError


def layer_of(**settings: Any) -> RelationAttention:
    torch.manual_seed(0)
    return RelationAttention(12, 3, **settings).double()


def words(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def in_steps(
    layer: RelationAttention,
    x: Tensor,
    steps: list[int],
    max_length: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    state, outputs = layer.new_state(x.shape[0], max_length), []
    for part in x.split(steps, dim=1):
        seen = None if mask is None else mask[:, : state.length + part.shape[1]]
        outputs.append(layer(part, mask=seen, state=state))
    assert state.length == x.shape[1]
    return torch.cat(outputs, dim=1)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


VARIANTS = {
    "both tables": {"max_distance": 3},
    "a table for each head": {"max_distance": 3, "per_head": True},
    "keys only": {"max_distance": 3, "on_values": False},
    "values only": {"max_distance": 3, "on_keys": False},
    "one label": {"max_distance": 0},
    "distance beyond the sequence": {"max_distance": 40},
    "plain": {},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("max_length", [None, 17, 64])
@torch.no_grad()
def test_a_prompt_and_single_steps_equal_the_whole(variant: str, max_length: int | None) -> None:
    layer, x = layer_of(**VARIANTS[variant]), words(2, 17, 12)
    whole = layer(x, causal=True)
    assert_equal(in_steps(layer, x, [8] + [1] * 9, max_length), whole)
    assert_equal(in_steps(layer, x, [1] * 17, max_length), whole)


@st.composite
def compositions(draw: st.DrawFn) -> list[int]:
    return draw(st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any))


@pytest.mark.parametrize("variant", ["both tables", "a table for each head", "plain"])
@given(steps=compositions(), spare=st.one_of(st.none(), st.integers(0, 3)))
@torch.no_grad()
def test_steps_of_any_sizes_equal_the_whole(
    variant: str, steps: list[int], spare: int | None
) -> None:
    layer, x = layer_of(**VARIANTS[variant]), words(2, sum(steps), 12)
    max_length = None if spare is None else sum(steps) + spare
    assert_equal(in_steps(layer, x, steps, max_length), layer(x, causal=True))


@torch.no_grad()
def test_long_sequences_in_steps_equal_the_whole() -> None:
    # Long enough for the blockwise path, in the prompt and in a later step.
    layer, x = layer_of(max_distance=5), words(2, 700, 12)
    assert_equal(in_steps(layer, x, [300, 1, 398, 1]), layer(x, causal=True))


@pytest.mark.parametrize("max_length", [None, 10])
@pytest.mark.parametrize(
    "index",
    [[2, 0, 1], [1, 1, 0], [2], [0, 0, 1, 1, 2], []],
    ids=["permuted", "duplicated", "dropped", "more", "none left"],
)
@torch.no_grad()
def test_reordered_sentences_go_on_as_if_they_had_been_there(
    index: list[int], max_length: int | None
) -> None:
    layer, first = layer_of(max_distance=2), words(3, 6, 12)
    chosen = torch.tensor(index, dtype=torch.int64)
    rest = words(len(index), 4, 12, seed=2)
    state = layer.new_state(3, max_length)
    layer(first, state=state)
    state.reorder(chosen)
    assert state.batch == len(index)
    output = torch.cat([layer(token, state=state) for token in rest.split([1, 3], dim=1)], dim=1)
    whole = torch.cat([first[chosen], rest], dim=1)
    assert_equal(output, layer(whole, causal=True)[:, 6:])


@torch.no_grad()
def test_a_beam_that_reorders_at_each_step_equals_the_whole() -> None:
    layer, x = layer_of(max_distance=2), words(4, 1, 12)
    state, whole = layer.new_state(4), x
    layer(x, state=state)
    for step in range(6):
        index = torch.randint(0, 4, (4,), generator=torch.Generator().manual_seed(step))
        token = words(4, 1, 12, seed=10 + step)
        state.reorder(index.int() if step % 2 else index)
        whole = torch.cat([whole[index], token], dim=1)
        assert_equal(layer(token, state=state), layer(whole, causal=True)[:, -1:])


@pytest.mark.parametrize("variant", ["both tables", "a table for each head", "one label"])
@pytest.mark.parametrize("max_length", [None, 11])
def test_gradients_through_steps_are_those_of_the_whole(
    variant: str, max_length: int | None
) -> None:
    layer, x = layer_of(**VARIANTS[variant]), words(2, 9, 12).requires_grad_()
    names = ["x", *(name for name, _ in layer.named_parameters())]
    leaves = [x, *layer.parameters()]
    weights = words(2, 9, 12, seed=2)
    whole = torch.autograd.grad((layer(x, causal=True) * weights).sum(), leaves)
    stepped = in_steps(layer, x, [4, 1, 4], max_length)
    (stepped * weights).sum().backward()
    for name, leaf, expected in zip(names, leaves, whole, strict=True):
        torch.testing.assert_close(
            leaf.grad, expected, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("variant", ["both tables", "plain", "one label"])
@torch.no_grad()
def test_prompts_padded_on_the_left_go_on_like_those_without(variant: str) -> None:
    layer, lengths, n = layer_of(**VARIANTS[variant]), (5, 2, 4), 9
    x = words(3, n, 12)
    mask = torch.arange(n) >= 5 - torch.tensor(lengths)[:, None]
    together = in_steps(layer, x, [5, 1, 3], mask=mask)
    assert_equal(together, layer(x, mask=mask, causal=True))
    for i, length in enumerate(lengths):
        alone = layer(x[i : i + 1, 5 - length :], causal=True)
        assert_equal(together[i : i + 1, 5 - length :], alone)


@torch.no_grad()
def test_a_sequence_is_causal_with_a_state_even_if_not_asked() -> None:
    layer, x = layer_of(max_distance=2), words(2, 7, 12)
    assert_equal(layer(x, causal=False, state=layer.new_state(2)), layer(x, causal=True))


@pytest.mark.parametrize("max_length", [None, 9])
@torch.no_grad()
def test_under_autocast_an_empty_state_takes_the_lower_precision(max_length: int | None) -> None:
    layer, x = layer_of(max_distance=2).float(), words(2, 9, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stepped = in_steps(layer, x, [4, 1, 3, 1], max_length)
        whole = layer(x, causal=True)
    assert stepped.dtype == torch.bfloat16
    torch.testing.assert_close(stepped.float(), whole.float(), rtol=0.02, atol=0.02)


@torch.no_grad()
def test_two_states_of_one_layer_know_nothing_of_each_other() -> None:
    layer, x, y = layer_of(max_distance=2), words(2, 6, 12), words(3, 6, 12, seed=2)
    states = layer.new_state(2), layer.new_state(3)
    for i in range(6):
        of_x, of_y = (
            layer(t[:, i : i + 1], state=state) for t, state in zip((x, y), states, strict=True)
        )
    assert_equal(of_x, layer(x, causal=True)[:, -1:])
    assert_equal(of_y, layer(y, causal=True)[:, -1:])


@pytest.mark.parametrize("max_length", [None, 11])
def test_gradients_flow_through_steps_where_keys_and_values_are_frozen(
    max_length: int | None,
) -> None:
    layer, x = layer_of(max_distance=2), words(2, 9, 12)
    for frozen in (layer.key, layer.value):
        frozen.weight.requires_grad_(False)
    leaves = [layer.query.weight, layer.key_table, layer.value_table]
    whole = torch.autograd.grad(layer(x, causal=True).square().sum(), leaves)
    stepped = torch.autograd.grad(in_steps(layer, x, [4, 1, 4], max_length).square().sum(), leaves)
    for actual, expected in zip(stepped, whole, strict=True):
        assert_equal(actual, expected)


@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 1, 3)])
@torch.no_grad()
def test_a_refused_mask_leaves_the_state_as_it_was(shape: tuple[int, ...]) -> None:
    layer, x = layer_of(max_distance=2), words(2, 4, 12)
    state = layer.new_state(2)
    layer(x[:, :3], state=state)
    with raises(ArgumentError, "mask", list(shape)):
        layer(x[:, 3:], mask=torch.ones(shape, dtype=torch.bool), state=state)
    assert state.length == 3
    assert_equal(layer(x[:, 3:], state=state), layer(x, causal=True)[:, 3:])


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_call_that_fails_leaves_the_state_as_it_was(has_gradients: bool) -> None:
    layer, x = layer_of(max_distance=3), words(2, 6, 12)
    with torch.set_grad_enabled(has_gradients):
        state = layer.new_state(2)
        first = layer(x[:, :4], state=state)
        layer.method = "diagonal"  # it computes whole sequences only
        with pytest.raises(ArgumentError):
            layer(x[:, 4:], state=state)
        layer.method = "auto"
        second = layer(x[:, 4:], state=state)
        assert_equal(torch.cat((first, second), dim=1), layer(x, causal=True))


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_truncated_state_goes_on_from_where_it_ends(has_gradients: bool) -> None:
    layer, x = layer_of(max_distance=3), words(2, 6, 12)
    with torch.set_grad_enabled(has_gradients):
        state = layer.new_state(2)
        layer(torch.cat((x[:, :4], words(2, 3, 12, seed=2)), dim=1), state=state)
        state.truncate(4)
        assert_equal(layer(x[:, 4:], state=state), layer(x, causal=True)[:, 4:])
    with raises(ArgumentError, "length", 6, 7):
        state.truncate(7)


@pytest.mark.unhooked  # torch.compile does not go through a hook
def test_sequences_are_reordered_inside_a_compiled_graph() -> None:
    layer, x = layer_of(max_distance=3), words(2, 6, 12)

    def step(x: Tensor, index: Tensor) -> Tensor:
        state = layer.new_state(2, max_length=8)
        layer(x[:, :4], state=state)
        state.reorder(index)
        return layer(x[index, 4:], state=state)

    index = torch.tensor([1, 0])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_equal(compiled(x, index), step(x, index))


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("max_length", [None, 8])
def test_the_state_of_another_layer_is_refused(has_gradients: bool, max_length: int | None) -> None:
    layer, other = layer_of(max_distance=3), RelationAttention(12, 2, max_distance=3).double()
    x = words(2, 6, 12)
    with torch.set_grad_enabled(has_gradients):
        state = layer.new_state(2, max_length)
        layer(x[:, :4], state=state)
        with raises(ArgumentError, "state", 3, 4, 2, 6):
            other(x[:, 4:], state=state)
        assert_equal(layer(x[:, 4:], state=state), layer(x, causal=True)[:, 4:])
