"""Self-attention with relative positions, for translation lengths: no gather and no scatter.

The edges at one distance are a diagonal of the [n, n] matrix of edges. Viewed with a row stride of
n + 1, the matrix has its diagonals as columns: a row of this view is the weights of a query by
label. The products of queries and labels, viewed with a row stride of n_column - 1, are on their
diagonals. Such views contain entries of neighbouring rows; a bitwise AND clears them, NaN too.

Edges beyond the clipping distance are two triangles, each with one label. If the first row is
subtracted from all rows of a table, the left triangle needs no computation, and the number of
columns is even, which makes matrix products faster. The subtraction is skipped if the first row is
much larger than another, as it would lose precision, and in sequences with no edge beyond the
clipping distance; there the next distance is one more column, to make their number even. Under
causal masking the labels of later keys are not computed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from edgewise.attention import label_passes as passes
from edgewise.attention.backends.base import Backend, why_not_dot_product, why_not_positions
from edgewise.attention.inputs import AttentionInputs
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
    """Compute attention by equations 3 and 5."""
    relations, heads_first = inputs.relations, inputs.tables_per_head
    assert isinstance(relations, RelativePositions)
    k = relations.max_distance
    options = Options(k, inputs.causal, inputs.scale, can_subtract_first(inputs, k))
    return passes.ordered(_diagonal(passes.arrange(inputs, heads_first), options), heads_first)


def can_subtract_first(inputs: AttentionInputs, max_distance: int) -> bool:
    """Return whether to subtract the first row from all rows of the tables.

    Each row that is used must have an entry of at least a quarter of the first row's largest: then
    rounding errors are of the size that they would have otherwise. False where values cannot be
    read, as inside torch.compile, and in sequences with no edge beyond the clipping distance.
    """
    if not can_read_values(inputs.query) or inputs.n_query <= max_distance:
        return False
    n_used = max_distance + 1 if inputs.causal else 2 * max_distance + 1
    for table in (inputs.key_table, inputs.value_table):
        if table is not None:
            largest = table.detach()[..., :n_used, :].abs().amax(-1)
            if not bool((largest[..., 0] <= 4 * largest[..., 1:].amin(-1)).all()):  # or NaN
                return False
    return True


class Diagonals(passes.Layout):
    """The labels of a sequence of length n: columns are distances."""

    @torch.inference_mode(False)
    def __init__(
        self, n: int, max_distance: int, causal: bool, subtracts_first: bool, dtype: torch.dtype
    ) -> None:
        self.n_column, reach = extent(n, max_distance, causal, subtracts_first)
        self.n, self.margin, self.subtracts_first = n, reach + 1, subtracts_first
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

    def to_edges(self, by_label: passes.LabelSums, part: slice, out: passes.EdgeMatrices) -> None:
        size, bits, n_column = self.size, BITS[out.dtype], self.n_column
        shorter_rows = (self.n * n_column, n_column - 1, 1)
        start = by_label.storage_offset() - self.lowest
        read = by_label.view(bits).as_strided(out.shape, shorter_rows, start)
        torch.bitwise_and(read, self.in_band, out=out.view(bits))
        if self.left is not None:
            out[:, -size:, :size].addcmul_(by_label[:, -size:, :1], self.left)
        if self.right is not None:
            out[:, :size, -size:].addcmul_(by_label[:, :size, -1:], self.right)

    def sum_by_label(self, edges: passes.EdgeMatrices, part: slice, out: passes.LabelSums) -> None:
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
    """Return the number of columns, and the distance beyond which edges share a label."""
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

    def sizes(self, inputs: passes.Inputs) -> tuple[int, int]:
        n_column, reach = extent(
            inputs.query.shape[2], self.max_distance, self.causal, self.subtracts_first
        )
        return n_column, reach + 1

    def layout(self, inputs: passes.Inputs) -> Diagonals:
        """Return the layout for these sizes, from a cache for short sequences."""
        (k, causal, _, subtracts_first), n = self, inputs.query.shape[2]
        key = (n, min(k, n), causal, subtracts_first, inputs.query.dtype)
        if (found := _CACHE.get(key)) is not None:
            return found
        made = Diagonals(*key)
        # Tensors made under a dispatch mode, such as FakeTensorMode, must not be used outside it.
        if n <= CACHED_LENGTH and type(made.in_band) is Tensor:
            if len(_CACHE) >= 64:
                _CACHE.clear()
            _CACHE[key] = made
        return made

    def relation(self, inputs: passes.Inputs) -> tuple[RelativePositions, bool]:
        has_heads = any(table is not None and table.dim() == 3 for table in inputs[3:5])
        return RelativePositions(self.max_distance), has_heads


_diagonal = passes.operator("diagonal_v1", Options)

BACKEND = Backend("diagonal", supports, cost=lambda inputs: 1.0, run=run, in_float32=True)
