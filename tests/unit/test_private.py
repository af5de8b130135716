"""What PyTorch's fused operator does without saying so, and what our use of it makes of that."""

import math
import signal
import subprocess
import sys

import pytest
import torch
from conftest import Inputs, assert_same
from torch import Tensor

from edgewise import RelativePositions
from edgewise.attention import private
from edgewise.attention.composite import masked_softmax

pytestmark = pytest.mark.skipif(not private.HAS_FLASH, reason="this PyTorch has other operators")

SCALE = 0.4


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator)


def inputs_of(n_query: int = 5, n_key: int = 7, d_head: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (n_query, n_key, n_key)
    query, key, value = (random(2, 3, n, d_head, seed=i) for i, n in enumerate(sizes))
    return query, key, value


def raw(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=bias, scale=SCALE
    )


def masked() -> Tensor:
    """A mask with one row that may attend nothing."""
    mask = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(9)) < 0.6
    mask[..., 0] = True
    mask[1, 2, 3] = False
    return mask


def column_major(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("with_mask", [False, True])
def test_output_and_logsumexp_are_those_of_the_logits(with_mask: bool) -> None:
    query, key, value = inputs_of()
    logits, mask = SCALE * query @ key.mT, None
    if with_mask:
        mask = masked()
        logits = logits.masked_fill(~mask, -math.inf)
    output, logsumexp = private.flash((query, key, value), mask, SCALE)
    torch.testing.assert_close(logsumexp, logits.logsumexp(-1))
    torch.testing.assert_close(output, logits.softmax(-1).nan_to_num() @ value)


def test_a_broadcast_mask_is_taken() -> None:
    query, key, value = inputs_of()
    for mask in (masked()[:1, :1], masked()[:, :1, :1], masked()[:1, :, :, :1]):
        output, logsumexp = private.flash((query, key, value), mask, SCALE)
        logits = (SCALE * query @ key.mT).masked_fill(~mask, -math.inf)
        torch.testing.assert_close(logsumexp, logits.logsumexp(-1))
        torch.testing.assert_close(output, logits.softmax(-1).nan_to_num() @ value)


def test_a_fully_masked_row_has_logsumexp_zero_in_the_operator_and_minus_infinity_here() -> None:
    mask = masked()
    bias = private.additive(mask, torch.float64)
    assert raw(*inputs_of(), bias)[1][1, 2, 3] == 0
    output, logsumexp = private.flash(inputs_of(), mask, SCALE)
    assert logsumexp[1, 2, 3] == -math.inf
    assert not output[1, 2, 3].any()
    assert logsumexp.isfinite().sum() == logsumexp.numel() - 1


def test_a_last_dimension_that_is_not_contiguous_gives_other_numbers_in_the_operator() -> None:
    # Within memory of its own: the operator reads the rows as if their entries lay together.
    query, key, value = inputs_of(7, 7, 7)
    right, wrong = raw(query, key, value)[0], raw(column_major(query), key, value)[0]
    assert not torch.allclose(right, wrong)


@pytest.mark.parametrize("causal", [False, True])
def test_a_last_dimension_that_is_not_contiguous_is_right_here(causal: bool) -> None:
    inputs = Inputs(2, 3, 400, 400, 5, RelativePositions(4), causal=causal)
    expected = inputs.results("blockwise")
    inputs.tensors = {name: column_major(x) for name, x in inputs.tensors.items()}
    inputs.grad = column_major(inputs.grad)
    assert_same(inputs.results("blockwise"), expected)


def test_a_row_of_nan_is_lost_in_the_operator() -> None:
    query, key, value = inputs_of(n_key=3)  # fewer keys than a vector register holds
    query[1, 2, 4] = torch.nan
    output, logsumexp = raw(query, key, value)
    assert not output[1, 2, 4].any()
    assert logsumexp[1, 2, 4] == 0


@pytest.mark.parametrize("relations", [RelativePositions(2), RelativePositions(0), None])
@pytest.mark.parametrize("n", [5, 15, 16, 17, 40, 300])
def test_a_row_of_nan_is_seen_here(relations: RelativePositions | None, n: int) -> None:
    method = "sdpa" if relations is None or relations.max_distance == 0 else "blockwise"
    inputs = Inputs(2, 3, n, n, 8, relations, dtype=torch.float32)
    inputs.tensors["query"][1, 2, 4] = torch.nan
    is_nan = inputs.output(method).isnan()
    assert is_nan[1, 2, 4].all()
    assert is_nan.sum() == 8


@pytest.mark.parametrize(("n_query", "n_key"), [(0, 4), (4, 0)])
def test_nothing_to_compute_kills_the_operator_s_process_and_is_zeros_here(
    n_query: int, n_key: int
) -> None:
    code = (
        f"import torch; q = torch.ones(1, 1, {n_query}, 8); k = torch.ones(1, 1, {n_key}, 8); "
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert -killed.returncode in set(signal.Signals), killed.stderr
    query, key, value = inputs_of(n_query, n_key)
    with pytest.raises(AssertionError):
        private.flash((query, key, value), None, SCALE)
    for relations in (RelativePositions(2), RelativePositions(0), None):
        output = Inputs(2, 3, n_query, n_key, 8, relations).output()
        assert output.shape == (2, 3, n_query, 8)
        assert not output.any()


@pytest.mark.parametrize("with_mask", [False, True])
def test_gradients_of_some_keys_are_their_share_of_the_whole(with_mask: bool) -> None:
    query, key, value = (x.requires_grad_() for x in inputs_of())
    grad, mask = (
        random(2, 3, 5, 8, seed=5),
        masked() if with_mask else torch.ones(1, 1, 1, 1).bool(),
    )
    logits = SCALE * query @ key.mT
    output = masked_softmax(logits, mask) @ value
    of_query, of_key, of_value = torch.autograd.grad(output, (query, key, value), grad)
    # A query with nothing to attend: +inf makes its weights zero.
    logsumexp = logits.masked_fill(~mask, -math.inf).logsumexp(-1)
    logsumexp = logsumexp.where(logsumexp.isfinite(), math.inf)
    q, k, v, out, lse = (x.detach() for x in (query, key, value, output, logsumexp))
    total = torch.zeros_like(q)
    for keys in (slice(0, 3), slice(3, 7)):
        part = private.flash_backward(
            *(grad, (q, k[:, :, keys], v[:, :, keys]), (out, lse)),
            *(mask[..., keys] if with_mask else None, SCALE),
        )
        total += part[0]
        torch.testing.assert_close(part[1], of_key[:, :, keys])
        torch.testing.assert_close(part[2], of_value[:, :, keys])
    torch.testing.assert_close(total, of_query)


def test_a_schema_that_we_do_not_know_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.has_flash(torch.device("cpu"))
    assert not private.has_flash(torch.device("meta"))
    known = (private._FLASH, f"query key value {private._OPTIONS}")
    assert private._has_arguments(*known)
    monkeypatch.setattr(torch.ops.aten, private._FLASH, torch.ops.aten.add)
    assert not private._has_arguments(*known)
    monkeypatch.setattr(torch.ops.aten, private._FLASH, None)
    assert not private._has_arguments(*known)
