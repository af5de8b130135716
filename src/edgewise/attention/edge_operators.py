"""Two operations on the edges of a graph, with autograd: products at their ends, sums over them.

Each is the backward pass of the other, together with sums over the edges sorted by column. They
are made of what PyTorch has for other ends: a product of matrices of which some entries only are
wanted, and sums of rows of an embedding. No vector is held for an edge.

Groups are independent problems on one graph; where `y` has one group, all share it. To the compiler
both are opaque operators.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import embedding_bag

from edgewise.attention.edge_list import Edges
from edgewise.attention.operators import operator

# Edges of all groups that are computed at a time.
CHUNK = 2**23


def has_kernels(device: torch.device) -> bool:
    """Whether PyTorch's kernels for sparse matrices are to be used (not measured on GPUs)."""
    return device.type == "cpu"


def _products(
    x: Float[Tensor, "group n_row d_head"],
    y: Float[Tensor, "#group n_column d_head"],
    rows: Int64[Tensor, " edge"],
    columns: Int64[Tensor, " edge"],
) -> Float[Tensor, "group edge"]:
    """x_r y_c^T for every edge (r, c)."""
    n_row, n_column, n_edge = x.shape[1], y.shape[1], len(rows)
    if n_row * n_column <= n_edge:
        # All products are fewer than those that are wanted, as with few labels and many edges.
        return (x @ y.mT).flatten(1)[:, rows * n_column + columns]
    result = x.new_empty(x.shape[0], n_edge)
    if not has_kernels(x.device):
        for i, of_group in enumerate(x):
            torch.sum(of_group[rows] * _group(y, i)[columns], -1, out=result[i])
        return result
    _no_warning_of_beta()
    offsets = _offsets(rows, n_row)
    for groups in _chunks(x.shape[0], n_edge):
        count = groups.stop - groups.start
        right = _groups(y, groups)
        wanted = torch.sparse_csr_tensor(
            _of_groups(offsets, n_edge, count),
            _shifted(columns, right, count),
            x.new_zeros(1).expand(count * n_edge),
            (count * n_row, len(right) * n_column),
            check_invariants=False,
        )
        left, right = x[groups].flatten(0, 1), right.flatten(0, 1)
        found = torch.sparse.sampled_addmm(wanted, left, right.mT, beta=0.0)
        result[groups] = found.values().view(count, n_edge)
    return result


def _sums(
    weights: Float[Tensor, "group edge"],
    y: Float[Tensor, "#group n_column d_head"],
    rows: Int64[Tensor, " edge"],
    columns: Int64[Tensor, " edge"],
    n_row: int,
) -> Float[Tensor, "group n_row d_head"]:
    """The sum of w_rc y_c over the edges of each row r; zeros where there are none."""
    n_edge = len(rows)
    result = y.new_zeros(weights.shape[0], n_row, y.shape[2])
    if n_edge == 0:
        return result
    if not has_kernels(y.device):
        for i, (z, w) in enumerate(zip(result, weights, strict=True)):
            z.index_add_(0, rows, w[:, None] * _group(y, i)[columns])
        return result
    offsets = _offsets(rows, n_row)
    for groups in _chunks(weights.shape[0], n_edge):
        count = groups.stop - groups.start
        of_groups = _groups(y, groups)
        found = embedding_bag(
            _shifted(columns, of_groups, count),
            of_groups.flatten(0, 1),
            _of_groups(offsets, n_edge, count),
            mode="sum",
            per_sample_weights=weights[groups].flatten(),
            include_last_offset=True,
        )
        result[groups] = found.view(count, n_row, -1)
    return result


def _turned(
    weights: Float[Tensor, "group edge"],
    x: Float[Tensor, "group n_row d_head"],
    rows: Int64[Tensor, " edge"],
    columns: Int64[Tensor, " edge"],
    turn: Int64[Tensor, " edge"],
    like: Float[Tensor, "#group n_column d_head"],
) -> Float[Tensor, "#group n_column d_head"]:
    """The sum of w_rc x_r over the edges of each column c, and over groups that share it."""
    turned = (columns[turn], rows[turn], like.shape[1])
    if len(like) == len(x):
        return _sums(weights[:, turn], x, *turned)
    total = torch.zeros_like(like)
    for w, of_group in zip(weights, x, strict=True):
        total += _sums(w[None, turn], of_group[None], *turned)
    return total


def _group(y: Tensor, i: int) -> Tensor:
    return y[0] if len(y) == 1 else y[i]


def _groups(y: Tensor, groups: slice) -> Tensor:
    return y if len(y) == 1 else y[groups]


def _chunks(groups: int, n_edge: int) -> Iterator[slice]:
    size = max(1, CHUNK // max(1, n_edge))
    for start in range(0, groups, size):
        yield slice(start, min(groups, start + size))


def _offsets(rows: Int64[Tensor, " edge"], n_row: int) -> Int64[Tensor, " ends"]:
    """Where the edges of each row begin, and those of the last end."""
    return torch.searchsorted(rows, torch.arange(n_row + 1, device=rows.device))


def _of_groups(offsets: Tensor, n_edge: int, count: int) -> Int64[Tensor, " ends"]:
    """Offsets of several groups, one after the other."""
    starts = n_edge * torch.arange(count, device=offsets.device)
    all_but_last = (starts[:, None] + offsets[:-1]).flatten()
    return torch.cat((all_but_last, offsets.new_full((1,), n_edge * count)))


def _shifted(columns: Tensor, y: Tensor, count: int) -> Int64[Tensor, " edges_of_all"]:
    """Columns of several groups, one after the other; the same where they share y."""
    step = 0 if len(y) == 1 else y.shape[1]
    return (columns + step * torch.arange(count, device=columns.device)[:, None]).flatten()


@functools.cache
def _no_warning_of_beta() -> None:
    """PyTorch warns once of sparse matrices that its users make; ours are no concern of theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 1], [0], [0.0])


def _products_forward(x: Tensor, y: Tensor, *edges: Any) -> tuple[Tensor]:
    rows, columns, _, _ = edges
    return (_products(x, y, rows, columns),)


def _products_backward(x: Tensor, y: Tensor, *edges: Any) -> tuple[Tensor, Tensor]:
    rows, columns, turn, n_row, grad = edges
    of_x = _sums(grad, y, rows, columns, n_row)
    return of_x, _turned(grad, x, rows, columns, turn, like=y)


def _sums_forward(weights: Tensor, y: Tensor, *edges: Any) -> tuple[Tensor]:
    rows, columns, _, n_row = edges
    return (_sums(weights, y, rows, columns, n_row),)


def _sums_backward(weights: Tensor, y: Tensor, *edges: Any) -> tuple[Tensor, Tensor]:
    rows, columns, turn, _, grad = edges
    of_y = _turned(weights, grad, rows, columns, turn, like=y)
    return _products(grad, y, rows, columns), of_y


_EDGES = "Tensor rows, Tensor columns, Tensor turn"
_products_of = operator(
    "edge_products",
    f"Tensor x, Tensor y, {_EDGES}",
    "SymInt n_row",
    _products_forward,
    _products_backward,
    lambda x, y, rows, *rest: (x.new_empty(x.shape[0], rows.shape[0]),),
    n_differentiable=2,
)
_sums_of = operator(
    "edge_sums",
    f"Tensor weights, Tensor y, {_EDGES}",
    "SymInt n_row",
    _sums_forward,
    _sums_backward,
    lambda weights, y, *rest: (y.new_empty(weights.shape[0], rest[-1], y.shape[2]),),
    n_differentiable=2,
)


def edge_products(
    x: Float[Tensor, "group n_row d_head"], y: Float[Tensor, "#group n_column d_head"], edges: Edges
) -> Float[Tensor, "group edge"]:
    """x_r y_c^T for every edge (r, c)."""
    return _products_of(x, y, *edges, x.shape[1])


def edge_sums(
    weights: Float[Tensor, "group edge"],
    y: Float[Tensor, "#group n_column d_head"],
    edges: Edges,
    n_row: int,
) -> Float[Tensor, "group n_row d_head"]:
    """The sum of w_rc y_c over the edges of each row r; zeros where there are none."""
    return _sums_of(weights, y, *edges, n_row)
