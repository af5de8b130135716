"""Self-attention with relative positions, for translation lengths: no gather and no scatter.

A distance is a diagonal of the matrix of edges. A view of a row-major [n, n] matrix with row stride
n + 1 has the diagonals as columns. `spread` reads the products of queries and labels with row
stride n_column - 1, which places them on diagonals; `collect` reads the weights with row stride
n + 1, which sums them by label. Entries of a neighbouring row are cleared by a bitwise AND, because
a product with zero would keep NaN.

Edges beyond the clipping distance are two triangles, each with one label. If the first row is
subtracted from the tables, the left triangle needs nothing, and the number of columns is even. That
loses precision if the row is larger than the others; then tables are used as they are. So they are
in sequences that are not longer than the clipping distance, with the next distance as a column that
makes their number even. Under causal masking the labels of later keys are not computed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.attention import label_passes as passes
from edgewise.attention.backends.base import Backend, why_not_dot_product, why_not_positions
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import Operator
from edgewise.attention.relations import RelativePositions, can_read_values
from edgewise.attention.shapes import Queries, Table

CACHED_LENGTH = 256
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def supports(inputs: AttentionInputs) -> str | None:
    reason = why_not_positions(inputs) or why_not_dot_product(inputs, dropout=False, cpu_only=True)
    if reason is not None:
        return reason
    if inputs.first_position != 0:
        return f"needs query_offset=0; got {inputs.relations}"
    if inputs.n_query != inputs.n_key:
        return f"needs as many queries as keys; got {inputs.n_query} and {inputs.n_key}"
    return None


def run(inputs: AttentionInputs) -> Queries:
    """Return equations 3 and 5."""
    relations, heads_first = inputs.relations, inputs.tables_per_head
    assert isinstance(relations, RelativePositions)
    k = relations.max_distance
    options = Options(k, inputs.causal, inputs.scale, can_subtract_first(inputs, k))
    output = _diagonal(passes.arrange(inputs, heads_first), options)
    return passes.ordered(output.to(inputs.query.dtype), heads_first)


def can_subtract_first(inputs: AttentionInputs, max_distance: int) -> bool:
    """Return whether to subtract the first row from the tables.

    It must not be more than twice as large as the others. False where values cannot be read, as
    inside torch.compile, and in sequences that have no such distance.
    """
    if not can_read_values(inputs.query) or inputs.n_query <= max_distance:
        return False
    for table in (inputs.key_table, inputs.value_table):
        if table is not None:
            others = (-1,) if table.dim() == 2 else (0, -1)
            norms = table.detach().abs().amax(others).tolist()
            if norms[0] > 2 * max(norms[1:]):
                return False
    return True


class Diagonals(passes.Layout):
    """The labels of a sequence of length n: columns are distances."""

    @torch.inference_mode(False)
    def __init__(
        self, n: int, max_distance: int, causal: bool, subtracts_first: bool, dtype: torch.dtype
    ) -> None:
        self.n_column, reach = extent(n, max_distance, causal, subtracts_first)
        self.n, self.margin, self.subtracts_first = n, reach, subtracts_first
        self.lowest = subtracts_first - reach  # the distance of the first column
        position = torch.arange(n, device="cpu")
        distance = position - position[:, None]
        in_band = (distance >= self.lowest) & (distance <= (0 if causal else reach))
        key = position[:, None] + torch.arange(self.n_column, device="cpu") + self.lowest
        in_range = (key >= 0) & (key < n)
        # All bits set where an edge has one of these distances, and where a column has an edge.
        self.in_band, self.in_range = -in_band.to(BITS[dtype]), -in_range.to(BITS[dtype])
        # The number of rows with edges beyond the clipping distance on one side, and matrices with
        # 1 for these edges; None: not needed.
        self.size = n - reach - 1
        square = torch.ones(self.size, self.size, dtype=dtype, device="cpu")
        self.left = None if subtracts_first or self.size == 0 else square.tril()
        self.right = None if causal or self.size == 0 else square.triu()

    def columns(self, table: Table) -> passes.Columns:
        rows, first = self._rows(table), self.first_row(table)
        return rows if first is None else rows - first

    def first_row(self, table: Table) -> Table | None:
        return table.narrow(-2, 0, 1) if self.subtracts_first else None

    def table_gradient(
        self, table: Table, grad_columns: passes.Columns, grad_first: Tensor
    ) -> Table:
        result = torch.zeros_like(table)
        self._rows(result).copy_(grad_columns)
        if (first := self.first_row(result)) is not None:
            first.squeeze(-2).copy_(grad_first - grad_columns.sum(-2))
        return result

    def _rows(self, table: Table) -> passes.Columns:
        return table.narrow(-2, table.shape[-2] // 2 + self.lowest, self.n_column)

    def spread(self, by_label: passes.LabelSums, part: slice, out: passes.EdgeMatrices) -> None:
        size, bits, n_column = self.size, BITS[out.dtype], self.n_column
        shorter_rows = (self.n * n_column, n_column - 1, 1)
        start = by_label.storage_offset() - self.lowest
        read = by_label.view(bits).as_strided(out.shape, shorter_rows, start)
        torch.bitwise_and(read, self.in_band, out=out.view(bits))
        if self.left is not None:
            out[:, -size:, :size].addcmul_(by_label[:, -size:, :1], self.left)
        if self.right is not None:
            out[:, :size, -size:].addcmul_(by_label[:, :size, -1:], self.right)

    def collect(self, edges: passes.EdgeMatrices, part: slice, out: passes.LabelSums) -> None:
        n, size, bits = self.n, self.size, BITS[edges.dtype]
        longer_rows = (n * n, n + 1, 1)
        start = edges.storage_offset() + self.lowest
        read = edges.view(bits).as_strided(out.shape, longer_rows, start)
        torch.bitwise_and(read, self.in_range, out=out.view(bits))
        if self.left is not None:
            out[:, -size:, 0] += (edges[:, -size:, :size] * self.left).sum(-1)
        if self.right is not None:
            out[:, :size, -1] += (edges[:, :size, -size:] * self.right).sum(-1)


def extent(n: int, max_distance: int, causal: bool, subtracts_first: bool) -> tuple[int, int]:
    """Return the number of columns, and the longest distance that is not clipped."""
    reach = torch.sym_min(max_distance, n - 1)
    later = 0 if causal else torch.sym_min(max_distance, n)  # distance n is for an even number
    return reach + 1 + later - subtracts_first, reach


_CACHE: dict[tuple[int, int, bool, bool, torch.dtype], Diagonals] = {}


class Options(NamedTuple):
    """The arguments of the operator, in addition to `label_passes.Inputs`."""

    max_distance: int
    causal: bool
    scale: float
    subtracts_first: bool


def layout(inputs: passes.Inputs, options: Options) -> Diagonals:
    """Return the layout for these sizes, from a cache for short sequences."""
    (k, causal, _, subtracts_first), n = options, inputs.query.shape[2]
    key = (n, min(k, n), causal, subtracts_first, inputs.query.dtype)
    if key in _CACHE:
        return _CACHE[key]
    made = Diagonals(*key)
    # Tensors made under a dispatch mode, such as FakeTensorMode, must not be used outside it.
    if n <= CACHED_LENGTH and type(made.in_band) is Tensor:
        if len(_CACHE) >= 64:
            del _CACHE[next(iter(_CACHE))]
        _CACHE[key] = made
    return made


def _fake(inputs: passes.Inputs, options: Options) -> tuple[Tensor, ...]:
    (k, causal, _, subtracts_first), n = options, inputs.query.shape[2]
    n_column, reach = extent(n, k, causal, subtracts_first)
    return passes.empty_results(inputs.query, n, n_column, margin=reach)


def _composite(inputs: passes.Inputs, options: Options) -> Tensor:
    heads_first = any(table is not None and table.dim() == 3 for table in inputs[3:5])
    relations = RelativePositions(options.max_distance)
    return passes.composite_forward(inputs, options.scale, relations, heads_first)


_diagonal = Operator(
    "diagonal_v1",
    *(passes.Inputs, Options),
    forward=lambda x, a: passes.forward(x, layout(x, a), a.scale),
    backward=lambda x, a, *results: passes.backward(x, layout(x, a), a.scale, *results),
    fake=_fake,
    composite=_composite,
    n_results=3,
)

BACKEND = Backend("diagonal", supports, cost=lambda inputs: 1.0, run=run)
