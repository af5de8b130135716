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
    corner: Float[Tensor, "corner n"]  # 1 for the edges right of the band, in the rows with any

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
    corner = (distance[:size] > reach).to(dtype)
    bits = BITS[dtype]
    return Diagonals(n, reach, n_column, -in_band.to(bits), -in_range.to(bits), corner)


_kept_diagonals = functools.lru_cache(maxsize=64)(_diagonals)


class Table(NamedTuple):
    """A table for each of the `pieces` that a product is made in."""

    first: Float[Tensor, "pieces 1 d_head"]
    rest: Float[Tensor, "pieces n_column d_head"]


def split(table: Tensor, max_distance: int, place: Diagonals, rows: int) -> Table:
    """The labels that sequences of this length use, as differences to the first of them.

    Products go fastest in pieces of about 2,048 of the `rows` that share a table.
    """
    pieces = next(n for n in range(max(1, rows // 2048), 0, -1) if rows % n == 0)
    used = table[..., max_distance - place.reach :, :]
    first = used[..., :1, :]
    rest = used[..., 1 : 1 + place.n_column, :] - first
    if table.dim() == 2:
        return Table(first.expand(pieces, -1, -1), rest.expand(pieces, -1, -1))
    return Table(first.repeat_interleave(pieces, 0), rest.repeat_interleave(pieces, 0))


def join(like: Tensor, max_distance: int, place: Diagonals, grads: list[Table]) -> Tensor:
    """The gradient of a table: of `first`, what all rows share; of `rest`, each row's own."""
    whole = torch.zeros_like(like)
    used = whole[..., max_distance - place.reach :, :]
    first, rest = (
        torch.cat(x).view(*like.shape[:-2], -1, *x[0].shape[1:]).sum(-3)
        for x in zip(*grads, strict=True)
    )
    used[..., 1 : 1 + place.n_column, :] = rest
    used[..., :1, :] = first - rest.sum(-2, keepdim=True)
    return whole


def padded(shape: tuple[int, ...], margin: int, like: Tensor) -> Tensor:
    """Memory for a tensor that may be read `margin` entries before and after."""
    buffer = like.new_empty(torch.Size(shape).numel() + 2 * margin)
    return buffer[margin : buffer.numel() - margin].view(shape)


def spread(
    x: Float[Tensor, "group n d_head"],
    table: Float[Tensor, "pieces n_column d_head"],
    place: Diagonals,
    by_label: Float[Tensor, "group n n_column"],
    out: Float[Tensor, "group n n"],
) -> None:
    """x_i a_ij^T for every edge, less the first label's; `by_label` is memory with a margin."""
    pieces, n, n_column = len(table), place.n, place.n_column
    by_piece = by_label.view(pieces, -1, n_column)
    torch.bmm(x.reshape(pieces, -1, x.shape[-1]), table.mT, out=by_piece)
    bits = BITS[x.dtype]
    start = by_label.storage_offset() + place.reach - 1
    shorter = (n * n_column, n_column - 1, 1)
    read = by_label.view(bits).as_strided((len(out), n, n), shorter, start)
    torch.bitwise_and(read, place.in_band, out=out.view(bits))
    size = len(place.corner)
    if size:
        out[:, :size].addcmul_(by_label[:, :size, -1:], place.corner)


def sums(
    weights: Float[Tensor, "group n n"],
    place: Diagonals,
    out: Float[Tensor, "group n n_column"],
    total: float | None,
) -> None:
    """The weights of each query by label; `weights` has a margin.

    `total` is what the weights of a query sum to, if that is the same for all queries.
    """
    n, bits, size = place.n, BITS[weights.dtype], len(place.corner)
    start = weights.storage_offset() - place.reach + 1
    longer = (n * n, n + 1, 1)
    read = weights.view(bits).as_strided((len(out), n, place.n_column), longer, start)
    torch.bitwise_and(read, place.in_range, out=out.view(bits))
    if size and total is not None and n <= 2 * place.reach + 1:
        # A query has edges beyond the band on one side at most: these have what the others lack.
        out[:, :size, -1] = total - out[:, :size, :-1].sum(-1)
    elif size:
        out[:, :size, -1] += (weights[:, :size] * place.corner).sum(-1)


def n_chunks(query: Tensor) -> int:
    """In how many equal parts to compute, so that a part's logits fit the cache."""
    outer, inner, n, _ = query.shape
    wanted = min(outer, -(-outer * inner * n * n // CHUNK))
    return next((c for c in range(wanted, min(outer, 2 * wanted) + 1) if outer % c == 0), 1)


def tables_of(
    table: Tensor | None, query: Tensor, max_distance: int, place: Diagonals, parts: int
) -> list[Table | None]:
    """The table of each part."""
    if table is None:
        return [None] * parts
    outer, inner, n, _ = query.shape
    if table.dim() == 2:
        return [split(table, max_distance, place, outer // parts * inner * n)] * parts
    return [split(x, max_distance, place, inner * n) for x in table.chunk(parts)]


def fake(query: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Empty tensors like those that `forward` returns."""
    outer, inner, n, _ = query.shape
    max_distance, causal, *_ = inputs[5:]
    reach = min(max_distance, n - 1)
    parts = n_chunks(query)
    groups = outer * inner // parts
    weights = query.new_empty(parts, groups, n, n)
    by_label = query.new_empty(parts, groups, n, reach if causal else 2 * reach)
    return torch.empty_like(query), weights, by_label


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
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the weights, and their sums by label.

    `allowed` includes causality; `dead` says that it may leave a query with nothing.
    """
    outer, inner, n, d_head = query.shape
    place = diagonals(n, max_distance, causal, query.dtype)
    parts = n_chunks(query)
    groups = outer * inner // parts
    # The scale goes into the table: products that add to what is there are slower with a factor.
    scaled = None if key_table is None else key_table * scale
    tables = (tables_of(x, query, max_distance, place, parts) for x in (scaled, value_table))
    output = torch.empty_like(query)
    weights = padded((parts, groups, n, n), place.margin, query)
    by_label = padded((parts, groups, n, place.n_column), place.margin, query)
    hidden = None if allowed is None else (~allowed).expand(outer, inner, n, n)
    inputs = (x.view(parts, groups, n, d_head) for x in (query, key, value, output))
    for i, (q, k, v, z, keys, values) in enumerate(zip(*inputs, *tables, strict=True)):
        w, b = weights[i], by_label[i]
        if keys is not None:
            spread(q, keys.rest, place, b, out=w)
        w.baddbmm_(q, k.mT, beta=0 if keys is None else 1, alpha=scale)
        if hidden is not None:
            edges, these = w.view(-1, inner, n, n), hidden.chunk(parts)[i]
            edges.masked_fill_(these, -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None and dead:
            edges.masked_fill_(these, 0.0)
        if values is None:
            torch.bmm(w, v, out=z)
        else:
            sums(w, place, out=b, total=None if dead else 1.0)
            pieces = len(values.rest)
            rows, b = z.view(pieces, -1, d_head), b.view(pieces, -1, place.n_column)
            torch.baddbmm(values.first, b, values.rest, out=rows)
            z.baddbmm_(w, v)
    if value_table is not None and dead and allowed is not None:
        output *= allowed.any(-1, keepdim=True)
    return output, weights, by_label


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
    output: Float[Tensor, "outer inner n d_head"],
    weights: Float[Tensor, "chunk group n n"],
    by_label: Float[Tensor, "chunk group n n_column"],
) -> tuple[Tensor, ...]:
    """The gradients of query, key, value and the two tables (empty for one that is not there)."""
    n, d_head = query.shape[2:]
    place = diagonals(n, max_distance, causal, query.dtype)
    parts, groups = weights.shape[:2]
    scaled = None if key_table is None else key_table * scale
    tables = (tables_of(x, query, max_distance, place, parts) for x in (scaled, value_table))
    grad = grad * allowed.any(-1, keepdim=True) if dead and allowed is not None else grad
    grads = [torch.empty_like(x) for x in (query, key, value)]
    key_grads: list[Table] = []
    value_grads: list[Table] = []
    grad_w = padded((groups, n, n), place.margin, query)
    b = padded((groups, n, place.n_column), place.margin, query)
    inputs = (
        x.view(parts, groups, n, d_head) for x in (query, key, value, grad.contiguous(), *grads)
    )
    for i, (q, k, v, g, grad_q, grad_k, grad_v, keys, values) in enumerate(
        zip(*inputs, *tables, strict=True)
    ):
        w = weights[i]
        if values is not None:
            spread(g, values.rest, place, b, out=grad_w)
            pieces = len(values.rest)
            rows, own = g.view(pieces, -1, d_head), by_label[i].view(pieces, -1, place.n_column)
            value_grads.append(Table(rows.sum(1, keepdim=True), torch.bmm(own.mT, rows)))
        grad_w.baddbmm_(g, v.mT, beta=0 if values is None else 1)
        torch.bmm(w.mT, g, out=grad_v)
        torch._softmax_backward_data(grad_w, w, -1, w.dtype, grad_input=grad_w)
        if keys is not None:
            sums(grad_w, place, out=b, total=0.0)
            pieces = len(keys.rest)
            rows, own = q.view(pieces, -1, d_head), b.view(pieces, -1, place.n_column)
            torch.bmm(own, keys.rest, out=grad_q.view(pieces, -1, d_head))
            moved = torch.bmm(own.mT, rows).mul_(scale)
            key_grads.append(Table(torch.zeros_like(moved[:, :1]), moved))
        grad_q.baddbmm_(grad_w, k, beta=0 if keys is None else 1, alpha=scale)
        grad_k.baddbmm_(grad_w.mT, q, beta=0, alpha=scale)
    joined = (
        query.new_empty(0) if table is None else join(table, max_distance, place, of)
        for table, of in ((key_table, key_grads), (value_table, value_grads))
    )
    return *grads, *joined
