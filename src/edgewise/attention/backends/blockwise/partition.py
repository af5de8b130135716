"""How the edges of a long sequence are divided: tails with one label, and windows with many.

Queries [q0, q1) are at positions [q0 + offset, q1 + offset). All keys left of position
q0 + offset - k + 1 have the first label, all from position q1 - 1 + offset + k on the last.
Halving the queries again and again turns almost all edges into such tails, the large ones first;
what remains is one narrow window of keys for each block of queries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Edges from queries [q0, q1) to keys [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int

    def rows(self, x: Tensor) -> Tensor:
        """Return [batch, head, n_query, …] for these queries."""
        return x[:, :, self.q0 : self.q1]

    def keys(self, x: Tensor) -> Tensor:
        """Return [batch, head, n_key, …] for these keys."""
        return x[:, :, self.k0 : self.k1]

    def edges(self, mask: Tensor | None) -> Tensor | None:
        """Return the mask of these edges; sizes of 1 stay."""
        if mask is None:
            return None
        rows = mask if mask.shape[2] == 1 else self.rows(mask)
        return rows if mask.shape[3] == 1 else rows[..., self.k0 : self.k1]


@dataclass(frozen=True)
class Tail(Part):
    """Edges that all have one label."""

    label: int  # a row of the tables: 0, the first, or -1, the last

    def split(self, max_edges: int) -> Iterator["Tail"]:
        """Yield the tail in pieces of at most this many edges, but at least one key."""
        n_keys = max(1, max_edges // (self.q1 - self.q0))
        for k0 in range(self.k0, self.k1, n_keys):
            yield replace(self, k0=k0, k1=min(self.k1, k0 + n_keys))


def divide(
    n_query: int, n_key: int, max_distance: int, offset: int, causal: bool, block: int
) -> tuple[list[Tail], list[Part]]:
    """Return tails and windows that contain every edge once; with `causal`, every visible edge.

    >>> divide(n_query=4, n_key=4, max_distance=1, offset=0, causal=True, block=2)[0]
    [Tail(q0=2, q1=4, k0=0, k1=2, label=0)]
    """
    assert max_distance >= 1
    tails: list[Tail] = []
    windows: list[Part] = []
    reach = 1 if causal else max_distance

    def visit(q0: int, q1: int, k0: int, k1: int) -> None:
        low = min(max(q0 + offset - max_distance + 1, k0), k1)
        high = min(max(q1 - 1 + offset + reach, low), k1)
        if low > k0:
            tails.append(Tail(q0, q1, k0, low, label=0))
        if high < k1 and not causal:
            tails.append(Tail(q0, q1, high, k1, label=-1))
        if q1 - q0 <= block:
            windows.append(Part(q0, q1, low, high))
            return
        half = block * max(1, round((q1 - q0) / (2 * block)))
        visit(q0, q0 + half, low, high)
        visit(q0 + half, q1, low, high)

    visit(0, n_query, 0, n_key)
    return tails, windows
