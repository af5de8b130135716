"""PyTorch's private functions: every call to one is in this file.

Where `has_flash` is false, PyTorch does not have the fused CPU kernels as they are called here, and
the `blockwise` backend is not available.

Undocumented behaviour of the fused kernels (each has a test in tests/unit/test_private.py):
- a last dimension that is not contiguous gives wrong numbers;
- no queries or no keys crashes the process;
- a mask must be additive and of the query's dtype;
- a row whose keys are all masked has log-sum-exp 0, not -inf;
- a row of NaN queries may give zeros with log-sum-exp 0 if there are fewer keys than a vector
  register of the CPU holds.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils import _pytree

from edgewise.attention.shapes import Keys, Mask, Queries

LogSumExp = Float[Tensor, "batch head n_query"]
QKV = tuple[Queries, Keys, Keys]
# Attention over some keys, and the log-sum-exp to merge it with that over others.
PartialAttention = tuple[Queries, LogSumExp]
Bias = Float[Tensor, "#batch #head #n_query #n_key"]
Rows = Float[Tensor, "*rows n_key"]
Flatten = Callable[[Any], tuple[list[Any], Any]]
Unflatten = Callable[[Iterable[Any], Any], Any]

VECTOR = 16  # float32 values in the widest register, of AVX-512


def _has_arguments(name: str, arguments: str, overload: str = "default") -> bool:
    """Return whether PyTorch has this operator with these arguments."""
    op = getattr(getattr(torch.ops.aten, name, None), overload, None)
    return op is not None and [x.name for x in op._schema.arguments] == arguments.split()


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
_OPTIONS = "dropout_p is_causal attn_mask scale"
HAS_FLASH = _has_arguments(_FLASH, f"query key value {_OPTIONS}") and _has_arguments(
    f"{_FLASH}_backward", f"grad_out query key value out logsumexp {_OPTIONS}"
)
HAS_SOFTMAX_BACKWARD = _has_arguments(
    "_softmax_backward_data", "grad_output output dim input_dtype grad_input", overload="out"
)


def has_flash(device: torch.device) -> bool:
    """Return whether the fused kernels exist for tensors of this device."""
    return HAS_FLASH and device.type == "cpu"


def additive(mask: Mask | None, dtype: torch.dtype) -> Bias | None:
    """Return 0 where a query may attend to a key and -inf elsewhere, to be added to logits."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def flash(inputs: QKV, mask: Mask | None, scale: float) -> PartialAttention:
    """Return plain attention and its log-sum-exp, -inf where a query may attend to nothing."""
    assert all(x.shape[2] > 0 for x in inputs)
    bias = additive(mask, inputs[0].dtype)
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *inputs, 0.0, False, attn_mask=bias, scale=scale
    )
    if mask is not None:
        empty = ~mask.any(-1)
        logsumexp = logsumexp.masked_fill(empty, -math.inf)
        output = output.masked_fill(empty[..., None], 0.0)
    return output, logsumexp


def flash_backward(
    grad: Queries, inputs: QKV, result: PartialAttention, mask: Mask | None, scale: float
) -> QKV:
    """Return the gradients of query, key and value for weights exp(logits - logsumexp).

    With the output and log-sum-exp of a softmax over more keys, the result is the share of these
    keys in its gradient.
    """
    assert all(x.shape[2] > 0 for x in inputs)
    bias = additive(mask, grad.dtype)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    grads: QKV = backward(grad, *inputs, *result, 0.0, False, attn_mask=bias, scale=scale)
    return grads


def softmax_backward_(grad: Rows, weights: Rows) -> None:
    """Replace the gradient of softmax weights by that of their logits, in place."""
    if HAS_SOFTMAX_BACKWARD:
        torch.ops.aten._softmax_backward_data.out(grad, weights, -1, weights.dtype, grad_input=grad)
    else:
        grad.sub_((grad * weights).sum(-1, keepdim=True)).mul_(weights)


def register_pytree(cls: type[Any], flatten: Flatten, unflatten: Unflatten) -> None:
    """Register a class as a pytree; the context is (names of the leaves, (name, value) pairs)."""

    def flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
        leaves, context = flatten(x)
        return list(zip(map(_pytree.GetAttrKey, context[0]), leaves, strict=True)), context

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
        to_dumpable_context=lambda context: context,
        from_dumpable_context=lambda dumped: (tuple(dumped[0]), tuple(map(tuple, dumped[1]))),
    )


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is an ordinary one: not fake, and not of a user's subclass."""
    return type(x) is Tensor or type(x) is nn.Parameter


def is_transforming() -> bool:
    """Return whether a transformation of torch.func is active: grad, vmap, jacrev, …"""
    return torch._C._are_functorch_transforms_active()


def at_least(size: int, limit: int) -> bool:
    """Return whether a size reaches a limit.

    torch.compile compiles again beyond the limit. A program of torch.export must not depend on it:
    there a size that may be on either side counts as below.
    """
    if torch.compiler.is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(size >= limit)
    return size >= limit


def is_batched(x: Tensor) -> bool:
    """Return whether a gradient is one of a batch: is_grads_batched, vectorised Jacobians."""
    functorch = torch._C._functorch
    return functorch.is_legacy_batchedtensor(x) or functorch.is_batchedtensor(x)
