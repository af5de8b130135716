"""How the edges of a long sequence are divided: tails with one label, and windows with many.

Queries [q0, q1) are at positions [q0 + offset, q1 + offset). All keys left of position
q0 + offset - k + 1 have the first label, all from position q1 - 1 + offset + k on the last.
Halving the queries again and again turns almost all edges into such tails, the large ones first;
what remains is one narrow window of keys for each block of queries.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Tail(NamedTuple):
    """Edges from queries [q0, q1) to keys [k0, k1), all with one label."""

    q0: int
    q1: int
    k0: int
    k1: int
    right: bool  # the last label, not the first
    first: bool  # no earlier tail on this side has these queries

    def split(self, max_edges: int) -> Iterator["Tail"]:
        """Yield the tail in pieces of at most this many edges, but at least one key."""
        n_keys = max(1, max_edges // (self.q1 - self.q0))
        for k0 in range(self.k0, self.k1, n_keys):
            k1 = min(self.k1, k0 + n_keys)
            yield self._replace(k0=k0, k1=k1, first=self.first and k0 == self.k0)


class Window(NamedTuple):
    """Edges from queries [q0, q1) to the keys near them, [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int
    left: bool  # these queries have a tail on the left
    right: bool  # these queries have a tail on the right


def divide(
    n_query: int, n_key: int, max_distance: int, offset: int, causal: bool, block: int
) -> tuple[list[Tail], list[Window]]:
    """Return tails and windows that contain every edge once; with `causal`, every visible edge.

    >>> divide(n_query=4, n_key=4, max_distance=1, offset=0, causal=True, block=2)[0]
    [Tail(q0=2, q1=4, k0=0, k1=2, right=False, first=True)]
    """
    assert max_distance >= 1
    tails: list[Tail] = []
    windows: list[Window] = []

    def visit(q0: int, q1: int, k0: int, k1: int, left: bool, right: bool) -> None:
        reach = 1 if causal else max_distance
        low = min(max(q0 + offset - max_distance + 1, k0), k1)
        high = min(max(q1 - 1 + offset + reach, low), k1)
        if low > k0:
            tails.append(Tail(q0, q1, k0, low, right=False, first=not left))
            left = True
        if high < k1 and not causal:
            tails.append(Tail(q0, q1, high, k1, right=True, first=not right))
            right = True
        if q1 - q0 <= block:
            windows.append(Window(q0, q1, low, high, left, right))
            return
        half = block * max(1, round((q1 - q0) / (2 * block)))
        visit(q0, q0 + half, low, high, left, right)
        visit(q0 + half, q1, low, high, left, right)

    visit(0, n_query, 0, n_key, False, False)
    return tails, windows
