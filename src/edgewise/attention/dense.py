"""Relation-aware attention with all weights in memory: for translation lengths, and for dropout.

The softmax and the content terms are those of plain attention; the two relative terms come from
`by_label` or `by_position`, which compute the same. The backward pass is written out: it adds into
what it has where autograd would allocate, and keeps the sums by label of the forward pass.
"""

import math
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

from edgewise.attention import by_label, by_position

# Sentences are computed so many at a time that their logits stay in the cache.
CHUNK = 2**19


def attention(
    query: Float[Tensor, "batch head n_query d_head"],
    key: Float[Tensor, "batch head n_key d_head"],
    value: Float[Tensor, "batch head n_key d_head"],
    key_table: Float[Tensor, "*head n_label d_head"] | None,
    value_table: Float[Tensor, "*head n_label d_head"] | None,
    labels: Int64[Tensor, "*batch n_query n_key"] | None,
    allowed: Bool[Tensor, "#batch #head #n_query #n_key"] | None,
    dropout: float,
    scale: float,
) -> Float[Tensor, "batch head n_query d_head"]:
    """Equations 3 and 5. `labels` may be None where there is no table."""
    # On a CPU, half precision has no fast products: all is computed in float32 and rounded once.
    work = query.dtype if query.is_cuda else torch.promote_types(query.dtype, torch.float32)
    noise = None
    if dropout > 0:
        noise = query.new_empty(*query.shape[:3], key.shape[2], dtype=work)
        noise.bernoulli_(1 - dropout).div_(1 - dropout)
    output: Tensor = _Dense.apply(  # type: ignore[no-untyped-call]
        *(x.to(work).contiguous() for x in (query, key, value)),
        *(None if x is None else x.to(work) for x in (key_table, value_table)),
        *(labels, allowed, noise, scale, _is_short(query, labels)),
    )
    return output.to(query.dtype)


def _is_short(query: Tensor, labels: Tensor | None) -> bool:
    """Whether `by_position` is the faster form: measured by benchmarks/bench_methods.py."""
    if labels is None or labels.dim() == 3:
        return False
    return labels.shape[1] <= 32 and query.shape[0] * query.shape[1] >= 256


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_table: Tensor | None,
        value_table: Tensor | None,
        labels: Tensor | None,
        allowed: Tensor | None,
        noise: Tensor | None,
        scale: float,
        short: bool,
    ) -> Tensor:
        form: ModuleType = by_position if short else by_label
        edge_keys, edge_values = (
            None if table is None or labels is None else form.vectors(table, labels)
            for table in (key_table, value_table)
        )
        ctx.scale, ctx.form = scale, form
        output = torch.empty_like(query)
        weights = query.new_empty(*query.shape[:3], key.shape[2])
        for part in _parts(query, key):
            q, k, v, w, z = (x[part] for x in (query, key, value, weights, output))
            labels_, allowed_, noise_ = (_of(x, part) for x in (labels, allowed, noise))
            _product(q, k.mT, scale, out=w)
            if edge_keys is not None:
                form.add_spread(w, q, edge_keys, labels_, scale)
            if allowed_ is not None:
                w.masked_fill_(~allowed_, -math.inf)
            torch.softmax(w, -1, out=w)
            if allowed_ is not None:
                w.masked_fill_(~allowed_, 0.0)
            dropped = w if noise_ is None else w * noise_
            _product(dropped, v, 1.0, out=z)
            if edge_values is not None and value_table is not None:
                value_sums = form.sums(dropped, labels_, value_table.shape[-2])
                form.add_collected(z, value_sums, edge_values, 1.0)
        ctx.save_for_backward(
            *(query, key, value, key_table, value_table, labels, noise),
            *(edge_keys, edge_values, weights),
        )
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, key_table, value_table, labels, noise, *rest = ctx.saved_tensors
        edge_keys, edge_values, weights = rest
        form, scale = ctx.form, ctx.scale
        grad = grad.contiguous()
        grad_query, grad_key, grad_value = (torch.empty_like(x) for x in (query, key, value))
        grad_key_table = grad_value_table = None
        for part in _parts(query, key):
            q, k, v, w, g = (x[part] for x in (query, key, value, weights, grad))
            labels_, noise_ = (_of(x, part) for x in (labels, noise))
            grad_w = torch.empty_like(w)
            _product(g, v.mT, 1.0, out=grad_w)
            if edge_values is not None:
                form.add_spread(grad_w, g, edge_values, labels_, 1.0)
            dropped = w
            if noise_ is not None:
                dropped = w * noise_
                grad_w *= noise_
            _product(dropped.mT, g, 1.0, out=grad_value[part])
            if edge_values is not None:
                value_sums = form.sums(dropped, labels_, value_table.shape[-2])
                more = form.table_gradient(value_sums, g, value_table, labels_)
                grad_value_table = more if grad_value_table is None else grad_value_table + more

            torch._softmax_backward_data(grad_w, w, -1, w.dtype, grad_input=grad_w)
            _product(grad_w, k, scale, out=grad_query[part])
            _product(grad_w.mT, q, scale, out=grad_key[part])
            if edge_keys is not None:
                key_sums = form.sums(grad_w, labels_, key_table.shape[-2])
                form.add_collected(grad_query[part], key_sums, edge_keys, scale)
                more = form.table_gradient(key_sums, q, key_table, labels_) * scale
                grad_key_table = more if grad_key_table is None else grad_key_table + more
        return (
            *(grad_query, grad_key, grad_value, grad_key_table, grad_value_table),
            *(None, None, None, None, None),
        )


def _parts(query: Tensor, key: Tensor) -> list[slice]:
    batch, heads, n_query, _ = query.shape
    size = max(1, CHUNK // max(1, heads * n_query * key.shape[2]))
    return [slice(start, start + size) for start in range(0, batch, size)]


def _of(x: Tensor | None, part: slice) -> Tensor | None:
    """The sentences of one part, of what may be the same for all."""
    return x if x is None or x.dim() == 2 or x.shape[0] == 1 else x[part]


def _product(
    left: Float[Tensor, "batch head n inner"],
    right: Float[Tensor, "batch head inner m"],
    scale: float,
    out: Float[Tensor, "batch head n m"],
) -> None:
    """scale * left @ right, with no pass of its own for the scale."""
    nothing = left.new_zeros(())
    left, right, out = left.flatten(0, 1), right.flatten(0, 1), out.flatten(0, 1)
    torch.baddbmm(nothing, left, right, beta=0, alpha=scale, out=out)
