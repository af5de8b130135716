"""Custom operators: a forward and a backward pass written by hand, registered with PyTorch.

Eager code calls the functions through `torch.autograd.Function`: dispatching a custom operator
takes as long as twenty operators of PyTorch. The compiler and `torch.export` record the operator,
which has fake and autograd implementations. Under torch.func, for second derivatives and for
batched gradients, an equivalent composition of PyTorch's operators is differentiated instead.

Names are kept over releases, so that exported programs go on working. The version at the end of a
name is increased if its schema, or the shapes or strides of its results change: compiled graphs are
cached by name. tests/unit/test_ops.py has a list of all schemas.
"""

import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from edgewise.attention.private import is_batched, is_plain, is_transforming

Results = tuple[Tensor, ...]


def register(
    name: str,
    arguments_type: type[Any],
    *,
    forward: Callable[[Any], Results],
    backward: Callable[..., Results],
    fake: Callable[[Any], Results],
    composite: Callable[[Any], Tensor],
    n_differentiable: int = 5,
    n_results: int = 1,
    saves_output: bool = False,
) -> Callable[[Any], Tensor]:
    """Return a differentiable function of one argument, a tuple of type `arguments_type`.

    name: of the operator, `edgewise::name`, with its version at the end.
    arguments_type: a NamedTuple with tensors first, n_differentiable of them differentiable, then
        numbers.
    forward: return n_results tensors, the output first.
    backward: take the arguments, the gradient of the output and the results of forward, the output
        only if saves_output; return the gradients of the differentiable tensors, with an empty
        tensor for one that is None.
    fake: return empty tensors like those of forward.
    composite: return the output, computed by operators of PyTorch.
    """
    schema, n_tensors = _schema(arguments_type)
    n_arguments = len(arguments_type._fields)
    first_saved = 0 if saves_output else 1

    def fake_gradients(*inputs: Any) -> Results:
        first, differentiable = inputs[0], inputs[:n_differentiable]
        return tuple(
            first.new_empty(0) if x is None else torch.empty_like(x) for x in differentiable
        )

    def run_forward(*inputs: Any) -> Any:
        results = forward(arguments_type(*inputs))
        return results if n_results > 1 else results[0]  # a schema cannot have a tuple of one

    def run_fake(*inputs: Any) -> Any:
        results = fake(arguments_type(*inputs))
        return results if n_results > 1 else results[0]

    def run_backward(*inputs: Any) -> Results:
        return backward(arguments_type(*inputs[:n_arguments]), *inputs[n_arguments:])

    def run_backward_as_declared(*inputs: Any) -> Results:
        """Return the gradients with the strides of the fake ones, on which the compiler relies."""
        grads = run_backward(*inputs)
        on_meta = (x if x is None else x.to("meta") for x in inputs[:n_differentiable])
        return tuple(
            x if x.stride() == y.stride() else torch.empty_like(y, device=x.device).copy_(x)
            for x, y in zip(grads, fake_gradients(*on_meta), strict=True)
        )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if n_results > 1 else (output,)
        ctx.save_for_backward(*inputs[:n_tensors], *results[first_saved:])
        ctx.numbers = inputs[n_tensors:]
        if n_results > 1:
            ctx.mark_non_differentiable(*results[1:])

    def gradients(run: Callable[..., Results], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: activation checkpointing allows no more
        tensors, results = saved[:n_tensors], saved[n_tensors:]
        grads = run(*tensors, *ctx.numbers, grad, *results)
        differentiable = zip(tensors[:n_differentiable], grads, strict=True)
        used = (None if x is None else grad_x for x, grad_x in differentiable)
        return *used, *[None] * (n_arguments - n_differentiable)

    forward_op = torch.library.custom_op(
        f"edgewise::{name}",
        run_forward,
        mutates_args=(),
        schema=f"({schema}) -> ({', '.join(['Tensor'] * n_results)})",
    )
    saved_schema = "".join(f", Tensor result_{i}" for i in range(first_saved, n_results))
    backward_op = torch.library.custom_op(
        f"edgewise::{name}_backward",
        run_backward_as_declared,
        mutates_args=(),
        schema=f"({schema}, Tensor grad{saved_schema}) "
        f"-> ({', '.join(['Tensor'] * n_differentiable)})",
    )
    forward_op.register_fake(run_fake)
    backward_op.register_fake(fake_gradients)
    forward_op.register_autograd(
        lambda ctx, grad, *_: gradients(backward_op, ctx, grad), setup_context=save
    )

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            results = forward(arguments_type(*inputs))
            ctx.save_for_backward(*inputs[:n_tensors], *results[first_saved:])
            ctx.numbers = inputs[n_tensors:]
            return results[0]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled() or is_batched(grad):
                tensors = ctx.saved_tensors[:n_tensors]
                grads = autograd_gradients(
                    lambda *x: composite(arguments_type(*x, *ctx.numbers)), tensors, grad
                )
                return *grads, *[None] * len(ctx.numbers)
            return gradients(run_backward, ctx, grad)

    eager: Callable[..., Tensor] = Eager.apply

    def apply(arguments: Any) -> Tensor:
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and is_transforming():
            return composite(arguments)
        is_eager = not is_compiling and all(x is None or is_plain(x) for x in arguments[:n_tensors])
        if is_eager:
            return eager(*arguments)
        results = forward_op(*arguments)
        output: Tensor = results[0] if n_results > 1 else results
        return output

    return apply


def _schema(arguments_type: type[Any]) -> tuple[str, int]:
    """Return the schema of the arguments, and how many are tensors."""
    numbers = {int: "SymInt", bool: "bool", float: "float"}
    hints = typing.get_type_hints(arguments_type)
    types = [
        numbers.get(hint) or ("Tensor?" if type(None) in typing.get_args(hint) else "Tensor")
        for hint in hints.values()
    ]
    schema = ", ".join(f"{kind} {name}" for kind, name in zip(types, hints, strict=True))
    return schema, sum(kind.startswith("Tensor") for kind in types)


def autograd_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of a composite function: differentiable, also for batched `grad`.

    There is one for each floating-point tensor, and None for others.
    """
    with torch.enable_grad():
        # Views, since one tensor may be given several times.
        leaves = [
            (x.view_as(x) if x.requires_grad else x.detach().requires_grad_()) if is_float(x) else x
            for x in tensors
        ]
        used = [x for x in leaves if is_float(x)]
        options = {"create_graph": True, "materialize_grads": True}
        grads = iter(torch.autograd.grad(function(*leaves), used, grad, **options))
    return [next(grads) if is_float(x) else None for x in leaves]


def is_float(x: Tensor | None) -> TypeGuard[Tensor]:
    return x is not None and x.is_floating_point()
