"""Gather and scatter by label, part by part, with a hand-written backward pass.

Edges without a label have a column after the last, whose vector is zero.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int, Int64
from torch import Tensor
from torch.nn.functional import pad

from edgewise.attention import label_passes as passes
from edgewise.attention.backends.base import Backend, named, why_not_dot_product
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.relations import EdgeLabels, RelativePositions
from edgewise.attention.shapes import Queries, Table


def supports(inputs: AttentionInputs) -> str | None:
    relations = inputs.relations
    if relations is None or not (relations.has_labels and relations.is_dense and inputs.has_tables):
        return f"needs a label for every edge, and tables; got relations={named(relations)}"
    return why_not_dot_product(inputs, dropout=False, cpu_only=True)


def cost(inputs: AttentionInputs) -> float:
    """Return less than `gather` has, except for relative positions: there `gather` is faster."""
    return 2.0 if isinstance(inputs.relations, RelativePositions) else 1.0


def run(inputs: AttentionInputs) -> Queries:
    """Compute attention by equations 3 and 5."""
    labels = inputs.labels()
    assert labels is not None
    # A single item is divided by heads.
    heads_first = inputs.tables_per_head or len(inputs.query) == 1
    labels = passes.ordered(labels, heads_first)
    options = Options(labels, inputs.has_unlabelled, heads_first, inputs.scale)
    output = _chunked_gather(passes.arrange(inputs, heads_first), options)
    return passes.ordered(output, heads_first)


class LabelColumns(passes.Layout):
    """The column of every edge."""

    margin = 0

    def __init__(self, column: Int64[Tensor, "outer inner n_query n_key"], n_column: int) -> None:
        self.column, self.n_column = column, n_column

    def columns(self, table: Table) -> passes.Columns:
        return pad(table, (0, 0, 0, self.n_column - table.shape[-2]))

    def table_gradient(
        self, table: Table, grad_columns: passes.Columns, grad_first: Tensor
    ) -> Table:
        return grad_columns[..., : table.shape[-2], :].contiguous()

    def to_edges(self, by_label: passes.LabelSums, part: slice, out: passes.EdgeMatrices) -> None:
        column = self.column[part]
        by_label = by_label.view(*column.shape[:3], self.n_column)
        torch.gather(by_label, -1, column, out=out.view(column.shape))

    def sum_by_label(self, edges: passes.EdgeMatrices, part: slice, out: passes.LabelSums) -> None:
        column = self.column[part]
        sums = out.zero_().view(*column.shape[:3], self.n_column)
        sums.scatter_add_(-1, column, edges.view(column.shape))


class Options(NamedTuple):
    """The arguments of the operator, in addition to `label_passes.Inputs`."""

    labels: Int[Tensor, "#outer #inner n_query n_key"]
    has_unlabelled: bool
    heads_first: bool
    scale: float

    def sizes(self, inputs: passes.Inputs) -> tuple[int, int]:
        tables = (inputs.key_table, inputs.value_table)
        n_label = max(0 if x is None else x.shape[-2] for x in tables)
        return n_label + self.has_unlabelled, LabelColumns.margin

    def layout(self, inputs: passes.Inputs) -> LabelColumns:
        column, (n_column, _) = self.labels.long(), self.sizes(inputs)
        if self.has_unlabelled:
            column = column.masked_fill(column < 0, n_column - 1)
        return LabelColumns(column.expand(*inputs.query.shape[:3], -1), n_column)

    def relation(self, inputs: passes.Inputs) -> tuple[EdgeLabels, bool]:
        labels = passes.ordered(self.labels, self.heads_first)[:, 0]
        return EdgeLabels(labels, n_labels=self.sizes(inputs)[0]), self.heads_first


_chunked_gather = passes.operator("chunked_gather_v1", Options)

BACKEND = Backend("chunked_gather", supports, cost, run, in_float32=True)
