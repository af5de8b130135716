"""Two operators on the edges of a graph: products at their ends (SDDMM), sums over them (SpMM).

The backward pass of each consists of the other, and of sums over the edges sorted by column. On
CPUs they use PyTorch's `sampled_addmm` and `embedding_bag`, and hold no vector for an edge.

Groups are independent problems on one graph; where `y` has one group, all groups share it.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding_bag

from edgewise.attention.edge_list import EdgeList, Edges
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import Operator
from edgewise.attention.shapes import EdgeIndex, Queries, Table

Rows = Float[Tensor, "group n_row d_head"]
Columns = Float[Tensor, "#group n_column d_head"]
EdgeNumbers = Float[Tensor, "group edge"]

CHUNK = 2**23  # edges of all groups, or numbers of their vectors, computed at a time


def has_kernels(device: torch.device) -> bool:
    """Return whether PyTorch's kernels for sparse matrices are used (not measured on GPUs)."""
    return device.type == "cpu"


def sddmm(x: Rows, y: Columns, rows: EdgeIndex, columns: EdgeIndex) -> EdgeNumbers:
    """Return x_r y_c^T of every edge (r, c)."""
    n_row, n_column, n_edge = x.shape[1], y.shape[1], len(rows)
    if n_row * n_column <= n_edge:
        # There are fewer pairs than edges, as with few labels and many edges.
        return (x @ y.mT).flatten(1)[:, rows * n_column + columns]
    result = x.new_empty(x.shape[0], n_edge)
    if not has_kernels(x.device):
        for part in _chunks(n_edge, x.shape[0] * x.shape[2]):
            torch.sum(x[:, rows[part]] * y[:, columns[part]], -1, out=result[:, part])
        return result
    _silence_beta_warning()
    for groups, right, offsets, column in _group_chunks(x.shape[0], y, rows, columns, n_row):
        left = x[groups].flatten(0, 1)
        zeros, size = x.new_zeros(1).expand(len(column)), (len(left), len(right))
        pattern = torch.sparse_csr_tensor(
            *(offsets, column, zeros, size), device=x.device, check_invariants=False
        )
        products = torch.sparse.sampled_addmm(pattern, left, right.mT, beta=0.0)
        result[groups] = products.values().view_as(result[groups])
    return result


def spmm(weights: EdgeNumbers, y: Columns, rows: EdgeIndex, columns: EdgeIndex, n_row: int) -> Rows:
    """Return the sum of w_rc y_c over the edges of each row r; zeros where there are none."""
    n_edge = len(rows)
    result = y.new_zeros(weights.shape[0], n_row, y.shape[2])
    if n_edge == 0:
        return result
    if not has_kernels(y.device):
        for part in _chunks(n_edge, result.shape[0] * result.shape[2]):
            result.index_add_(1, rows[part], weights[:, part, None] * y[:, columns[part]])
        return result
    for groups, right, offsets, column in _group_chunks(len(weights), y, rows, columns, n_row):
        sums = embedding_bag(
            *(column, right, offsets),
            mode="sum",
            per_sample_weights=weights[groups].flatten(),
            include_last_offset=True,
        )
        result[groups] = sums.view_as(result[groups])
    return result


def transposed_spmm(weights: EdgeNumbers, x: Rows, arguments: "Arguments") -> Columns:
    """Return the sum of w_rc x_r over the edges of each column c, and over groups that share c."""
    _, y, rows, columns, csc_permutation, _ = arguments
    transposed = (columns[csc_permutation], rows[csc_permutation], y.shape[1])
    weights = weights[:, csc_permutation]
    if len(y) == len(x):
        return spmm(weights, x, *transposed)
    total = torch.zeros_like(y)
    for groups in _chunks(len(x), y.numel()):
        total += spmm(weights[groups], x[groups], *transposed).sum(0, keepdim=True)
    return total


def _chunks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `count` things, each of which has `size` numbers."""
    step = max(1, CHUNK // max(1, size))
    for start in range(0, count, step):
        yield slice(start, min(count, start + step))


def _group_chunks(
    count: int, y: Columns, rows: EdgeIndex, columns: EdgeIndex, n_row: int
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield some of `count` groups, their y, and the CSR row pointers and columns of their edges.

    Groups follow each other: the first row of the second has the number n_row.
    """
    offsets = torch.searchsorted(rows, torch.arange(n_row + 1, device=rows.device))
    for groups in _chunks(count, len(rows)):
        group = torch.arange(groups.stop - groups.start, device=rows.device)[:, None]
        starts = (len(rows) * group + offsets[:-1]).flatten()
        end = offsets.new_full((1,), len(rows) * len(group))
        right = y if len(y) == 1 else y[groups]
        shift = 0 if len(y) == 1 else y.shape[1]
        column = (columns + shift * group).flatten()
        yield groups, right.flatten(0, 1), torch.cat((starts, end)), column


@functools.cache
def _silence_beta_warning() -> None:
    """Let PyTorch warn, unseen, that sparse matrices are in beta state: it warns once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [0.0], device="cpu")


class Arguments(NamedTuple):
    """The arguments of both operators: x has a vector for each row, or a weight for each edge."""

    x: Float[Tensor, "group *_x"]
    y: Columns
    rows: EdgeIndex
    columns: EdgeIndex
    csc_permutation: EdgeIndex
    n_row: int


_products = Operator(
    "edge_products_v1",
    Arguments,
    forward=lambda a: (sddmm(a.x, a.y, a.rows, a.columns),),
    backward=lambda a, grad: (
        spmm(grad, a.y, a.rows, a.columns, a.n_row),
        transposed_spmm(grad, a.x, a),
    ),
    fake=lambda a: (a.x.new_empty(a.x.shape[0], a.rows.shape[0]),),
    composite=lambda a: (a.x[:, a.rows] * a.y[:, a.columns]).sum(-1),
    n_differentiable=2,
)
_sums = Operator(
    "edge_sums_v1",
    Arguments,
    forward=lambda a: (spmm(a.x, a.y, a.rows, a.columns, a.n_row),),
    backward=lambda a, grad: (sddmm(grad, a.y, a.rows, a.columns), transposed_spmm(a.x, grad, a)),
    fake=lambda a: (a.y.new_empty(a.x.shape[0], a.n_row, a.y.shape[2]),),
    composite=lambda a: a.y.new_zeros(a.x.shape[0], a.n_row, a.y.shape[2]).index_add(
        1, a.rows, a.x[..., None] * a.y[:, a.columns]
    ),
    n_differentiable=2,
)


def edge_products(x: Rows, y: Columns, edges: Edges) -> EdgeNumbers:
    """Return x_r y_c^T of every edge (r, c), with autograd."""
    return _products(Arguments(x, y, *edges, x.shape[1]))


def edge_sums(weights: EdgeNumbers, y: Columns, edges: Edges, n_row: int) -> Rows:
    """Return the sum of w_rc y_c over the edges of each row r, with autograd."""
    return _sums(Arguments(weights, y, *edges, n_row))


def attend(
    inputs: AttentionInputs, graph: EdgeList, logits: Float[Tensor, "batch head edge"]
) -> Queries:
    """Compute equation 3 along the edges of a graph, for logits in the order of `graph.edges`."""
    (batch, heads, n_query, _), edges = inputs.query.shape, graph.edges
    # The softmax over the edges of each query.
    logits, rows = logits.flatten(0, 1), edges.rows.expand(batch * heads, -1)
    with torch.no_grad():
        lowest = logits.new_full((batch * heads, n_query), -torch.inf)
        peak = lowest.scatter_reduce(1, rows, logits, "amax")
    powers = (logits - peak.gather(1, rows)).exp()
    totals = logits.new_zeros(peak.shape).scatter_add(1, rows, powers)
    weights = torch.dropout(powers / totals.gather(1, rows), inputs.dropout, train=True)
    output = edge_sums(weights, inputs.value.flatten(0, 1), edges, n_query)
    if inputs.value_table is not None:
        label_vectors = label_rows(graph, inputs.value_table, batch)
        output = output + edge_sums(weights, *label_vectors, n_query)
    return output.view(batch, heads, *output.shape[1:])


def label_rows(graph: EdgeList, table: Table, batch: int) -> tuple[Columns, Edges]:
    """Return the rows of a table, for all groups or for each, and the edges to them."""
    table = with_zero_row(table)
    edges = graph.label_edges(table.shape[-2])
    return table[None] if table.dim() == 2 else table.repeat(batch, 1, 1), edges


def with_zero_row(table: Table) -> Float[Tensor, "*head rows d"]:
    """Return a table with a row of zeros at its end, for edges without a label."""
    return torch.nn.functional.pad(table, (0, 0, 0, 1))
