"""The edges near the diagonal, for one block of queries: every label between the two tails.

The logits of a window are a small dense matrix. In a view with a row stride larger by one, its
band, the edges with |j - i| < k, has a column for each label, so labels need no gather: q_i w_l^T
is added to the band in place, and the band of the weights is multiplied with the table. Left of the
band is a triangle with the first label, right of it one with the last.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from edgewise.attention.backends.blockwise.partition import Part
from edgewise.attention.shapes import Keys, Mask, Queries, Table

# Queries of a window, by whether it is causal: measured with benchmarks/bench_attention.py --bar.
BLOCKS = {False: 256, True: 128}

# A group is one head of one sequence.
GroupTable = Float[Tensor, "group n_column d_head"]
Rows = Float[Tensor, "group block d_head"]
Columns = Float[Tensor, "group width d_head"]
Matrix = Float[Tensor, "group block width"]
LabelSums = Float[Tensor, "group block n_column"]
Sums = Float[Tensor, "group block 1"]


class Arguments(NamedTuple):
    """The arguments of the operator; once `prepared`, tables are [group, n_column, d_head]."""

    query: Queries
    key: Keys
    value: Keys
    key_table: Table | None
    value_table: Table | None
    mask: Mask | None
    max_distance: int
    offset: int
    causal: bool
    scale: float

    @property
    def n_column(self) -> int:
        """Return the number of labels; if causal, of those up to distance 0."""
        return self.max_distance + 1 if self.causal else 2 * self.max_distance + 1

    @property
    def n_band(self) -> int:
        """Return the number of labels between the tails."""
        return self.n_column - len(self.tail_labels)

    @property
    def block(self) -> int:
        return BLOCKS[self.causal]

    @property
    def tail_labels(self) -> tuple[int, ...]:
        """Return the rows of a table that tails have; causal queries have no right tail."""
        return (0,) if self.causal else (0, -1)

    def prepared(self) -> "Arguments":
        """Return tables for each group, and tensors contiguous as the fused kernels need them.

        Labels of distances that do not occur are left out.
        """
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in self[:3])
        longest = max(1, key.shape[2] - self.offset, query.shape[2] + self.offset)
        a = self._replace(max_distance=min(self.max_distance, longest))
        first, sizes = self.max_distance - a.max_distance, (*query.shape[:2], -1, -1)
        key_table, value_table = (
            None if x is None else x.narrow(-2, first, a.n_column).expand(sizes).flatten(0, 1)
            for x in self[3:5]
        )
        return Arguments(query, key, value, key_table, value_table, *a[5:])

    def ungrouped(self, x: Float[Tensor, "group *rest"]) -> Float[Tensor, "batch head *rest"]:
        return x.reshape(*self.query.shape[:2], *x.shape[1:])


class WindowView:
    """The inputs of one window as [group, n, d_head], and matrices made of them.

    Column c of a window is the key at position q0 + offset - k + 1 + c, whether or not there is
    such a key, so that all windows have one shape.
    """

    def __init__(
        self, inputs: Arguments, window: Part, scratch: Tensor, corners: tuple[Tensor, Tensor]
    ) -> None:
        self.inputs, self.window, self.scratch = inputs, window, scratch
        n_query, n_band = window.q1 - window.q0, inputs.n_band
        self.width = n_query + n_band - 1
        first_key = window.q0 + inputs.offset - inputs.max_distance + 1
        self.start = min(max(window.k0 - first_key, 0), self.width)
        self.stop = self.start + window.k1 - window.k0
        self.query = self.rows(inputs.query)
        padding = (0, 0, self.start, self.width - self.stop)
        self.key, self.value = (
            (pad(x, padding) if any(padding) else x).flatten(0, 1)
            for x in (window.keys(inputs.key), window.keys(inputs.value))
        )
        # Left and right of the band: columns, and a matrix with 1 for edges with a tail's label.
        left, right = (corner[:n_query, : n_query - 1] for corner in corners)
        self.triangles = ((slice(n_query - 1), left), (slice(n_band, self.width), right))

    def rows(self, x: Float[Tensor, "batch head n_query *d"]) -> Float[Tensor, "group block *d"]:
        return self.window.rows(x).flatten(0, 1)

    def band(self, matrix: Matrix) -> Float[Tensor, "group block n_band"]:
        """Return a view with entry (i, i + m) of the matrix as entry (i, m): rows longer by one."""
        size = (*matrix.shape[:2], self.inputs.n_band)
        strides = (matrix.stride(0), matrix.stride(1) + 1, 1)
        return matrix.as_strided(size, strides, matrix.storage_offset())

    def products(
        self, x: Rows, y: Columns, table: GroupTable | None, scale: float, slot: int
    ) -> Matrix:
        """Return scale * x_i (y_j + a_ij)^T of every edge, a_ij the row of its label, in `slot`."""
        result = self._memory(slot, self.width)
        torch.baddbmm(x.new_zeros(()), x, y.mT, beta=0, alpha=scale, out=result)
        if table is not None:
            by_label = torch.bmm(x, table.mT)
            self.band(result).add_(by_label[..., 1 : 1 + self.inputs.n_band], alpha=scale)
            labels = self.inputs.tail_labels  # if causal, one: the right triangle is masked
            for label, (columns, corner) in zip(labels, self.triangles, strict=False):
                result[..., columns].addcmul_(corner, by_label[..., label, None], value=scale)
        return result

    def sum_by_label(self, x: Matrix, tails: Sequence[Sums], slot: int) -> LabelSums:
        """Return the sum of a matrix for each query and label, plus those of each side's tails.

        slot: memory that is overwritten.
        """
        sums = x.new_empty(*x.shape[:2], self.inputs.n_column)
        sums[..., 1 : 1 + self.inputs.n_band] = self.band(x)
        labels = self.inputs.tail_labels
        for label, (columns, corner), tail in zip(labels, self.triangles, tails, strict=False):
            masked = self._memory(slot, corner.shape[1])
            torch.mul(x[..., columns], corner, out=masked)
            sums[..., label, None] = masked.sum(-1, keepdim=True).add_(tail)
        return sums

    def _memory(self, slot: int, width: int) -> Float[Tensor, "group block {width}"]:
        """Return uninitialised memory for a matrix of this window."""
        shape = (*self.query.shape[:2], width)
        return self.scratch[slot, : math.prod(shape)].view(shape)

    def logits(self) -> Matrix:
        """Return equation 5 for these edges, in slot 0; -inf where there is none."""
        inputs = self.inputs
        logits = self.products(self.query, self.key, inputs.key_table, inputs.scale, slot=0)
        if inputs.causal:
            columns, corner = self.triangles[1]
            logits[..., columns].masked_fill_(corner.bool(), -math.inf)
        logits[..., : self.start] = -math.inf
        logits[..., self.stop :] = -math.inf
        if (mask := self.window.edges(inputs.mask)) is not None:
            edges = inputs.ungrouped(logits)[..., self.start : self.stop]
            edges.masked_fill_(~mask, -math.inf)
        return logits


def window_views(inputs: Arguments, windows: Iterable[Part]) -> Iterator[WindowView]:
    """Yield a view of each window; they share scratch memory, since mapping fresh costs more."""
    (batch, heads), block = inputs.query.shape[:2], inputs.block
    scratch = inputs.query.new_empty(2, batch * heads * block * (block + inputs.n_band - 1))
    square = inputs.query.new_ones(block, block)
    corners = (square.tril(-1), square.triu())
    for window in windows:
        yield WindowView(inputs, window, scratch, corners)
