"""The paths with a backward pass of their own, as operators of PyTorch with autograd.

An operator is opaque to torch.compile, which calls it as it is and learns from its `fake` the
shapes that it returns. Without the compiler its function is called directly: the dispatch of an
operator of one's own costs as much as twenty of PyTorch's.
"""

import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from edgewise.attention import blockwise, by_diagonal, by_label
from edgewise.attention.window import join_table, pose
from edgewise.errors import EdgewiseError

_TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor? key_table, Tensor? value_table, Tensor? mask"
)
# The compiler keeps graphs on disk by the names of operators and does not see that one changed.
_RELEASE = re.sub(r"\W", "_", version("edgewise"))


def operator(
    name: str,
    tensors: str,
    numbers: str,
    forward: Callable[..., tuple[Tensor, ...]],
    backward: Callable[..., tuple[Tensor, ...]],
    fake: Callable[..., tuple[Tensor, ...]],
    *,
    n_differentiable: int = 5,
    n_results: int = 1,
    keeps_output: bool = False,
) -> Callable[..., Tensor]:
    """A function of some tensors, the first of them differentiable, and of some numbers.

    tensors, numbers: their parts of the operator's schema.
    forward: returns n_results tensors, the output first.
    backward: takes the inputs, the gradient of the output and what forward returned, the output
        itself only if keeps_output; it returns the gradients of the differentiable inputs, an
        empty tensor for one that is None.
    fake: empty tensors like those of forward.
    """
    n_tensors = tensors.count(",") + 1
    first_kept = 0 if keeps_output else 1
    saved = "".join(f", Tensor result_{i}" for i in range(first_kept, n_results))
    n_none = n_tensors - n_differentiable + numbers.count(",") + 1

    def fake_gradients(*arguments: Any) -> tuple[Tensor, ...]:
        first, given = arguments[0], arguments[:n_differentiable]
        return tuple(first.new_empty(0) if x is None else torch.empty_like(x) for x in given)

    def laid_out(*arguments: Any) -> tuple[Tensor, ...]:
        """The gradients as the fake ones are laid out in memory, on which the compiler relies."""
        found = backward(*arguments)
        inputs = (x if x is None else x.to("meta") for x in arguments[:n_differentiable])
        promised = fake_gradients(*inputs)
        return tuple(
            x if x.stride() == y.stride() else torch.empty_like(y, device=x.device).copy_(x)
            for x, y in zip(found, promised, strict=True)
        )

    def declared(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Any]:
        """A schema has no tuple of one."""
        return function if n_results > 1 else lambda *arguments: function(*arguments)[0]

    forward_op = torch.library.custom_op(
        f"edgewise::{name}_{_RELEASE}",
        declared(forward),
        mutates_args=(),
        schema=f"({tensors}, {numbers}) -> ({', '.join(['Tensor'] * n_results)})",
    )
    forward_op.register_fake(declared(fake))
    backward_op = torch.library.custom_op(
        f"edgewise::{name}_backward_{_RELEASE}",
        laid_out,
        mutates_args=(),
        schema=f"({tensors}, {numbers}, Tensor grad{saved}) "
        f"-> ({', '.join(['Tensor'] * n_differentiable)})",
    )
    backward_op.register_fake(fake_gradients)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Tensor:
            if torch.compiler.is_compiling():
                results = forward_op(*arguments)
                results = results if n_results > 1 else (results,)
            else:
                results = forward(*arguments)
            ctx.save_for_backward(*arguments[:n_tensors], *results[first_kept:])
            ctx.numbers = arguments[n_tensors:]
            output: Tensor = results[0]
            return output

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            compiling = torch.compiler.is_compiling()
            if torch.is_grad_enabled() and not compiling:
                # Else the graph that was asked for would be missing, and nothing would say so.
                raise EdgewiseError(
                    "this path of relation_attention has first derivatives only; "
                    "create_graph=True needs method='reference'"
                )
            saved = ctx.saved_tensors  # once: checkpointing allows no more
            inputs, kept = saved[:n_tensors], saved[n_tensors:]
            run = backward_op if compiling else backward
            grads = run(*inputs, *ctx.numbers, grad, *kept)
            given = (
                None if x is None else of_x
                for x, of_x in zip(inputs[:n_differentiable], grads, strict=True)
            )
            return *given, *[None] * n_none

    differentiable: Callable[..., Tensor] = Differentiable.apply

    def apply(*arguments: Any) -> Tensor:
        if torch.compiler.is_compiling():
            # The compiler refuses a tensor that is given twice, as in attention(x, x, x).
            seen: list[Any] = []
            for x in arguments:
                again = isinstance(x, Tensor) and any(x is other for other in seen)
                seen.append(x.view_as(x) if again else x)
            arguments = tuple(seen)
        return differentiable(*arguments)

    return apply


def _blockwise_forward(*inputs: Any) -> tuple[Tensor, ...]:
    result, right = blockwise.forward(pose(*inputs))
    return *result, *right


def _blockwise_fake(query: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    result, right = blockwise.buffers(query, causal=inputs[-2])
    return *result, *right


def _blockwise_backward(*arguments: Any) -> tuple[Tensor, ...]:
    *inputs, grad, output, logsumexp, right_output, right_logsumexp = arguments
    query, _, _, key_table, value_table, *_ = inputs
    grads = blockwise.backward(
        pose(*inputs),
        grad,
        blockwise.Merged(output, logsumexp),
        blockwise.Merged(right_output, right_logsumexp),
    )
    tables = (
        query.new_empty(0) if of_table is None else join_table(table, query.shape[1], of_table)
        for table, of_table in ((key_table, grads.keys), (value_table, grads.values))
    )
    return grads.query, grads.key, grads.value, *tables


_blockwise = operator(
    "blockwise",
    _TENSORS,
    "int max_distance, int offset, bool causal, float scale",
    _blockwise_forward,
    _blockwise_backward,
    _blockwise_fake,
    n_results=4,
    keeps_output=True,
)

_by_diagonal = operator(
    "by_diagonal",
    _TENSORS,
    "int max_distance, bool causal, float scale, bool dead",
    by_diagonal.forward,
    by_diagonal.backward,
    by_diagonal.fake,
    n_results=5,
)

_by_label = operator(
    "by_label",
    f"{_TENSORS}, Tensor labels",
    "bool unlabelled, float scale",
    by_label.forward,
    by_label.backward,
    by_label.fake,
    n_results=3,
)


def blockwise_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
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
    output = _blockwise(
        *(x.to(work) for x in (query, key, value)),
        *(None if x is None else x.to(work) for x in (key_table, value_table)),
        *(mask, max_distance, offset, causal, scale),
    )
    return output.to(query.dtype)


def diagonal_attention(
    query: Float[Tensor, "batch head n d_head"],
    key: Float[Tensor, "batch head n d_head"],
    value: Float[Tensor, "batch head n d_head"],
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    allowed: Bool[Tensor, "#batch #head #n #n"] | None,
    max_distance: int,
    causal: bool,
    scale: float,
    dead: bool,
) -> Float[Tensor, "batch head n d_head"]:
    """Equations 3 and 5 for relative positions in one sequence of 2 or more.

    `allowed` includes causality; `dead` says that it may leave a query with nothing to attend.
    """
    work = torch.promote_types(query.dtype, torch.float32)
    tables = (key_table, value_table)
    # A table for each head: its rows are to lie together, so heads come first.
    per_head = any(table is not None and table.dim() == 3 for table in tables)
    ordered = (x.transpose(0, 1) if per_head else x for x in (query, key, value))
    if per_head:
        allowed = None if allowed is None else allowed.transpose(0, 1)
    output = _by_diagonal(
        *(x.to(work).contiguous() for x in ordered),
        *(None if x is None else x.to(work) for x in tables),
        *(allowed, max_distance, causal, scale, dead),
    ).to(query.dtype)
    return output.transpose(0, 1) if per_head else output


def label_attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*key_head n_key_label d_head"] | None,
    value_table: Float[Tensor, "*value_head n_value_label d_head"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    labels: Int64[Tensor, "*batch n_query n_key"],
    unlabelled: bool,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 5 for a label of every edge, some -1 if `unlabelled`.

    `allowed` includes causality.
    """
    work = torch.promote_types(query.dtype, torch.float32)
    output = _by_label(
        *(x.to(work) for x in (query, key, value)),
        *(None if x is None else x.to(work) for x in (key_table, value_table)),
        *(allowed, labels, unlabelled, scale),
    )
    return output.to(query.dtype)
