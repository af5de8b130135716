"""Every path computes the definition: values and all gradients, in float64."""

import pytest
import torch
from conftest import METHODS, OFFSET_METHODS, Inputs, assert_same
from hypothesis import given
from hypothesis import strategies as st

from edgewise import RelativePositions
from edgewise.attention import label_passes
from edgewise.attention.backends.blockwise import window


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks of 4 queries, so that short sequences have every kind of tail and window."""
    monkeypatch.setattr(window, "BLOCKS", {False: 4, True: 4})


def mask_of(kind: str, batch: int, heads: int, n_query: int, n_key: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, n_key + 1, (batch,), generator=generator)
    columns = torch.arange(n_key)
    if kind == "padding on the right":
        return (columns < lengths[:, None])[:, None, None, :]
    if kind == "padding on the left":
        return (columns >= n_key - lengths[:, None])[:, None, None, :]
    if kind == "random":
        return torch.rand(batch, heads, n_query, n_key, generator=generator) < 0.6
    if kind == "the same for all":
        return torch.rand(n_query, n_key, generator=generator) < 0.6
    if kind == "whole rows":
        return torch.rand(batch, 1, n_query, 1, generator=generator) < 0.6
    return None


MASKS = (
    *("none", "padding on the right", "padding on the left"),
    *("random", "the same for all", "whole rows"),
)


@st.composite
def cases(draw: st.DrawFn, method: str = "gather") -> Inputs:
    """Inputs that the backend supports."""
    n_query = n_key = draw(st.integers(1, 18), label="n_query")
    offset, least = 0, int(method in ("diagonal", "blockwise"))
    if method != "diagonal":
        n_key = draw(st.one_of(st.just(n_query), st.integers(1, 18)), label="n_key")
        offset = draw(st.one_of(st.just(0), st.integers(-5, 22)), label="offset")
    near = st.sampled_from([max(least, k) for k in (0, 1, 2, n_key - 1, n_key, n_key + 7)])
    max_distance = draw(near, label="max_distance")
    batch, heads = draw(st.sampled_from([(1, 1), (2, 3), (3, 2)]), label="batch, heads")
    on = draw(
        st.sampled_from([(True, True), (True, False), (False, True)]), label="on keys, values"
    )
    seed = draw(st.integers(0, 999), label="seed")
    kind = draw(st.sampled_from(MASKS), label="mask")
    return Inputs(
        *(batch, heads, n_query, n_key),
        d_head=draw(st.sampled_from([1, 5, 8]), label="d_head"),
        relations=RelativePositions(max_distance, query_offset=offset),
        on_keys=on[0],
        on_values=on[1],
        per_head=draw(st.booleans(), label="per head"),
        mask=mask_of(kind, batch, heads, n_query, n_key, seed),
        causal=draw(st.booleans(), label="causal"),
        scale=draw(st.sampled_from([None, 0.3]), label="scale"),
        seed=seed,
    )


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@given(data=st.data())
def test_every_backend_equals_the_definition(method: str, data: st.DataObject) -> None:
    inputs = data.draw(cases(method))
    assert_same(inputs.results(method), inputs.results("reference"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 18, 32, 33])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_lengths_near_the_clipping_distance_equal_the_definition(
    method: str, n: int, more: int, causal: bool, per_head: bool
) -> None:
    positions = RelativePositions(max(1, n + more))
    inputs = Inputs(2, 3, n, n, 4, positions, causal=causal, per_head=per_head, seed=n)
    assert_same(inputs.results(method), inputs.results("reference"))


@given(inputs=cases(), data=st.data())
def test_an_offset_for_each_sentence_equals_the_definition(
    inputs: Inputs, data: st.DataObject
) -> None:
    batch = inputs.grad.shape[0]
    offsets = data.draw(st.lists(st.integers(-5, 22), min_size=batch, max_size=batch))
    distance = inputs.relations.max_distance
    inputs.relations = RelativePositions(distance, query_offset=torch.tensor(offsets))
    assert_same(inputs.results("gather"), inputs.results("reference"))
    assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.parametrize("method", [*OFFSET_METHODS, "reference"])
def test_one_offset_for_all_equals_an_offset_for_each(method: str) -> None:
    each = Inputs(2, 3, 5, 9, 4, RelativePositions(2, query_offset=torch.tensor([3, 3])))
    one = Inputs(2, 3, 5, 9, 4, RelativePositions(2, query_offset=3))
    assert_same(one.results(method), each.results("reference"))


@pytest.mark.parametrize("method", OFFSET_METHODS)
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_their_real_size_equal_the_definition(
    method: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    inputs = Inputs(1, 2, 821, 797, 3, RelativePositions(16, query_offset=-7), causal=causal)
    assert_same(inputs.results(method), inputs.results("reference"))


@pytest.mark.parametrize(
    ("method", "n_query", "n_key"),
    [
        ("diagonal", 0, 0),
        *((x, *n) for x in (*OFFSET_METHODS, "auto") for n in ((0, 4), (4, 0), (0, 0))),
    ],
)
def test_no_queries_or_no_keys_give_zeros_of_the_right_shape(
    method: str, n_query: int, n_key: int
) -> None:
    results = Inputs(2, 3, n_query, n_key, 5, RelativePositions(2)).results(method)
    torch.testing.assert_close(results["output"], torch.zeros(2, 3, n_query, 5).double())
    for name, grad in results.items():
        assert not grad.any(), name


@pytest.mark.parametrize("method", METHODS)
def test_inputs_need_not_be_contiguous(method: str) -> None:
    inputs = Inputs(2, 3, 11, 11, 4, RelativePositions(2))
    expected = inputs.results("reference")
    inputs.tensors = {
        name: x.transpose(-1, -2).contiguous().transpose(-1, -2)
        for name, x in inputs.tensors.items()
    }
    inputs.grad = inputs.grad.transpose(1, 2).contiguous().transpose(1, 2)
    assert inputs.tensors["query"].stride(-1) != 1
    assert_same(inputs.results(method), expected)


@pytest.mark.parametrize("method", [*METHODS, "reference", "auto"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [11, 300])
def test_nan_in_a_query_stays_in_its_own_row(method: str, causal: bool, n: int) -> None:
    inputs = Inputs(2, 3, n, n, 4, RelativePositions(2), causal=causal, dtype=torch.float32)
    inputs.tensors["query"][1, 2, 6] = torch.nan
    is_nan = inputs.results(method)["output"].isnan()
    assert is_nan[1, 2, 6].all()
    is_nan[1, 2, 6] = False
    assert not is_nan.any()


def test_nan_in_a_query_is_seen_without_relations_too() -> None:
    inputs = Inputs(1, 2, 5, 5, 8, None, dtype=torch.float32)
    inputs.tensors["query"][0, 1, 2] = torch.nan
    is_nan = inputs.output().isnan()
    assert is_nan[0, 1, 2].all()
    assert is_nan.sum() == 8


@pytest.mark.parametrize("method", ["gather", "reference"])
def test_dropout_drops_the_weights_of_both_terms_alike(method: str) -> None:
    # All weights are 1/40, all values and edge values 1: the output counts the weights kept.
    inputs = Inputs(2, 3, 40, 40, 4, RelativePositions(3), scale=0.0)
    for name in ("value", "value_table"):
        inputs.tensors[name] = torch.ones_like(inputs.tensors[name])
    torch.manual_seed(1)
    kept = inputs.output(method, dropout=0.25) * (1 - 0.25) * 40 / 2
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    torch.testing.assert_close(kept, kept[..., :1].expand_as(kept))
    assert 0.70 < kept.mean() / 40 < 0.80


def test_gradients_under_dropout_are_those_of_finite_differences() -> None:
    inputs = Inputs(2, 2, 5, 5, 3, RelativePositions(2))
    leaves = [x.requires_grad_() for x in inputs.tensors.values()]

    def dropped(*tensors: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)  # the same weights are dropped each time
        named = dict(zip(inputs.tensors, tensors, strict=True))
        return inputs.output("gather", dropout=0.4, **named)

    assert torch.autograd.gradcheck(dropped, leaves)


def test_a_batch_computed_in_parts_equals_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    for batch, limit in ((6, 2), (6, 5), (7, 2), (5, 1)):
        monkeypatch.setattr(label_passes, "CHUNK", limit * 3 * 9 * 9)
        for per_head in (False, True):
            inputs = Inputs(batch, 3, 9, 9, 4, RelativePositions(2), per_head=per_head)
            inputs.mask = mask_of("padding on the right", batch, 3, 9, 9, seed=1)
            assert_same(inputs.results("diagonal"), inputs.results("reference"))
