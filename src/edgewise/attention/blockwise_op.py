"""The blockwise path as operators of PyTorch, which torch.compile takes whole, with autograd."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgewise.attention import blockwise
from edgewise.attention.blockwise import Merged
from edgewise.attention.window import join_table, pose

_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? key_table, Tensor? value_table, "
    "Tensor? mask, int max_distance, int offset, bool causal, float scale"
)
_N_TENSORS, _N_ARGUMENTS = 6, 10


@torch.library.custom_op(
    "edgewise::blockwise",
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def forward(query: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Output and log-sum-exp, then those of the right tail."""
    result, right = blockwise.forward(pose(blockwise.BLOCK, query, *arguments))
    return *result, *right


@forward.register_fake
def _(query: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    result, right = blockwise.buffers(query, causal=arguments[-2])
    return *result, *right


@torch.library.custom_op(
    "edgewise::blockwise_backward",
    mutates_args=(),
    schema=(
        f"({_ARGUMENTS}, Tensor grad, Tensor output, Tensor logsumexp, Tensor right_output, "
        "Tensor right_logsumexp) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def backward(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """The gradients of the five inputs; an empty tensor for a table that is not there."""
    given, saved = arguments[: _N_ARGUMENTS - 3], arguments[_N_ARGUMENTS - 3 :]
    problem = pose(blockwise.BLOCK, query, key, value, *given)
    grads = blockwise.backward(problem, saved[0], Merged(*saved[1:3]), Merged(*saved[3:5]))
    tables = (
        query.new_empty(0) if grad is None else join_table(table, query.shape[1], grad)
        for table, grad in zip(arguments[:2], (grads.keys, grads.values), strict=True)
    )
    return grads.query, grads.key, grads.value, *tables


@backward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    tables = (query.new_empty(0) if x is None else torch.empty_like(x) for x in arguments[:2])
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), *tables


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        result = forward(*arguments)
        ctx.save_for_backward(*arguments[:_N_TENSORS], *result)
        ctx.numbers = arguments[_N_TENSORS:]
        output: Tensor = result[0]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, saved = ctx.saved_tensors[:_N_TENSORS], ctx.saved_tensors[_N_TENSORS:]
        grads = backward(*inputs, *ctx.numbers, grad, *saved)
        given = (x if table is not None else None for x, table in zip(grads, inputs, strict=False))
        return *given, *(None for _ in range(_N_ARGUMENTS - 5))


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*head n_label d_head"] | None,
    value_table: Float[Tensor, "*head n_label d_head"] | None,
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    max_distance: int,
    offset: int,
    causal: bool,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 5 for relative positions, max_distance 1 or more."""
    # The kernels have half precision too, but are not faster in it without hardware for it (the
    # backward pass of float16 takes ten times as long) and less exact: round once, at the end.
    work = torch.promote_types(query.dtype, torch.float32)
    output: Tensor = _Blockwise.apply(  # type: ignore[no-untyped-call]
        *(x.to(work) for x in (query, key, value)),
        *(None if x is None else x.to(work) for x in (key_table, value_table)),
        *(mask, max_distance, offset, causal, scale),
    )
    return output.to(query.dtype)
