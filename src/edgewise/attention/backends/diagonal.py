"""Relative positions in one sequence, for translation lengths: no gather and no scatter.

A distance is a diagonal of the matrix of edges, and diagonals are columns of the same memory read
with rows one longer (or shorter). So the products of all queries with all labels are one large
product [batch * head * n, n_label], read into the logits with a shorter row, and the weights read
with a longer row are their sums by label. What such a read takes from a neighbouring row is set to
zero by its bits, since a product with zero would let a NaN through.

Edges beyond the clipping distance are two triangles, each with one label. Adding one vector to all
rows of the key table changes no weight, and weights sum to one: so the first row can be subtracted
from a table, and the left triangle needs nothing. That loses precision if the row is larger than
the others; then all rows are used as they are. Under causal masking the labels of later keys are
not computed.

Tensors are [outer, inner, n, d_head]: batch and head, or head and batch where tables differ between
heads, so that the rows that share a table are adjacent.
"""

import functools
import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from edgewise.attention import composite, private
from edgewise.attention.backends.base import Backend, why_not_dot_product, why_not_positions
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import register
from edgewise.attention.relations import RelativePositions, has_values

Sequences = Float[Tensor, "outer inner n d_head"]
Groups = Float[Tensor, "group n d_head"]
GroupEdges = Float[Tensor, "group n n"]
GroupLabels = Float[Tensor, "group n n_column"]
PieceTables = Float[Tensor, "pieces n_column d_head"]

CHUNK = 2**19  # logits computed at a time, so that they stay in the cache
PRODUCT_ROWS = 2048  # rows of a product with a table: about as many are the fastest
CACHED_LENGTH = 256
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def supports(inputs: AttentionInputs) -> str | None:
    reason = why_not_positions(inputs) or why_not_dot_product(inputs, dropout=False, cpu_only=True)
    if reason is not None:
        return reason
    relations = inputs.relations
    assert isinstance(relations, RelativePositions)
    if isinstance(relations.query_offset, Tensor) or relations.query_offset != 0:
        return f"needs query_offset=0; got {relations.query_offset}"
    if inputs.n_query != inputs.n_key:
        return f"needs as many queries as keys; got {inputs.n_query} and {inputs.n_key}"
    return None


def run(inputs: AttentionInputs) -> Float[Tensor, "batch head n d_head"]:
    """Return equations 3 and 5; half precision is computed in float32 and rounded once."""
    relations, dtype = inputs.relations, inputs.query.dtype
    assert isinstance(relations, RelativePositions)
    heads_first = inputs.tables_per_head
    allowed = inputs.allowed()
    inputs = inputs.cast(composite.accumulation_dtype(dtype))
    arguments = Arguments(
        ordered(inputs.query, heads_first).contiguous(),
        ordered(inputs.key, heads_first).contiguous(),
        ordered(inputs.value, heads_first).contiguous(),
        *(inputs.key_table, inputs.value_table),
        None if allowed is None else ordered(allowed, heads_first),
        max_distance=relations.max_distance,
        causal=inputs.causal,
        scale=inputs.scale,
        may_be_empty=inputs.mask is not None,
        subtracts_first=can_subtract_first(inputs, relations.max_distance),
    )
    output = _diagonal(arguments)
    return ordered(output.to(dtype), heads_first)


def can_subtract_first(inputs: AttentionInputs, max_distance: int) -> bool:
    """Return whether the left triangle has edges, and no table a first row larger than the others.

    Where values cannot be read, as inside torch.compile, the answer is no.
    """
    if not has_values(inputs.query) or inputs.n_query <= max_distance + 1:
        return False
    for table in (inputs.key_table, inputs.value_table):
        if table is not None:
            others = (-1,) if table.dim() == 2 else (0, -1)
            first, *rest = torch.linalg.vector_norm(table.detach(), math.inf, others).tolist()
            if first > 2 * max(rest):
                return False
    return True


def ordered(x: Tensor, heads_first: bool) -> Tensor:
    """Return [batch, head, …] as [head, batch, …], or the reverse, if heads are to be first."""
    return x.transpose(0, 1) if heads_first else x


class Diagonals(NamedTuple):
    """Where labels are in the matrix of edges of a sequence of length n."""

    n: int
    reach: int  # the clipping distance, or the longest distance there is
    lowest: int  # the distance of the first column: -reach, or one more if it is subtracted
    n_column: int  # labels: distances from the lowest to reach, or to 0 if causal
    in_band: Int[Tensor, "n n"]  # all bits set where an edge has one of these distances
    in_range: Int[Tensor, "n n_column"]  # all bits set where a label has an edge
    size: int  # rows with edges beyond the reach on one side
    left: Float[Tensor, "size size"] | None  # 1 for edges left of the band, in the square around
    right: Float[Tensor, "size size"] | None  # the same right of it; None: not needed

    def rows(self, table: Tensor, max_distance: int) -> Tensor:
        """Return the rows of a table that are columns here."""
        return table.narrow(-2, max_distance + self.lowest, self.n_column)


def extent(n: int, max_distance: int, causal: bool, subtracts_first: bool) -> tuple[int, int]:
    """Return the reach and the number of columns."""
    reach = torch.sym_min(max_distance, n - 1)
    return reach, (reach + 1 if causal else 2 * reach + 1) - subtracts_first


def diagonals(
    n: int, max_distance: int, causal: bool, subtracts_first: bool, dtype: torch.dtype
) -> Diagonals:
    """Return the diagonals for these sizes, from a cache for short sequences."""
    key = (n, min(max_distance, n - 1), causal, subtracts_first, dtype)
    if n > CACHED_LENGTH:
        return _make_diagonals(*key)
    if key not in _CACHE:
        made = _make_diagonals(*key)
        # Under a dispatch mode these may be other than plain tensors, of no use to others.
        if type(made.in_band) is not Tensor:
            return made
        if len(_CACHE) >= 64:
            del _CACHE[next(iter(_CACHE))]
        _CACHE[key] = made
    return _CACHE[key]


_CACHE: dict[tuple[int, int, bool, bool, torch.dtype], Diagonals] = {}


@torch.inference_mode(False)
def _make_diagonals(
    n: int, max_distance: int, causal: bool, subtracts_first: bool, dtype: torch.dtype
) -> Diagonals:
    reach, n_column = extent(n, max_distance, causal, subtracts_first)
    lowest = subtracts_first - reach
    position = torch.arange(n, device="cpu")
    distance = position - position[:, None]
    in_band = (distance >= lowest) & (distance <= (0 if causal else reach))
    key = position[:, None] + torch.arange(n_column, device="cpu") + lowest
    in_range = (key >= 0) & (key < n)
    size = n - reach - 1
    square = torch.ones(size, size, dtype=dtype, device="cpu")
    bits = BITS[dtype]
    return Diagonals(
        *(n, reach, lowest, n_column, -in_band.to(bits), -in_range.to(bits), size),
        left=None if subtracts_first else square.tril(),
        right=None if causal else square.triu(),
    )


@functools.lru_cache(maxsize=1024)
def n_pieces(rows: int) -> int:
    """Return in how many equal pieces to multiply rows with a table."""
    return next(x for x in range(max(1, rows // PRODUCT_ROWS), 0, -1) if rows % x == 0)


def table_gradient(
    table: Tensor,
    pieces: list[PieceTables],
    sums: list[Float[Tensor, "pieces d_head"]],
    place: Diagonals,
    a: "Arguments",
) -> Tensor:
    """Return the gradient of a table from that of each piece.

    sums: of the gradient of a vector that is added to all rows; empty if it is zero.
    """
    result = torch.zeros_like(table)
    rows = place.rows(result, a.max_distance)
    joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    torch.sum(joined.view(*table.shape[:-2], -1, *rows.shape[-2:]), -3, out=rows)
    if a.subtracts_first:
        first = a.first(result).squeeze(-2)
        torch.sum(rows, -2, out=first).neg_()
        if sums:
            first += torch.cat(sums).view(*table.shape[:-2], -1, table.shape[-1]).sum(-2)
    return result


def with_margin(shape: tuple[int, ...], margin: int, like: Tensor) -> Tensor:
    """Return an uninitialised tensor whose memory begins `margin` entries before it and ends as
    many after it.
    """
    size = math.prod(shape)
    return like.new_empty(size + 2 * margin).narrow(0, margin, size).view(shape)


def label_logits(
    x: Groups, table: PieceTables, place: Diagonals, by_label: GroupLabels, out: GroupEdges
) -> None:
    """Write x_i a_ij^T of every edge to `out`, and x_i w_l^T of every label to `by_label`."""
    n, n_column, size = place.n, place.n_column, place.size
    pieces, _, d_head = table.shape
    rows, by_piece = x.view(pieces, -1, d_head), by_label.view(pieces, -1, n_column)
    torch.bmm(rows, table.mT, out=by_piece)
    bits = BITS[x.dtype]
    start = by_label.storage_offset() - place.lowest
    shorter_rows = (n * n_column, n_column - 1, 1)
    read = by_label.view(bits).as_strided(out.shape, shorter_rows, start)
    torch.bitwise_and(read, place.in_band, out=out.view(bits))
    if size and place.left is not None:
        out[:, -size:, :size].addcmul_(by_label[:, -size:, :1], place.left)
    if size and place.right is not None:
        out[:, :size, -size:].addcmul_(by_label[:, :size, -1:], place.right)


def sum_by_label(weights: GroupEdges, place: Diagonals, out: GroupLabels) -> None:
    """Write the weights of each query, summed by label, to `out`; `weights` has a margin."""
    n, bits, size = place.n, BITS[weights.dtype], place.size
    start = weights.storage_offset() + place.lowest
    longer_rows = (n * n, n + 1, 1)
    read = weights.view(bits).as_strided(out.shape, longer_rows, start)
    torch.bitwise_and(read, place.in_range, out=out.view(bits))
    if size and place.left is not None:
        out[:, -size:, 0] += (weights[:, -size:, :size] * place.left).sum(-1)
    if size and place.right is not None:
        out[:, :size, -1] += (weights[:, :size, -size:] * place.right).sum(-1)


def n_parts(query: Tensor) -> int:
    """Return in how many equal parts to compute, so that the logits of one fit the cache."""
    outer, inner, n, _ = query.shape
    wanted = min(outer, -(-outer * inner * n * n // CHUNK))
    if wanted == 1:
        return 1
    return next((c for c in range(wanted, min(outer, 2 * wanted) + 1) if outer % c == 0), 1)


def divided(
    x: Float[Tensor, "outer inner n width"], parts: int
) -> tuple[Float[Tensor, "group n width"], ...]:
    """Return the groups of each part."""
    groups = x.flatten(0, 1)
    return (groups,) if parts == 1 else groups.chunk(parts)


class Arguments(NamedTuple):
    """The arguments of the operator; tables have an outer dimension if they differ between heads.

    allowed: where queries may attend, by mask and causality.
    may_be_empty: some queries may have nothing to attend.
    """

    query: Sequences
    key: Sequences
    value: Sequences
    key_table: Float[Tensor, "*outer n_label d_head"] | None
    value_table: Float[Tensor, "*outer n_label d_head"] | None
    allowed: Bool[Tensor, "#outer #inner #n #n"] | None
    max_distance: int
    causal: bool
    scale: float
    may_be_empty: bool
    subtracts_first: bool

    def diagonals(self) -> Diagonals:
        n, dtype = self.query.shape[2], self.query.dtype
        return diagonals(n, self.max_distance, self.causal, self.subtracts_first, dtype)

    def live(self) -> Tensor:
        """Return whether each query may attend anything."""
        assert self.allowed is not None
        return self.allowed.any(-1, keepdim=True)

    def first(self, table: Tensor) -> Tensor:
        """Return the first row that sequences of this length use."""
        reach = min(self.max_distance, self.query.shape[2] - 1)
        return table.narrow(-2, self.max_distance - reach, 1)

    def columns(self, table: Tensor, place: Diagonals) -> Tensor:
        """Return the rows of a table that are columns of the diagonals."""
        rows = place.rows(table, self.max_distance)
        return rows - self.first(table) if self.subtracts_first else rows

    def pieces(self, rows: Tensor, parts: int) -> tuple[PieceTables, ...]:
        """Return, for each part, the rows of a table for each piece of its queries."""
        outer, inner, n, _ = self.query.shape
        if rows.dim() == 2:
            return (rows.expand(n_pieces(outer // parts * inner * n), -1, -1),) * parts
        return rows.repeat_interleave(n_pieces(inner * n), 0).chunk(parts)


def _fake(a: Arguments) -> tuple[Tensor, ...]:
    outer, inner, n, _ = a.query.shape
    reach, n_column = extent(n, a.max_distance, a.causal, a.subtracts_first)
    output = torch.empty_like(a.query)
    weights = with_margin((outer, inner, n, n), reach, a.query)
    return output, weights, a.query.new_empty(outer, inner, n, n_column)


def _forward(a: Arguments) -> tuple[Tensor, ...]:
    """Return the output, the weights and their sums by label."""
    _, inner, n, d_head = a.query.shape
    place, parts = a.diagonals(), n_parts(a.query)
    output, weights, by_label = _fake(a)
    if a.key_table is not None:
        # Products that add to their output are slower with a factor: the table is scaled.
        key_pieces = a.pieces(a.columns(a.key_table, place) * a.scale, parts)
    if a.value_table is not None:
        value_pieces = a.pieces(a.columns(a.value_table, place), parts)
        firsts = a.pieces(a.first(a.value_table), parts)
    hidden = None if a.allowed is None else (~a.allowed).expand(weights.shape).chunk(parts)
    each = [divided(x, parts) for x in (a.query, a.key, a.value, output, weights, by_label)]
    for i, (q, k, v, z, w, sums) in enumerate(zip(*each, strict=True)):
        if a.key_table is not None:
            label_logits(q, key_pieces[i], place, by_label=sums, out=w)
        w.baddbmm_(q, k.mT, beta=0 if a.key_table is None else 1, alpha=a.scale)
        if hidden is not None:
            edges = w.view(-1, inner, n, n)
            edges.masked_fill_(hidden[i], -torch.inf)
        torch.softmax(w, -1, out=w)
        if hidden is not None and a.may_be_empty:
            edges.masked_fill_(hidden[i], 0.0)
        if a.value_table is None:
            torch.bmm(w, v, out=z)
        else:
            sum_by_label(w, place, out=sums)
            pieces = len(value_pieces[i])
            by_piece = sums.view(pieces, -1, place.n_column)
            beta = int(a.subtracts_first)
            rows = z.view(pieces, -1, d_head)
            torch.baddbmm(firsts[i], by_piece, value_pieces[i], beta=beta, out=rows)
            z.baddbmm_(w, v)
    if a.subtracts_first and a.value_table is not None and a.may_be_empty:
        output *= a.live()
    return output, weights, by_label


def _backward(
    a: Arguments,
    grad: Sequences,
    weights: Float[Tensor, "outer inner n n"],
    by_label: Float[Tensor, "outer inner n n_column"],
) -> tuple[Tensor, ...]:
    """Return the gradients of query, key, value and the two tables (empty if there is none)."""
    outer, inner, n, d_head = a.query.shape
    place, parts = a.diagonals(), n_parts(a.query)
    if a.subtracts_first and a.may_be_empty:
        grad = grad * a.live()
    if a.key_table is not None:
        key_pieces = a.pieces(a.columns(a.key_table, place) * a.scale, parts)
    if a.value_table is not None:
        value_pieces = a.pieces(a.columns(a.value_table, place), parts)
    grads = [torch.empty_like(x) for x in (a.query, a.key, a.value)]
    key_grads: list[Tensor] = []
    value_grads: list[Tensor] = []
    grad_sums: list[Tensor] = []
    groups = outer * inner // parts
    grad_w = with_margin((groups, n, n), place.reach, a.query)
    sums = a.query.new_empty(groups, n, place.n_column)
    saved = (a.query, a.key, a.value, grad.contiguous(), *grads, weights, by_label)
    each = [divided(x, parts) for x in saved]
    for i, (q, k, v, g, grad_q, grad_k, grad_v, w, w_sums) in enumerate(zip(*each, strict=True)):
        if a.value_table is not None:
            label_logits(g, value_pieces[i], place, by_label=sums, out=grad_w)
            rows = g.view(len(value_pieces[i]), -1, d_head)
            by_piece = w_sums.view(len(rows), -1, place.n_column)
            value_grads.append(torch.bmm(by_piece.mT, rows))
            grad_sums.append(rows.sum(1))  # the weights of a query sum to one
        grad_w.baddbmm_(g, v.mT, beta=0 if a.value_table is None else 1)
        torch.bmm(w.mT, g, out=grad_v)
        private.softmax_backward_(grad_w, w)
        if a.key_table is not None:
            sum_by_label(grad_w, place, out=sums)
            rows = q.view(len(key_pieces[i]), -1, d_head)
            by_piece = sums.view(len(rows), -1, place.n_column)
            torch.bmm(by_piece, key_pieces[i], out=grad_q.view(rows.shape))
            key_grads.append(torch.bmm(by_piece.mT, rows))
        grad_q.baddbmm_(grad_w, k, beta=0 if a.key_table is None else 1, alpha=a.scale)
        grad_k.baddbmm_(grad_w.mT, q, beta=0, alpha=a.scale)
    grad_keys = grad_values = a.query.new_empty(0)
    if a.key_table is not None:
        grad_keys = table_gradient(a.key_table, key_grads, [], place, a).mul_(a.scale)
    if a.value_table is not None:
        grad_values = table_gradient(a.value_table, value_grads, grad_sums, place, a)
    return *grads, grad_keys, grad_values


def _composite(a: Arguments) -> Tensor:
    heads_first = any(x is not None and x.dim() == 3 for x in (a.key_table, a.value_table))
    query, key, value = (ordered(x, heads_first) for x in (a.query, a.key, a.value))
    mask = None if a.allowed is None else ordered(a.allowed, heads_first)
    relations = RelativePositions(a.max_distance)
    inputs = AttentionInputs(
        *(query, key, value, relations, a.key_table, a.value_table, mask), scale=a.scale
    )
    return ordered(composite.attention(inputs), heads_first)


_diagonal = register(
    "diagonal_v1",
    Arguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    composite=_composite,
    n_results=3,
)

BACKEND = Backend("diagonal", supports, cost=lambda inputs: 1.0, run=run)
