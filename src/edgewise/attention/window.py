"""The edges near the diagonal, for one block of queries: every label between the two tails.

The logits of a window are a small dense matrix. Its band, the edges with |j - i| < k, is a view
with one more column a row, so labels need no gather: the band of q_i w_l is added, and the band of
the weights is multiplied, where it lies. Right of the band is the corner, with the last label;
left of it the first label, whose vectors are subtracted from all others (see `blockwise`).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention import fused
from edgewise.attention.blocks import Tail, Window

# Queries of a window, by whether it is causal: measured with benchmarks/bench_attention.py --bar.
BLOCKS = {False: 256, True: 128}


class Table(NamedTuple):
    """A table as differences to its first row, one for each sentence and head."""

    first: Float[Tensor, "group 1 d_head"]
    band: Float[Tensor, "group n_band d_head"]
    last: Float[Tensor, "group 1 d_head"]


class Problem(NamedTuple):
    """What all windows of one call share."""

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    value: Float[Tensor, "batch head n_key d_head"]
    keys: Table | None
    values: Table | None
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None
    max_distance: int
    offset: int
    causal: bool
    scale: float
    corner: Float[Tensor, "block block"]  # 1 from the diagonal up: the last label in a window

    @property
    def n_band(self) -> int:
        """Labels between the two tails; under causal masking, those that may be seen."""
        return self.max_distance if self.causal else 2 * self.max_distance - 1

    def ungrouped(self, x: Float[Tensor, "group *rest"]) -> Float[Tensor, "batch head *rest"]:
        return x.reshape(*self.query.shape[:2], *x.shape[1:])

    def bias(self) -> Tensor | None:
        """The mask as the fused kernels take it."""
        return None if self.mask is None else fused.additive(self.mask, self.query.dtype)

    def new_table(self) -> Table:
        """Zeros for the gradient of a table."""
        batch, heads, _, d_head = self.query.shape
        sizes = (1, self.n_band, 1)
        return Table(*(self.corner.new_zeros(batch * heads, n, d_head) for n in sizes))

    def scratch(self) -> Float[Tensor, "2 size"]:
        """Memory for two matrices of a window: to map fresh memory costs more than to use it."""
        batch, heads = self.query.shape[:2]
        block = len(self.corner)
        return self.corner.new_empty(2, batch * heads * block * (block + self.n_band - 1))


def pose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    mask: Tensor | None,
    max_distance: int,
    offset: int,
    causal: bool,
    scale: float,
) -> Problem:
    """The problem with its tables split, and its inputs as the fused kernels need them."""
    n_band = max_distance if causal else 2 * max_distance - 1
    keys, values = (
        None if table is None else split_table(table, query.shape[0], query.shape[1], n_band)
        for table in (key_table, value_table)
    )
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    block = BLOCKS[causal]
    corner = query.new_ones(block, block).triu_()
    return Problem(
        *(query, key, value, keys, values, mask),
        *(max_distance, offset, causal, scale, corner),
    )


def split_table(table: Tensor, batch: int, heads: int, n_band: int) -> Table:
    """A table [n_label, d_head] or [head, n_label, d_head] for each of the batch * head groups."""
    first = table[..., :1, :]
    parts = (first, table[..., 1 : 1 + n_band, :] - first, table[..., -1:, :] - first)
    if table.dim() == 2:
        return Table(*(part.expand(batch * heads, -1, -1) for part in parts))
    return Table(*(part.repeat(batch, 1, 1) for part in parts))


def join_table(like: Tensor, heads: int, grad: Table) -> Tensor:
    """The gradient of a table from those of its parts; the reverse of `split_table`."""
    n_label = like.shape[-2]
    whole = grad.first.new_zeros(grad.first.shape[0], n_label, like.shape[-1])
    whole[:, 1 : 1 + grad.band.shape[1]] = grad.band
    whole[:, -1:] += grad.last
    whole[:, :1] += grad.first - whole.sum(1, keepdim=True)
    per_head = whole.view(-1, heads, n_label, like.shape[-1]).sum(0)
    return per_head if like.dim() == 3 else per_head.sum(0)


def slice_mask(mask: Tensor | None, part: Tail | Window) -> Tensor | None:
    """A mask, or the bias made of it, for the edges of one part; sizes of 1 stay."""
    if mask is None:
        return None
    rows = mask if mask.shape[2] == 1 else mask[:, :, part.q0 : part.q1]
    return rows if mask.shape[3] == 1 else rows[..., part.k0 : part.k1]


def band_of(
    matrix: Float[Tensor, "group n_query width"], n_band: int
) -> Float[Tensor, "group n_query n_band"]:
    """Entry (i, m) is entry (i, i + m) of the matrix: a view whose rows are longer by one."""
    group, n_query, _ = matrix.shape
    strides = (matrix.stride(0), matrix.stride(1) + 1, 1)
    return matrix.as_strided((group, n_query, n_band), strides, matrix.storage_offset())


class WindowView:
    """One window of a problem: its inputs as [group, n, d_head], and what follows from them.

    Column c of the window is the key at position q0 + offset - k + 1 + c, whether or not there is
    such a key, so that all windows have one shape.
    """

    def __init__(self, problem: Problem, window: Window, scratch: Float[Tensor, "2 size"]) -> None:
        self.problem, self.window, self.scratch = problem, window, scratch
        n_query = window.q1 - window.q0
        self.width = n_query + problem.n_band - 1
        first_key = window.q0 + problem.offset - problem.max_distance + 1
        self.start = min(max(window.k0 - first_key, 0), self.width)
        self.stop = self.start + window.k1 - window.k0
        self.query = self.rows(problem.query)
        self.key = self._keys(problem.key)
        self.corner = problem.corner[:n_query, : n_query - 1]

    def rows(
        self, tensor: Float[Tensor, "batch head n_query d_head"]
    ) -> Float[Tensor, "group block d_head"]:
        return tensor[:, :, self.window.q0 : self.window.q1].flatten(0, 1)

    def _keys(self, tensor: Tensor) -> Float[Tensor, "group width d_head"]:
        keys = tensor[:, :, self.window.k0 : self.window.k1]
        if self.stop - self.start < self.width:
            padding = (0, 0, self.start, self.width - self.stop)
            keys = torch.nn.functional.pad(keys, padding)
        return keys.flatten(0, 1)

    def value(self) -> Float[Tensor, "group width d_head"]:
        return self._keys(self.problem.value)

    def spread(
        self,
        vectors: Float[Tensor, "group block d_head"],
        keys: Float[Tensor, "group width d_head"],
        table: Table | None,
        scale: float,
        slot: int,
    ) -> Float[Tensor, "group block width"]:
        """scale * x_i (y_j + a_ij) for every edge, a_ij the table's vector of its label."""
        n_band = self.problem.n_band
        result = self._matrix(slot, self.width)
        torch.baddbmm(vectors.new_zeros(()), vectors, keys.mT, beta=0, alpha=scale, out=result)
        if table is not None:
            band_of(result, n_band).add_(torch.bmm(vectors, table.band.mT), alpha=scale)
            if not self.problem.causal:
                last = torch.bmm(vectors, table.last.mT)
                result[..., n_band:].addcmul_(self.corner, last, value=scale)
        return result

    def corner_sum(
        self, weights: Float[Tensor, "group block width"], slot: int
    ) -> Float[Tensor, "group block 1"]:
        """The weights of the last label, summed."""
        masked = self._matrix(slot, self.corner.shape[1])
        torch.mul(weights[..., self.problem.n_band :], self.corner, out=masked)
        return masked.sum(-1, keepdim=True)

    def _matrix(self, slot: int, width: int) -> Float[Tensor, "group block {width}"]:
        """Memory for a matrix of this window; what the slot held before is lost."""
        shape = (*self.query.shape[:2], width)
        return self.scratch[slot, : math.prod(shape)].view(shape)

    def logits(self) -> Float[Tensor, "group block width"]:
        """Eq. 5 for these edges, less the first label's term; -inf where there is none."""
        problem = self.problem
        logits = self.spread(self.query, self.key, problem.keys, problem.scale, slot=0)
        if problem.causal:
            logits[..., problem.n_band :].masked_fill_(self.corner.bool(), -math.inf)
        if self.start > 0:
            logits[..., : self.start] = -math.inf
        if self.stop < self.width:
            logits[..., self.stop :] = -math.inf
        mask = slice_mask(problem.mask, self.window)
        if mask is not None:
            edges = problem.ungrouped(logits)[..., self.start : self.stop]
            edges.masked_fill_(~mask, -math.inf)
        return logits
