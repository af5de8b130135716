"""PyTorch's fused attention on the CPU, with the log-sum-exp it keeps for itself.

These are private operators, so every call to them is in this file. `available` says whether this
version of PyTorch has them as we know them; where it has not, callers take the dense path.

What the operators do not say (each has a test in tests/unit/test_fused.py):
- a last dimension that is not contiguous gives wrong numbers;
- no queries or no keys kills the process;
- a mask must be additive, of the query's dtype;
- a row whose keys are all masked comes back with log-sum-exp 0, not -inf;
- a row of NaN queries may come back as zeros with log-sum-exp 0, where there are fewer keys than a
  vector register of the CPU holds.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

VECTOR = 16  # float32 values in the widest register, of AVX-512


def _is_known() -> bool:
    """Whether this PyTorch has the operators, with the arguments that this file passes."""
    inputs = ["query", "key", "value"]
    options = ["dropout_p", "is_causal", "attn_mask", "scale"]
    known = {
        "_scaled_dot_product_flash_attention_for_cpu": [*inputs, *options],
        "_scaled_dot_product_flash_attention_for_cpu_backward": [
            *["grad_out", *inputs, "out", "logsumexp"],
            *options,
        ],
    }
    for name, arguments in known.items():
        operator = getattr(torch.ops.aten, name, None)
        if operator is None:
            return False
        if [argument.name for argument in operator.default._schema.arguments] != arguments:
            return False
    return True


KNOWN = _is_known()


def available(device: torch.device) -> bool:
    """Whether the operators exist here for tensors of this device."""
    return KNOWN and device.type == "cpu"


def additive(
    mask: Bool[Tensor, "#batch #head #n_query #n_key"], dtype: torch.dtype
) -> Float[Tensor, "#batch #head #n_query #n_key"]:
    """True = may attend, as the 0 and -inf that the operators add to the logits."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    bias: Float[Tensor, "#batch #head #n_query #n_key"] | None,
    scale: float,
) -> tuple[Float[Tensor, "batch head n_query d_head"], Float[Tensor, "batch head n_query"]]:
    """Plain attention and its log-sum-exp, -inf where a query may attend nothing.

    `bias` is `additive(mask)`: both are given, since callers slice one pair many times.
    """
    assert query.shape[2] > 0 and key.shape[2] > 0
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, False, attn_mask=bias, scale=scale
    )
    if mask is not None:
        dead = ~mask.any(-1)
        logsumexp = logsumexp.masked_fill(dead, -math.inf)
        output = output.masked_fill(dead[..., None], 0.0)
    return output, logsumexp


def attention_backward(
    grad: Float[Tensor, "batch head n_query d_head"],
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    output: Float[Tensor, "batch head n_query d_head"],
    logsumexp: Float[Tensor, "batch head n_query"],
    bias: Float[Tensor, "#batch #head #n_query #n_key"] | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value for softmax weights exp(logits - logsumexp).

    The output and the log-sum-exp need not be this call's own: with those of a softmax over more
    keys, the result is these keys' share of its gradient.
    """
    assert query.shape[2] > 0 and key.shape[2] > 0
    grads: tuple[Tensor, Tensor, Tensor] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(grad, query, key, value, output, logsumexp),
            *(0.0, False),
            attn_mask=bias,
            scale=scale,
        )
    )
    return grads
