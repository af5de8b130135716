"""Relative self-attention by diagonal, for translation lengths: no gather and no scatter.

A distance is a diagonal of the matrix of edges, and diagonals are columns of the same memory read
with rows one longer (or shorter). So the products of all queries with all labels are one large
product [batch * head * n, n_label], read into the logits with a shorter row, and the weights read
with a longer row are their sums by label. What such a read takes from a neighbouring row is set to
zero bit by bit, since a product with zero would let a NaN through.

As in `blockwise`, the first row of a table is subtracted from the others, so that the edges left
of the diagonals need nothing; those to the right of them, the `corner`, have the last label. Under
causal masking the labels of later keys are not computed at all.

Tensors are [outer, inner, n, d_head]: batch and head, or head and batch where each head has a
table of its own, so that the rows that share a table lie together.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Logits that are computed at a time, so that they stay in the cache.
CHUNK = 2**19
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Diagonals(NamedTuple):
    """Where the labels lie, for sequences of length n."""

    n: int
    reach: int  # the clipping distance, or the longest there is
    n_column: int  # labels with a column: distances 1 - reach to reach, or to 0 if causal
    in_band: Int[Tensor, "n n"]  # all bits where an edge has one of these labels
    in_range: Int[Tensor, "n n_column"]  # all bits where a label has an edge
    size: int  # rows with edges right of the band
    corner: Float[Tensor, "size size"]  # 1 for these edges, in the square around them

    @property
    def margin(self) -> int:
        """Entries that may be read before the first row and after the last."""
        return self.n + self.n_column


def diagonals(n: int, max_distance: int, causal: bool, dtype: torch.dtype) -> Diagonals:
    """The same for each call with these sizes: kept, unless it is large."""
    make = _kept_diagonals if n <= 256 else _diagonals
    return make(n, max_distance, causal, dtype)


def _diagonals(n: int, max_distance: int, causal: bool, dtype: torch.dtype) -> Diagonals:
    reach = min(max_distance, n - 1)
    n_column = reach if causal else 2 * reach
    distance = torch.arange(n) - torch.arange(n)[:, None]
    in_band = (distance > -reach) & (distance <= (0 if causal else reach))
    key = torch.arange(n)[:, None] + torch.arange(n_column) - reach + 1
    in_range = (key >= 0) & (key < n)
    size = 0 if causal else max(0, n - reach - 1)
    corner = (distance[:size, n - size :] > reach).to(dtype)
    bits = BITS[dtype]
    return Diagonals(n, reach, n_column, -in_band.to(bits), -in_range.to(bits), size, corner)


_kept_diagonals = functools.lru_cache(maxsize=64)(_diagonals)


def split(
    table: Float[Tensor, "*outer n_label d_head"], max_distance: int, place: Diagonals
) -> tuple[Float[Tensor, "*outer 1 d_head"], Float[Tensor, "*outer n_column d_head"]]:
    """The first label that sequences of this length use, and the others less the first."""
    start = max_distance - place.reach
    first = table.narrow(-2, start, 1)
    return first, table.narrow(-2, start + 1, place.n_column) - first


@functools.lru_cache(maxsize=1024)
def n_pieces(rows: int) -> int:
    """In how many products to multiply rows with a table: with some 2,048 each they go fastest."""
    return next(x for x in range(max(1, rows // 2048), 0, -1) if rows % x == 0)


def in_pieces(
    table: Float[Tensor, "*outer labels d_head"], query: Tensor, parts: int
) -> tuple[Float[Tensor, "pieces labels d_head"], ...]:
    """For each part the table of each piece of its rows."""
    outer, inner, n, _ = query.shape
    if table.dim() == 2:
        return (table.expand(n_pieces(outer // parts * inner * n), -1, -1),) * parts
    return table.repeat_interleave(n_pieces(inner * n), 0).chunk(parts)


def gradient(
    table: Tensor,
    of_rest: list[Float[Tensor, "pieces n_column d_head"]],
    of_all: Float[Tensor, "*head d_head"] | None,
    max_distance: int,
    place: Diagonals,
) -> Tensor:
    """The gradient of a table, from those of the differences and that of all labels alike."""
    heads, start = table.shape[:-2], max_distance - place.reach
    result = torch.zeros_like(table)
    rest = result.narrow(-2, start + 1, place.n_column)
    pieces = of_rest[0] if len(of_rest) == 1 else torch.cat(of_rest)
    torch.sum(pieces.view(*heads, -1, *rest.shape[-2:]), -3, out=rest)
    first = result.select(-2, start)
    torch.sum(rest, -2, out=first).neg_()
    if of_all is not None:
        first += of_all
    return result


def padded(shape: tuple[int, ...], margin: int, like: Tensor) -> Tensor:
    """Memory for a tensor that may be read `margin` entries before and after."""
    size = math.prod(shape)
    return like.new_empty(size + 2 * margin).narrow(0, margin, size).view(shape)


def spread(
    x: Float[Tensor, "group n d_head"],
    table: Float[Tensor, "pieces n_column d_head"],
    place: Diagonals,
    by_label: Float[Tensor, "group n n_column"],
    out: Float[Tensor, "group n n"],
) -> None:
    """x_i a_ij^T for every edge, less the first label's; `by_label` is memory with a margin."""
    n, n_column, size = place.n, place.n_column, place.size
    pieces, _, d_head = table.shape
    rows, by_piece = x.view(pieces, -1, d_head), by_label.view(pieces, -1, n_column)
    torch.bmm(rows, table.mT, out=by_piece)
    bits = BITS[x.dtype]
    start = by_label.storage_offset() + place.reach - 1
    shorter = (n * n_column, n_column - 1, 1)
    read = by_label.view(bits).as_strided(out.shape, shorter, start)
    torch.bitwise_and(read, place.in_band, out=out.view(bits))
    if size:
        last = by_label[:, :size, -1:]
        out[:, :size, -size:].addcmul_(last, place.corner)


def sums(
    weights: Float[Tensor, "group n n"],
    place: Diagonals,
    out: Float[Tensor, "group n n_column"],
) -> None:
    """The weights of each query by label; `weights` has a margin."""
    n, bits, size = place.n, BITS[weights.dtype], place.size
    start = weights.storage_offset() - place.reach + 1
    longer = (n * n, n + 1, 1)
    read = weights.view(bits).as_strided(out.shape, longer, start)
    torch.bitwise_and(read, place.in_range, out=out.view(bits))
    if size:
        corner = weights[:, :size, -size:] * place.corner
        out[:, :size, -1] += corner.sum(-1)


def n_chunks(query: Tensor) -> int:
    """In how many equal parts to compute, so that a part's logits fit the cache."""
    outer, inner, n, _ = query.shape
    wanted = min(outer, -(-outer * inner * n * n // CHUNK))
    if wanted == 1:
        return 1
    return next((c for c in range(wanted, min(outer, 2 * wanted) + 1) if outer % c == 0), 1)


def divided(
    x: Float[Tensor, "outer inner n width"], parts: int
) -> tuple[Float[Tensor, "group n width"], ...]:
    """What each part computes."""
    groups = x.flatten(0, 1)
    return (groups,) if parts == 1 else groups.chunk(parts)


def fake(query: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Empty tensors like those that `forward` returns."""
    outer, inner, n, _ = query.shape
    max_distance, causal, *_ = inputs[5:]
    reach = min(max_distance, n - 1)
    weights = query.new_empty(outer, inner, n, n)
    n_column = reach if causal else 2 * reach
    by_label = query.new_empty(outer, inner, n, n_column)
    rest = (
        query.new_empty(0) if x is None else x.new_empty(*x.shape[:-2], n_column, x.shape[-1])
        for x in inputs[2:4]
    )
    return torch.empty_like(query), weights, by_label, *rest


def forward(
    query: Float[Tensor, "outer inner n d_head"],
    key: Float[Tensor, "outer inner n d_head"],
    value: Float[Tensor, "outer inner n d_head"],
    key_table: Float[Tensor, "*outer n_label d_head"] | None,
    value_table: Float[Tensor, "*outer n_label d_head"] | None,
    allowed: Bool[Tensor, "#outer #inner #n #n"] | None,
    max_distance: int,
    causal: bool,
    scale: float,
    dead: bool,
) -> tuple[Tensor, ...]:
    """The output and, for the backward pass, the weights, their sums by label, the split tables.

    `allowed` includes causality; `dead` says that it may leave a query with nothing.
    """
    outer, inner, n, d_head = query.shape
    place = diagonals(n, max_distance, causal, query.dtype)
    parts = n_chunks(query)
    key_rest = value_rest = query.new_empty(0)
    if key_table is not None:
        # Products that add to what is there are slower with a factor: it goes into the table.
        key_rest = split(key_table, max_distance, place)[1].mul_(scale)
        keys = in_pieces(key_rest, query, parts)
    if value_table is not None:
        first, value_rest = split(value_table, max_distance, place)
        firsts, values = (in_pieces(x, query, parts) for x in (first, value_rest))
    output = torch.empty_like(query)
    weights = padded((outer, inner, n, n), place.margin, query)
    by_label = padded((outer, inner, n, place.n_column), place.margin, query)
    hidden = None if allowed is None else (~allowed).expand(outer, inner, n, n)
    each = [divided(x, parts) for x in (query, key, value, output, weights, by_label)]
    for i, (q, k, v, z, w, b) in enumerate(zip(*each, strict=True)):
        if key_table is not None:
            spread(q, keys[i], place, b, out=w)
        w.baddbmm_(q, k.mT, beta=0 if key_table is None else 1, alpha=scale)
        if hidden is not None:
            edges, these = w.view(-1, inner, n, n), hidden.chunk(parts)[i]
            edges.masked_fill_(these, -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None and dead:
            edges.masked_fill_(these, 0.0)
        if value_table is None:
            torch.bmm(w, v, out=z)
        else:
            sums(w, place, out=b)
            pieces = len(values[i])
            rows, by_piece = z.view(pieces, -1, d_head), b.view(pieces, -1, place.n_column)
            torch.baddbmm(firsts[i], by_piece, values[i], out=rows)
            z.baddbmm_(w, v)
    if value_table is not None and dead and allowed is not None:
        output *= allowed.any(-1, keepdim=True)
    return output, weights, by_label, key_rest, value_rest


def backward(
    query: Float[Tensor, "outer inner n d_head"],
    key: Float[Tensor, "outer inner n d_head"],
    value: Float[Tensor, "outer inner n d_head"],
    key_table: Float[Tensor, "*outer n_label d_head"] | None,
    value_table: Float[Tensor, "*outer n_label d_head"] | None,
    allowed: Bool[Tensor, "#outer #inner #n #n"] | None,
    max_distance: int,
    causal: bool,
    scale: float,
    dead: bool,
    grad: Float[Tensor, "outer inner n d_head"],
    weights: Float[Tensor, "outer inner n n"],
    by_label: Float[Tensor, "outer inner n n_column"],
    key_rest: Float[Tensor, "..."],
    value_rest: Float[Tensor, "..."],
) -> tuple[Tensor, ...]:
    """The gradients of query, key, value and the two tables (empty for one that is not there)."""
    outer, inner, n, d_head = query.shape
    place = diagonals(n, max_distance, causal, query.dtype)
    parts = n_chunks(query)
    if dead and allowed is not None:
        grad = grad * allowed.any(-1, keepdim=True)
    if key_table is not None:
        keys = in_pieces(key_rest, query, parts)
    if value_table is not None:
        values = in_pieces(value_rest, query, parts)
    grads = [torch.empty_like(x) for x in (query, key, value)]
    of_keys: list[Tensor] = []
    of_values: list[Tensor] = []
    of_all: list[Tensor] = []
    groups = outer * inner // parts
    grad_w = padded((groups, n, n), place.margin, query)
    b = padded((groups, n, place.n_column), place.margin, query)
    each = [
        divided(x, parts) for x in (query, key, value, grad.contiguous(), *grads, weights, by_label)
    ]
    for i, (q, k, v, g, grad_q, grad_k, grad_v, w, own) in enumerate(zip(*each, strict=True)):
        if value_table is not None:
            spread(g, values[i], place, b, out=grad_w)
        grad_w.baddbmm_(g, v.mT, beta=0 if value_table is None else 1)
        if value_table is not None:
            rows = g.view(len(values[i]), -1, d_head)
            of_values.append(torch.bmm(own.view(len(rows), -1, place.n_column).mT, rows))
            of_all.append(rows.sum(1))
        torch.bmm(w.mT, g, out=grad_v)
        torch._softmax_backward_data(grad_w, w, -1, w.dtype, grad_input=grad_w)
        if key_table is not None:
            sums(grad_w, place, out=b)
            rows = q.view(len(keys[i]), -1, d_head)
            by_piece = b.view(len(rows), -1, place.n_column)
            torch.bmm(by_piece, keys[i], out=grad_q.view(rows.shape))
            of_keys.append(torch.bmm(by_piece.mT, rows))
        grad_q.baddbmm_(grad_w, k, beta=0 if key_table is None else 1, alpha=scale)
        grad_k.baddbmm_(grad_w.mT, q, beta=0, alpha=scale)
    of_key_table = of_value_table = query.new_empty(0)
    if key_table is not None:
        of_key_table = gradient(key_table, of_keys, None, max_distance, place).mul_(scale)
    if value_table is not None:
        # All weights of a query sum to one.
        all_ = torch.cat(of_all).view(*value_table.shape[:-2], -1, d_head).sum(-2)
        of_value_table = gradient(value_table, of_values, all_, max_distance, place)
    return *grads, of_key_table, of_value_table
