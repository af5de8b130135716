"""A graph as a list of edges: only these are attended, however many nodes there are."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from edgewise.errors import ArgumentError


class Edges(NamedTuple):
    """Edges from rows to columns, sorted by row, and how to sort them by column."""

    rows: Int64[Tensor, " edge"]
    columns: Int64[Tensor, " edge"]
    turn: Int64[Tensor, " edge"]  # place of the edges in the order of their columns


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Queries attend along these edges only; each has a label, a row of the tables.

    query_index, key_index, labels: int64 [edge]. Label -1: the edge adds no vector. An edge given
        twice counts twice. A query without edges gives zeros.
    n_nodes: how many there are, where some of the last have no edge and it matters: to `union`.

    The same graph is used for each item of a batch; graphs that differ are one `union`.

    >>> edges = EdgeList(torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([5, 3]))
    >>> edges.n_labels
    6
    """

    query_index: Int64[Tensor, " edge"]
    key_index: Int64[Tensor, " edge"]
    labels: Int64[Tensor, " edge"]
    n_nodes: int | None = None
    # Found once, here: the ranges, and the edges in the order of the queries.
    least_queries: int = field(init=False, repr=False)
    least_keys: int = field(init=False, repr=False)
    n_labels: int = field(init=False, repr=False)
    sorted_labels: Int64[Tensor, " edge"] = field(init=False, repr=False)
    by_query: Edges = field(init=False, repr=False)
    _turn_of_labels: Int64[Tensor, " edge"] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        named = ("query_index", "key_index", "labels")
        for name in named:
            index = getattr(self, name)
            if not isinstance(index, Tensor) or index.dtype != torch.int64 or index.dim() != 1:
                got = (
                    f"{index.dtype} {list(index.shape)}"
                    if isinstance(index, Tensor)
                    else type(index).__name__
                )
                raise ArgumentError(f"{name} must be an int64 tensor [edge]; got {got}")
            if index.device != self.query_index.device:
                raise ArgumentError(
                    f"{name} must be on the device of query_index, {self.query_index.device}; "
                    f"got {index.device}"
                )
        sizes = [len(getattr(self, name)) for name in named]
        if len(set(sizes)) > 1:
            raise ArgumentError(
                "query_index, key_index and labels must have one entry for each edge; got "
                f"{sizes[0]}, {sizes[1]} and {sizes[2]}"
            )
        for name, least in zip(named, (0, 0, -1), strict=True):
            index = getattr(self, name)
            if len(index) and int(index.min()) < least:
                why = " (-1 is an edge without a label)" if least < 0 else ""
                raise ArgumentError(f"{name} must be {least} or more; got {int(index.min())}{why}")
        ends = [int(getattr(self, name).max()) + 1 if sizes[0] else 0 for name in named]
        nodes = self.n_nodes
        if nodes is not None:
            if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 0:
                raise ArgumentError(f"n_nodes must be an int, 0 or more; got {nodes!r}")
            if max(ends[:2]) > nodes:
                raise ArgumentError(
                    f"query_index and key_index must be below n_nodes, {nodes}; "
                    f"got {max(ends[:2]) - 1}"
                )
        order = self.query_index.argsort(stable=True)
        keys, labels = self.key_index[order], self.labels[order]
        found = {
            "least_queries": ends[0],
            "least_keys": ends[1],
            "n_labels": ends[2],
            "sorted_labels": labels,
            "by_query": Edges(self.query_index[order], keys, keys.argsort(stable=True)),
            # Those without a label come last, as their row does.
            "_turn_of_labels": labels.masked_fill(labels < 0, ends[2]).argsort(stable=True),
        }
        # Copies: what was checked is what is used.
        found |= {name: getattr(self, name).clone() for name in named}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def by_label(self, rows: int) -> Edges:
        """The graph from queries to the rows of a table; edges without a label to the last one."""
        turn, labels = self._turn_of_labels, self.sorted_labels
        return Edges(self.by_query.rows, labels.remainder(rows), turn)

    @classmethod
    def union(cls, graphs: Sequence["EdgeList"]) -> "EdgeList":
        """Many graphs as one: the nodes of the second come after those of the first, and so on.

        A graph has n_nodes nodes or, where that is not given, one more than its largest index.

        >>> pair = EdgeList(torch.tensor([0]), torch.tensor([1]), torch.tensor([0]))
        >>> EdgeList.union([pair, pair]).key_index.tolist()
        [1, 3]
        """
        graphs = list(graphs)
        for graph in graphs:
            if not isinstance(graph, EdgeList):
                raise ArgumentError(f"union takes EdgeLists; got {type(graph).__name__}")
        if not graphs:
            raise ArgumentError("union needs one graph or more; got none")
        sizes = [
            max(g.least_queries, g.least_keys) if g.n_nodes is None else g.n_nodes for g in graphs
        ]
        starts = list(accumulate(sizes, initial=0))[:-1]
        devices = sorted({str(g.labels.device) for g in graphs})
        if len(devices) > 1:
            raise ArgumentError(f"graphs must be on one device; got {' and '.join(devices)}")
        return cls(
            torch.cat([g.query_index + start for g, start in zip(graphs, starts, strict=True)]),
            torch.cat([g.key_index + start for g, start in zip(graphs, starts, strict=True)]),
            torch.cat([g.labels for g in graphs]),
            n_nodes=sum(sizes),
        )
