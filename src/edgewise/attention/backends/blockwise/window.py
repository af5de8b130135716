"""The edges near the diagonal, for one block of queries: every label between the two tails.

The logits of a window are a small dense matrix. Its band, the edges with |j - i| < k, is a view
with one more column a row, so labels need no gather: q_i w_l^T is added to the band, and the band
of the weights is multiplied, where they are. Left of the band is a triangle with the first label,
right of it one with the last.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from edgewise.attention.backends.blockwise.partition import Tail, Window

# Queries of a window, by whether it is causal: measured with benchmarks/bench_attention.py --bar.
BLOCKS = {False: 256, True: 128}


class Arguments(NamedTuple):
    """The arguments of the operator."""

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    value: Float[Tensor, "batch head n_key d_head"]
    key_table: Float[Tensor, "*head n_label d_head"] | None
    value_table: Float[Tensor, "*head n_label d_head"] | None
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None
    max_distance: int
    offset: int
    causal: bool
    scale: float


@dataclass(frozen=True)
class Table:
    """A table, or its gradient, in three parts, for each of the batch * head groups."""

    first: Float[Tensor, "group 1 d_head"]  # distances -k and beyond
    band: Float[Tensor, "group n_band d_head"]
    last: Float[Tensor, "group 1 d_head"]  # distances k and beyond


@dataclass(frozen=True)
class BlockwiseInputs:
    """What all tails and windows of one call share."""

    query: Float[Tensor, "batch head n_query d_head"]
    key: Float[Tensor, "batch head n_key d_head"]
    value: Float[Tensor, "batch head n_key d_head"]
    key_table: Table | None
    value_table: Table | None
    mask: Bool[Tensor, "#batch #head #n_query #n_key"] | None
    max_distance: int
    offset: int
    causal: bool
    scale: float
    right_corner: Float[Tensor, "block block"]  # 1 from the diagonal up
    left_corner: Float[Tensor, "block block"]  # 1 below the diagonal

    @property
    def n_band(self) -> int:
        """Return the number of labels between the tails; if causal, of those up to distance 0."""
        return self.max_distance if self.causal else 2 * self.max_distance - 1

    @property
    def block(self) -> int:
        return len(self.right_corner)

    def ungrouped(self, x: Float[Tensor, "group *rest"]) -> Float[Tensor, "batch head *rest"]:
        return x.reshape(*self.query.shape[:2], *x.shape[1:])

    def zero_table(self) -> Table:
        """Return zeros for the gradient of a table."""
        batch, heads, _, d_head = self.query.shape
        sizes = (1, self.n_band, 1)
        return Table(*(self.query.new_zeros(batch * heads, n, d_head) for n in sizes))

    def scratch(self) -> Float[Tensor, "2 size"]:
        """Return memory for two matrices of a window: mapping fresh memory costs more."""
        batch, heads = self.query.shape[:2]
        size = batch * heads * self.block * (self.block + self.n_band - 1)
        return self.query.new_empty(2, size)


def prepare_inputs(a: Arguments) -> BlockwiseInputs:
    """Return the arguments with split tables, and contiguous as the fused kernels need them."""
    n_band = a.max_distance if a.causal else 2 * a.max_distance - 1
    batch, heads = a.query.shape[:2]
    key_table, value_table = (
        None if table is None else split_table(table, batch, heads, n_band)
        for table in (a.key_table, a.value_table)
    )
    tensors = (a.query, a.key, a.value)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in tensors)
    square = query.new_ones(BLOCKS[a.causal], BLOCKS[a.causal])
    return BlockwiseInputs(
        *(query, key, value, key_table, value_table, a.mask),
        *(a.max_distance, a.offset, a.causal, a.scale),
        right_corner=square.triu(),
        left_corner=square.tril(-1),
    )


def split_table(table: Tensor, batch: int, heads: int, n_band: int) -> Table:
    """Return a table [n_label, d_head] or [head, n_label, d_head] for each group."""
    parts = (table[..., :1, :], table[..., 1 : 1 + n_band, :], table[..., -1:, :])
    if table.dim() == 2:
        return Table(*(part.expand(batch * heads, -1, -1) for part in parts))
    return Table(*(part.repeat(batch, 1, 1) for part in parts))


def join_table(like: Tensor | None, grad: Table | None, query: Tensor) -> Tensor:
    """Return the gradient of a table from those of its parts; empty without a table.

    grad.first: the gradient of a vector that is added to all rows. The gradient of the first row
        is the rest of it.
    """
    if like is None or grad is None:
        return query.new_empty(0)
    n_label, d_head = like.shape[-2:]
    whole = query.new_zeros(len(grad.first), n_label, d_head)
    whole[:, 1 : 1 + grad.band.shape[1]] = grad.band
    whole[:, -1:] += grad.last
    whole[:, :1] += grad.first - whole.sum(1, keepdim=True)
    per_head = whole.view(-1, query.shape[1], n_label, d_head).sum(0)
    return per_head if like.dim() == 3 else per_head.sum(0)


def slice_mask(mask: Tensor | None, part: Tail | Window) -> Tensor | None:
    """Return the mask of the edges of one part; sizes of 1 stay."""
    if mask is None:
        return None
    rows = mask if mask.shape[2] == 1 else mask[:, :, part.q0 : part.q1]
    return rows if mask.shape[3] == 1 else rows[..., part.k0 : part.k1]


def band_of(
    matrix: Float[Tensor, "group n_query width"], n_band: int
) -> Float[Tensor, "group n_query n_band"]:
    """Return a view with entry (i, i + m) of the matrix as entry (i, m): rows longer by one."""
    group, n_query, _ = matrix.shape
    strides = (matrix.stride(0), matrix.stride(1) + 1, 1)
    return matrix.as_strided((group, n_query, n_band), strides, matrix.storage_offset())


class WindowView:
    """The inputs of one window as [group, n, d_head], and matrices made of them.

    Column c of a window is the key at position q0 + offset - k + 1 + c, whether or not there is
    such a key, so that all windows have one shape.
    """

    def __init__(
        self, inputs: BlockwiseInputs, window: Window, scratch: Float[Tensor, "2 size"]
    ) -> None:
        self.inputs, self.window, self.scratch = inputs, window, scratch
        n_query = window.q1 - window.q0
        self.width = n_query + inputs.n_band - 1
        first_key = window.q0 + inputs.offset - inputs.max_distance + 1
        self.start = min(max(window.k0 - first_key, 0), self.width)
        self.stop = self.start + window.k1 - window.k0
        self.query = self.rows(inputs.query)
        self.key = self._keys(inputs.key)
        self.left_corner, self.right_corner = (
            corner[:n_query, : n_query - 1] for corner in (inputs.left_corner, inputs.right_corner)
        )

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
        return self._keys(self.inputs.value)

    def products(
        self,
        x: Float[Tensor, "group block d_head"],
        y: Float[Tensor, "group width d_head"],
        table: Table | None,
        scale: float,
        slot: int,
    ) -> Float[Tensor, "group block width"]:
        """Return scale * x_i (y_j + a_ij)^T of every edge, a_ij the row of its label."""
        n_band = self.inputs.n_band
        result = self._matrix(slot, self.width)
        torch.baddbmm(x.new_zeros(()), x, y.mT, beta=0, alpha=scale, out=result)
        if table is not None:
            band_of(result, n_band).add_(torch.bmm(x, table.band.mT), alpha=scale)
            first = torch.bmm(x, table.first.mT)
            result[..., : self.left_corner.shape[1]].addcmul_(self.left_corner, first, value=scale)
            if not self.inputs.causal:
                last = torch.bmm(x, table.last.mT)
                result[..., n_band:].addcmul_(self.right_corner, last, value=scale)
        return result

    def left_sum(
        self, weights: Float[Tensor, "group block width"], slot: int
    ) -> Float[Tensor, "group block 1"]:
        """Return the sum of the weights of the first label; `slot` is overwritten."""
        return self._corner_sum(weights[..., : self.left_corner.shape[1]], self.left_corner, slot)

    def right_sum(
        self, weights: Float[Tensor, "group block width"], slot: int
    ) -> Float[Tensor, "group block 1"]:
        """Return the sum of the weights of the last label; `slot` is overwritten."""
        return self._corner_sum(weights[..., self.inputs.n_band :], self.right_corner, slot)

    def _corner_sum(self, weights: Tensor, corner: Tensor, slot: int) -> Tensor:
        masked = self._matrix(slot, corner.shape[1])
        torch.mul(weights, corner, out=masked)
        return masked.sum(-1, keepdim=True)

    def _matrix(self, slot: int, width: int) -> Float[Tensor, "group block {width}"]:
        """Return memory for a matrix of this window, which may hold anything."""
        shape = (*self.query.shape[:2], width)
        return self.scratch[slot, : math.prod(shape)].view(shape)

    def logits(self) -> Float[Tensor, "group block width"]:
        """Return equation 5 for these edges; -inf where there is none."""
        inputs = self.inputs
        logits = self.products(self.query, self.key, inputs.key_table, inputs.scale, slot=0)
        if inputs.causal:
            logits[..., inputs.n_band :].masked_fill_(self.right_corner.bool(), -math.inf)
        if self.start > 0:
            logits[..., : self.start] = -math.inf
        if self.stop < self.width:
            logits[..., self.stop :] = -math.inf
        mask = slice_mask(inputs.mask, self.window)
        if mask is not None:
            edges = inputs.ungrouped(logits)[..., self.start : self.stop]
            edges.masked_fill_(~mask, -math.inf)
        return logits
