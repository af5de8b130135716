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
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from edgewise.attention.private import is_batched, is_plain, is_transforming

Results = tuple[Tensor, ...]


class Operator:
    """A differentiable function of one or more tuples.

    name: of the operator, `edgewise::name`, with its version at the end.
    kinds: NamedTuples, whose fields together are tensors, the first n_differentiable of them
        differentiable, followed by numbers.
    forward: return n_results tensors, the output first.
    backward: take the arguments, the gradient of the output and the results of forward, the output
        only if saves_output; return the gradients of the differentiable tensors, with an empty
        tensor for one that is None.
    fake: return empty tensors like those of forward.
    composite: return the output, computed by operators of PyTorch.
    """

    def __init__(
        self,
        name: str,
        *kinds: type[Any],
        forward: Callable[..., Results],
        backward: Callable[..., Results],
        fake: Callable[..., Results],
        composite: Callable[..., Tensor],
        n_differentiable: int = 5,
        n_results: int = 1,
        saves_output: bool = False,
    ) -> None:
        self.kinds, self.composite = kinds, composite
        self.forward, self.backward, self.fake = forward, backward, fake
        self.n_differentiable, self.n_results = n_differentiable, n_results
        self.n_arguments = sum(len(kind._fields) for kind in kinds)
        self.first_saved = int(not saves_output)
        schema, self.n_tensors = _schema(kinds)
        self._op = self._register(f"edgewise::{name}", schema)

    def __call__(self, *arguments: Any) -> Tensor:
        if is_transforming():
            return self.composite(*arguments)
        inputs = [x for fields in arguments for x in fields]
        tensors = inputs[: self.n_tensors]
        if not torch.compiler.is_compiling() and all(x is None or is_plain(x) for x in tensors):
            eager: Callable[..., Tensor] = _Eager.apply
            return eager(self, arguments, *inputs)
        results = self._op(*inputs)
        output: Tensor = results[0] if self.n_results > 1 else results
        return output

    def _register(self, name: str, schema: str) -> Callable[..., Any]:
        """Register the operator and its backward pass; return the operator."""
        results = ", ".join(["Tensor"] * self.n_results)
        gradients = ", ".join(["Tensor"] * self.n_differentiable)
        saved = "".join(f", Tensor result_{i}" for i in range(self.first_saved, self.n_results))
        op = torch.library.custom_op(
            name,
            lambda *inputs: self._results(self.forward, inputs),
            mutates_args=(),
            schema=f"({schema}) -> ({results})",
        )
        backward_op = torch.library.custom_op(
            f"{name}_backward",
            self._backward_as_declared,
            mutates_args=(),
            schema=f"({schema}, Tensor grad{saved}) -> ({gradients})",
        )
        op.register_fake(lambda *inputs: self._results(self.fake, inputs))
        backward_op.register_fake(self._fake_gradients)
        op.register_autograd(
            lambda ctx, grad, *_: self.gradients(backward_op, ctx, grad), setup_context=self._save
        )
        return op

    def _results(self, function: Callable[[Any], Results], inputs: tuple[Any, ...]) -> Any:
        """Return the results as the schema has them: it cannot have a tuple of one."""
        results = function(*self.arguments(inputs))
        return results if self.n_results > 1 else results[0]

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the fields of all arguments as tuples of their kinds."""
        fields = iter(inputs)
        return [kind._make(islice(fields, len(kind._fields))) for kind in self.kinds]

    def _fake_gradients(self, *inputs: Any) -> Results:
        empty = inputs[0].new_empty
        differentiable = inputs[: self.n_differentiable]
        return tuple(empty(0) if x is None else torch.empty_like(x) for x in differentiable)

    def _backward_as_declared(self, *inputs: Any) -> Results:
        """Return the gradients with the strides of the fake ones, on which the compiler relies."""
        grads = self.run_backward(*inputs)
        on_meta = (x if x is None else x.to("meta") for x in inputs[: self.n_differentiable])
        return tuple(
            x if x.stride() == y.stride() else torch.empty_like(y, device=x.device).copy_(x)
            for x, y in zip(grads, self._fake_gradients(*on_meta), strict=True)
        )

    def run_backward(self, *inputs: Any) -> Results:
        count = self.n_arguments
        return self.backward(*self.arguments(inputs[:count]), *inputs[count:])

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if self.n_results > 1 else (output,)
        self.save(ctx, inputs, results)
        ctx.mark_non_differentiable(*results[1:])

    def save(self, ctx: Any, inputs: tuple[Any, ...], results: Results) -> None:
        """Save what the backward pass needs."""
        ctx.save_for_backward(*inputs[: self.n_tensors], *results[self.first_saved :])
        ctx.numbers = inputs[self.n_tensors :]

    def gradients(self, run: Callable[..., Results], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Return a gradient for each argument, None for those that have none."""
        saved = ctx.saved_tensors  # read once: activation checkpointing allows no more
        tensors, results = saved[: self.n_tensors], saved[self.n_tensors :]
        grads = run(*tensors, *ctx.numbers, grad, *results)
        differentiable = zip(tensors[: self.n_differentiable], grads, strict=True)
        used = (None if x is None else grad_x for x, grad_x in differentiable)
        return *used, *[None] * (self.n_arguments - self.n_differentiable)

    def composite_gradients(self, ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Return the gradients by differentiating `composite`: differentiable, or batched."""
        with torch.enable_grad():
            tensors = [_with_gradient(x) for x in ctx.saved_tensors[: self.n_tensors]]
            output = self.composite(*self.arguments([*tensors, *ctx.numbers]))
            floats = {i: x for i, x in enumerate(tensors) if x is not None and x.requires_grad}
            options = {"create_graph": True, "materialize_grads": True}
            grads = torch.autograd.grad(output, list(floats.values()), grad, **options)
        found = dict(zip(floats, grads, strict=True))
        return tuple(found.get(i) for i in range(self.n_arguments))


class _Eager(torch.autograd.Function):
    """An operator in eager code."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, arguments: tuple[Any, ...], *inputs: Any) -> Tensor:
        results = operator.forward(*arguments)
        ctx.operator = operator
        operator.save(ctx, inputs, results)
        return results[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        operator: Operator = ctx.operator
        if torch.is_grad_enabled() or is_batched(grad):
            return None, None, *operator.composite_gradients(ctx, grad)
        return None, None, *operator.gradients(operator.run_backward, ctx, grad)


def _schema(kinds: Sequence[type[Any]]) -> tuple[str, int]:
    """Return the schema of the fields, and how many are tensors."""
    numbers = {int: "SymInt", bool: "bool", float: "float"}
    hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}
    types = [
        numbers.get(hint) or ("Tensor?" if type(None) in typing.get_args(hint) else "Tensor")
        for hint in hints.values()
    ]
    schema = ", ".join(f"{kind} {name}" for kind, name in zip(types, hints, strict=True))
    return schema, sum(kind.startswith("Tensor") for kind in types)


def _with_gradient(x: Tensor | None) -> Tensor | None:
    """Return a view of a floating-point tensor, which may be given several times, with gradient."""
    if x is None or not x.is_floating_point():
        return x
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
