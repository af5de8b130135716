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
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import embedding_bag

from edgewise.attention.edge_list import EdgeList, Edges
from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.ops import register
from edgewise.attention.shapes import EdgeIndex, Queries, Table

CHUNK = 2**23  # edges of all groups, or numbers of their vectors, computed at a time


def has_kernels(device: torch.device) -> bool:
    """Return whether PyTorch's kernels for sparse matrices are used (not measured on GPUs)."""
    return device.type == "cpu"


def sddmm(
    x: Float[Tensor, "group n_row d_head"],
    y: Float[Tensor, "#group n_column d_head"],
    rows: EdgeIndex,
    columns: EdgeIndex,
) -> Float[Tensor, "group edge"]:
    """Return x_r y_c^T of every edge (r, c)."""
    n_row, n_column, n_edge = x.shape[1], y.shape[1], len(rows)
    if n_row * n_column <= n_edge:
        # There are fewer pairs than edges, as with few labels and many edges.
        return (x @ y.mT).flatten(1)[:, rows * n_column + columns]
    result = x.new_empty(x.shape[0], n_edge)
    if not has_kernels(x.device):
        for part in _edge_chunks(x, n_edge):
            torch.sum(x[:, rows[part]] * y[:, columns[part]], -1, out=result[:, part])
        return result
    _silence_beta_warning()
    offsets = _offsets(rows, n_row)
    for groups in _group_chunks(x.shape[0], n_edge):
        count = groups.stop - groups.start
        right = y if len(y) == 1 else y[groups]
        pattern = torch.sparse_csr_tensor(
            _repeated_offsets(offsets, n_edge, count),
            _shifted_columns(columns, right, count),
            x.new_zeros(1).expand(count * n_edge),
            (count * n_row, len(right) * n_column),
            check_invariants=False,
        )
        left, right = x[groups].flatten(0, 1), right.flatten(0, 1)
        products = torch.sparse.sampled_addmm(pattern, left, right.mT, beta=0.0)
        result[groups] = products.values().view(count, n_edge)
    return result


def spmm(
    weights: Float[Tensor, "group edge"],
    y: Float[Tensor, "#group n_column d_head"],
    rows: EdgeIndex,
    columns: EdgeIndex,
    n_row: int,
) -> Float[Tensor, "group n_row d_head"]:
    """Return the sum of w_rc y_c over the edges of each row r; zeros where there are none."""
    n_edge = len(rows)
    result = y.new_zeros(weights.shape[0], n_row, y.shape[2])
    if n_edge == 0:
        return result
    if not has_kernels(y.device):
        for part in _edge_chunks(result, n_edge):
            result.index_add_(1, rows[part], weights[:, part, None] * y[:, columns[part]])
        return result
    offsets = _offsets(rows, n_row)
    for groups in _group_chunks(weights.shape[0], n_edge):
        count = groups.stop - groups.start
        right = y if len(y) == 1 else y[groups]
        sums = embedding_bag(
            _shifted_columns(columns, right, count),
            right.flatten(0, 1),
            _repeated_offsets(offsets, n_edge, count),
            mode="sum",
            per_sample_weights=weights[groups].flatten(),
            include_last_offset=True,
        )
        result[groups] = sums.view(count, n_row, -1)
    return result


def transposed_spmm(
    weights: Float[Tensor, "group edge"],
    x: Float[Tensor, "group n_row d_head"],
    rows: EdgeIndex,
    columns: EdgeIndex,
    csc_permutation: EdgeIndex,
    like: Float[Tensor, "#group n_column d_head"],
) -> Float[Tensor, "#group n_column d_head"]:
    """Return the sum of w_rc x_r over the edges of each column c, and over groups that share c."""
    transposed = (columns[csc_permutation], rows[csc_permutation], like.shape[1])
    weights = weights[:, csc_permutation]
    if len(like) == len(x):
        return spmm(weights, x, *transposed)
    total = torch.zeros_like(like)
    if not has_kernels(x.device):
        columns, rows, _ = transposed
        for part in _edge_chunks(x, len(rows)):
            shares = (weights[:, part, None] * x[:, rows[part]]).sum(0)
            total[0].index_add_(0, columns[part], shares)
        return total
    for w, of_group in zip(weights, x, strict=True):
        total += spmm(w[None], of_group[None], *transposed)
    return total


def _group_chunks(groups: int, n_edge: int) -> Iterator[slice]:
    size = max(1, CHUNK // max(1, n_edge))
    for start in range(0, groups, size):
        yield slice(start, min(groups, start + size))


def _edge_chunks(x: Float[Tensor, "group n d_head"], n_edge: int) -> Iterator[slice]:
    size = max(1, CHUNK // max(1, x.shape[0] * x.shape[2]))
    for start in range(0, n_edge, size):
        yield slice(start, min(n_edge, start + size))


def _offsets(rows: EdgeIndex, n_row: int) -> Int64[Tensor, " ends"]:
    """Return the CSR row pointers: where the edges of each row begin, and the last end."""
    return torch.searchsorted(rows, torch.arange(n_row + 1, device=rows.device))


def _repeated_offsets(offsets: Tensor, n_edge: int, count: int) -> Int64[Tensor, " ends"]:
    """Return the row pointers of several groups, one after the other."""
    starts = n_edge * torch.arange(count, device=offsets.device)
    all_but_last = (starts[:, None] + offsets[:-1]).flatten()
    return torch.cat((all_but_last, offsets.new_full((1,), n_edge * count)))


def _shifted_columns(columns: Tensor, y: Tensor, count: int) -> Int64[Tensor, " edges_of_all"]:
    """Return the columns of several groups, one after the other; the same where they share y."""
    step = 0 if len(y) == 1 else y.shape[1]
    return (columns + step * torch.arange(count, device=columns.device)[:, None]).flatten()


@functools.cache
def _silence_beta_warning() -> None:
    """Use up PyTorch's only warning that sparse matrices are in beta state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [0.0])


class ProductArguments(NamedTuple):
    """The arguments of the operator for products."""

    x: Float[Tensor, "group n_row d_head"]
    y: Float[Tensor, "#group n_column d_head"]
    rows: EdgeIndex
    columns: EdgeIndex
    csc_permutation: EdgeIndex
    n_row: int


class SumArguments(NamedTuple):
    """The arguments of the operator for sums."""

    weights: Float[Tensor, "group edge"]
    y: Float[Tensor, "#group n_column d_head"]
    rows: EdgeIndex
    columns: EdgeIndex
    csc_permutation: EdgeIndex
    n_row: int


def _products_backward(a: ProductArguments, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_x = spmm(grad, a.y, a.rows, a.columns, a.n_row)
    return grad_x, transposed_spmm(grad, a.x, a.rows, a.columns, a.csc_permutation, like=a.y)


def _sums_backward(a: SumArguments, grad: Tensor) -> tuple[Tensor, Tensor]:
    grad_y = transposed_spmm(a.weights, grad, a.rows, a.columns, a.csc_permutation, like=a.y)
    return sddmm(grad, a.y, a.rows, a.columns), grad_y


def _sums_composite(a: SumArguments) -> Tensor:
    zeros = a.y.new_zeros(a.weights.shape[0], a.n_row, a.y.shape[2])
    return zeros.index_add(1, a.rows, a.weights[..., None] * a.y[:, a.columns])


_products = register(
    "edge_products_v1",
    ProductArguments,
    forward=lambda a: (sddmm(a.x, a.y, a.rows, a.columns),),
    backward=_products_backward,
    fake=lambda a: (a.x.new_empty(a.x.shape[0], a.rows.shape[0]),),
    composite=lambda a: (a.x[:, a.rows] * a.y[:, a.columns]).sum(-1),
    n_differentiable=2,
)
_sums = register(
    "edge_sums_v1",
    SumArguments,
    forward=lambda a: (spmm(a.weights, a.y, a.rows, a.columns, a.n_row),),
    backward=_sums_backward,
    fake=lambda a: (a.y.new_empty(a.weights.shape[0], a.n_row, a.y.shape[2]),),
    composite=_sums_composite,
    n_differentiable=2,
)


def edge_products(
    x: Float[Tensor, "group n_row d_head"], y: Float[Tensor, "#group n_column d_head"], edges: Edges
) -> Float[Tensor, "group edge"]:
    """Return x_r y_c^T of every edge (r, c), with autograd."""
    return _products(ProductArguments(x, y, *edges, x.shape[1]))


def edge_sums(
    weights: Float[Tensor, "group edge"],
    y: Float[Tensor, "#group n_column d_head"],
    edges: Edges,
    n_row: int,
) -> Float[Tensor, "group n_row d_head"]:
    """Return the sum of w_rc y_c over the edges of each row r, with autograd."""
    return _sums(SumArguments(weights, y, *edges, n_row))


def edge_softmax(
    logits: Float[Tensor, "group edge"], rows: EdgeIndex, n_rows: int
) -> Float[Tensor, "group edge"]:
    """Return the softmax over the edges of each row."""
    groups = logits.shape[0]
    index = rows.expand(groups, -1)
    with torch.no_grad():
        peak = logits.new_full((groups, n_rows), -torch.inf).scatter_reduce(
            1, index, logits, "amax"
        )
    powers = (logits - peak.gather(1, index)).exp()
    totals = logits.new_zeros(groups, n_rows).scatter_add(1, index, powers)
    return powers / totals.gather(1, index)


def attend(
    inputs: AttentionInputs, graph: EdgeList, logits: Float[Tensor, "batch head edge"]
) -> Queries:
    """Return equation 3 along the edges of a graph, for logits in the order of `graph.edges`."""
    batch, heads, n_query, _ = inputs.query.shape
    weights = edge_softmax(logits.flatten(0, 1), graph.edges.rows, n_query)
    weights = torch.dropout(weights, inputs.dropout, train=True)
    output = edge_sums(weights, inputs.value.flatten(0, 1), graph.edges, n_query)
    if inputs.value_table is not None:
        table = with_zero_row(inputs.value_table)
        label_edges = graph.label_edges(table.shape[-2])
        output = output + edge_sums(weights, per_group(table, batch), label_edges, n_query)
    return output.view(batch, heads, *output.shape[1:])


def per_group(
    table: Float[Tensor, "*head rows d_head"], batch: int
) -> Float[Tensor, "#group rows d_head"]:
    """Return a table for all groups, or one for each of the batch * head groups."""
    return table[None] if table.dim() == 2 else table.repeat(batch, 1, 1)


def with_zero_row(table: Table) -> Float[Tensor, "*head rows d"]:
    """Return a table with a row of zeros at its end, for edges without a label."""
    return torch.nn.functional.pad(table, (0, 0, 0, 1))
