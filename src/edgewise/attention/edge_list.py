"""A graph as a list of edges: only these are attended, however many nodes there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from edgewise.attention import check
from edgewise.attention.relations import Relation, can_read_values
from edgewise.attention.shapes import EdgeIndex
from edgewise.errors import ArgumentError


class Edges(NamedTuple):
    """Edges from rows to columns, sorted by row."""

    rows: EdgeIndex
    columns: EdgeIndex
    csc_permutation: EdgeIndex  # sorts the edges by column


@dataclass(frozen=True, eq=False)
class EdgeList(Relation):
    """Queries attend along these edges only; each has a label, a row of the tables.

    query_index, key_index, labels: int64 [edge]. An edge with label -1 adds no vector. Repeated
        edges count repeatedly. A query without edges gives zeros.
    n_nodes: the number of nodes; if given, n_query and n_key must equal it. `union` needs it if the
        last nodes have no edge, or on a GPU.

    Every item of a batch has the same graph. For different graphs, concatenate their nodes along n,
    with batch size 1, and combine the graphs by `union`. Indices are checked on CPUs only.

    >>> edges = EdgeList(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([5, 3]))
    >>> edges.n_labels
    6
    """

    is_dense: ClassVar[bool] = False
    has_unlabelled: ClassVar[bool] = True  # type: ignore[misc]
    query_index: EdgeIndex
    key_index: EdgeIndex
    labels: EdgeIndex
    n_nodes: int | None = None
    # Smallest numbers of queries, keys and labels; None where values cannot be read.
    min_queries: int | None = field(init=False, repr=False, default=None)
    min_keys: int | None = field(init=False, repr=False, default=None)
    n_labels: int | None = field(init=False, repr=False, default=None)
    # The edges sorted by query, and two permutations of these: by key, by label.
    sorted_queries: EdgeIndex = field(init=False, repr=False)
    sorted_keys: EdgeIndex = field(init=False, repr=False)
    sorted_labels: EdgeIndex = field(init=False, repr=False)
    by_key: EdgeIndex = field(init=False, repr=False)
    by_label: EdgeIndex = field(init=False, repr=False)

    def __post_init__(self) -> None:
        indices = {name: getattr(self, name) for name in ("query_index", "key_index", "labels")}
        sizes = []
        for name, index in indices.items():
            check.tensor(name, index, "an int64 tensor [edge]", (torch.int64,), 1)
            check.device(name, index, self.query_index, of="query_index")
            sizes.append(len(index))
        if len(set(sizes)) > 1:
            raise ArgumentError(f"{', '.join(indices)} must have one entry per edge; got {sizes}")
        # Copies, so that what was checked is what is used.
        found: dict[str, Any] = {name: index.clone() for name, index in indices.items()}
        if can_read_values(self.labels):
            counts = _check_values(indices, self.n_nodes)
            found |= zip(("min_queries", "min_keys", "n_labels"), counts, strict=True)
        order = self.query_index.argsort(stable=True)
        queries, keys, labels = (index[order] for index in indices.values())
        found |= {"sorted_queries": queries, "sorted_keys": keys, "sorted_labels": labels}
        # Edges without a label come last, as their row of the tables does.
        last_label = labels.masked_fill(labels < 0, torch.iinfo(torch.int64).max)
        found |= {"by_key": keys.argsort(stable=True), "by_label": last_label.argsort(stable=True)}
        vars(self).update(found)  # it is frozen

    @property
    def edges(self) -> Edges:
        """Return the graph from queries to keys."""
        return Edges(self.sorted_queries, self.sorted_keys, self.by_key)

    def label_edges(self, rows: int) -> Edges:
        """Return the graph from queries to the rows of a table; label -1 is its last row."""
        return Edges(self.sorted_queries, self.sorted_labels.remainder(rows), self.by_label)

    def check(self, query: Tensor, key: Tensor) -> None:
        n_query, n_key = query.shape[2], key.shape[2]
        sizes = (("query", n_query, self.min_queries), ("key", n_key, self.min_keys))
        for end, size, needed in sizes:
            if needed is not None and needed > size:
                raise ArgumentError(f"{end}_index must be below n_{end}, {size}; got {needed - 1}")
        if self.n_nodes is not None and not self.n_nodes == n_query == n_key:
            raise ArgumentError(
                f"the graph has n_nodes={self.n_nodes}; got {n_query} queries and {n_key} keys"
            )
        check.device("the graph", self.labels, query)

    @classmethod
    def union(cls, graphs: Sequence["EdgeList"]) -> "EdgeList":
        """Return several graphs as one, with the nodes of the second after those of the first.

        A graph has n_nodes nodes or, by default, one more than its largest index.

        >>> pair = EdgeList(torch.tensor([0]), torch.tensor([1]), torch.tensor([0]))
        >>> EdgeList.union([pair, pair]).key_index.tolist()
        [1, 3]
        """
        graphs = list(graphs)
        if not graphs:
            raise ArgumentError("union needs one graph or more; got none")
        for graph in graphs:
            check.type_of("graphs of a union", graph, "EdgeLists", EdgeList)
        *starts, n_nodes = accumulate((graph._size() for graph in graphs), initial=0)
        devices = sorted({str(graph.labels.device) for graph in graphs})
        if len(devices) > 1:
            raise ArgumentError(f"graphs must be on one device; got {' and '.join(devices)}")
        queries, keys = (
            torch.cat([getattr(g, name) + start for g, start in zip(graphs, starts, strict=True)])
            for name in ("query_index", "key_index")
        )
        labels = torch.cat([graph.labels for graph in graphs])
        return cls(queries, keys, labels, n_nodes=n_nodes)

    def _size(self) -> int:
        if self.n_nodes is not None:
            return self.n_nodes
        if self.min_queries is not None and self.min_keys is not None:
            return max(self.min_queries, self.min_keys)
        device = self.labels.device
        raise ArgumentError(f"union needs n_nodes on {device}; got EdgeList(…, n_nodes=None)")


def _check_values(indices: dict[str, Tensor], n_nodes: int | None) -> list[int]:
    """Return the numbers of queries, keys and labels; ArgumentError if a value is too small."""
    counts = []
    for (name, index), least in zip(indices.items(), (0, 0, -1), strict=True):
        if len(index) and int(index.min()) < least:
            why = " (-1 is an edge without a label)" if least < 0 else ""
            raise ArgumentError(f"{name} must be {least} or more; got {int(index.min())}{why}")
        counts.append(int(index.max()) + 1 if len(index) else 0)
    if n_nodes is not None:
        if isinstance(n_nodes, bool) or not isinstance(n_nodes, int) or n_nodes < 0:
            raise ArgumentError(f"n_nodes must be an int, 0 or more; got {n_nodes!r}")
        if max(counts[:2]) > n_nodes:
            most = max(counts[:2]) - 1
            raise ArgumentError(f"query_index and key_index must be below {n_nodes=}; got {most}")
    return counts
