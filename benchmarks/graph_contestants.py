"""Who runs against edgewise in bench_graph.py: layers that read labelled graphs, one pass each.

    python benchmarks/graph_contestants.py sparse edgewise     # peak memory of a pass, in bytes

A fresh process each time, as bench_graph.py starts it. Counted is what the forward and backward
pass take beyond the layer, its input and the graph, with outputs and gradients.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from peak_memory import status
from torch import Tensor, nn

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    RelationAttention,
    RelativePositions,
    relation_attention,
)

D_MODEL, HEADS, D_HEAD = 512, 8, 64
LABELS = 30
Pass = Callable[[], object]


class RatSqlAttention(nn.Module):
    """Relation-aware self-attention as RAT-SQL computes it: two vectors for every edge.

    Products with them are one matrix product for each query, shared by all heads; what is written
    out is [batch, n, n, d_head].
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (
            nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(4)
        )
        self.key_table, self.value_table = (nn.Embedding(LABELS, D_HEAD) for _ in range(2))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        query, key, value = (
            layer(x).view(*x.shape[:2], HEADS, D_HEAD).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        z = rat_sql(query, key, value, self.key_table(labels), self.value_table(labels))
        result: Tensor = self.output(z.transpose(1, 2).flatten(2))
        return result


def rat_sql(
    query: Tensor, key: Tensor, value: Tensor, edge_key: Tensor, edge_value: Tensor
) -> Tensor:
    """Equations 3 and 4 with vectors [batch, n, n, d_head]."""
    of_edges = (query.transpose(1, 2) @ edge_key.mT).transpose(1, 2)
    weights = ((query @ key.mT + of_edges) / math.sqrt(D_HEAD)).softmax(-1)
    of_edges = (weights.transpose(1, 2) @ edge_value).transpose(1, 2)
    return weights @ value + of_edges


class TransformerConvWithLabels(nn.Module):
    """PyTorch Geometric's layer, with an embedding of the labels."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import TransformerConv

        self.labels = nn.Embedding(LABELS, D_HEAD)
        self.layer = TransformerConv(
            D_MODEL, D_HEAD, heads=HEADS, edge_dim=D_HEAD, root_weight=False
        )

    def forward(self, x: Tensor, edge_index: Tensor, labels: Tensor) -> Tensor:
        result: Tensor = self.layer(x, edge_index, self.labels(labels))
        return result


def forward_and_backward(layer: nn.Module, x: Tensor, run: Callable[[], Tensor]) -> Pass:
    def one_pass() -> object:
        for parameter in layer.parameters():
            parameter.grad = None
        x.grad = None
        run().sum().backward()
        return x.grad

    return one_pass


def sparse(contestant: str, nodes: int = 2_000, edges: int = 20_000) -> Pass:
    """A graph with labelled edges."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    labels = torch.randint(LABELS, (edges,), generator=generator)
    x = torch.randn(nodes, D_MODEL, generator=generator).requires_grad_()
    torch.manual_seed(0)
    if contestant == "TransformerConv":
        conv = TransformerConvWithLabels()
        return forward_and_backward(conv, x, lambda: conv(x, ends, labels))
    layer = RelationAttention(D_MODEL, HEADS, n_labels=LABELS)
    if contestant == "edgewise, with the list":

        def with_list() -> Tensor:
            output: Tensor = layer(x[None], relations=EdgeList(ends[1], ends[0], labels))
            return output

        return forward_and_backward(layer, x, with_list)
    graph = EdgeList(ends[1], ends[0], labels)
    return forward_and_backward(layer, x, lambda: layer(x[None], relations=graph))


def dense(contestant: str, batch: int = 16, nodes: int = 200) -> Pass:
    """A label for every pair of nodes of each graph."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(LABELS, (batch, nodes, nodes), generator=generator)
    x = torch.randn(batch, nodes, D_MODEL, generator=generator).requires_grad_()
    torch.manual_seed(0)
    if contestant == "RAT-SQL":
        rat = RatSqlAttention()
        return forward_and_backward(rat, x, lambda: rat(x, labels))
    if contestant == "no relations":
        plain = RelationAttention(D_MODEL, HEADS)
        return forward_and_backward(plain, x, lambda: plain(x))
    if contestant == "projections":
        four = nn.ModuleList(nn.Linear(D_MODEL, D_MODEL, bias=False) for _ in range(4))

        def project() -> Tensor:
            query, key, value = (layer(x) for layer in four[:3])
            output: Tensor = four[3](query + key + value)
            return output

        return forward_and_backward(four, x, project)
    relations = EdgeLabels(labels)
    layer = RelationAttention(D_MODEL, HEADS, n_labels=LABELS)
    return forward_and_backward(layer, x, lambda: layer(x, relations=relations))


def dense_attention(contestant: str, batch: int = 16, nodes: int = 200) -> Pass:
    """The same without projections: what the relations cost."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(LABELS, (batch, nodes, nodes), generator=generator)
    shapes = [(batch, HEADS, nodes, D_HEAD)] * 3 + [(LABELS, D_HEAD)] * 2
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    query, key, value, key_table, value_table = inputs
    relations = EdgeLabels(labels)

    def run() -> object:
        if contestant == "RAT-SQL":
            vectors = (nn.functional.embedding(labels, t) for t in (key_table, value_table))
            output = rat_sql(query, key, value, *vectors)
        else:
            output = relation_attention(
                query, key, value, relations, key_table=key_table, value_table=value_table
            )
        return torch.autograd.grad(output.sum(), inputs)

    return run


def additive(contestant: str, n: int = 1024) -> Pass:
    """Additive compatibility with relative positions; "dot" is the paper's."""
    generator = torch.Generator().manual_seed(0)
    positions = RelativePositions(16)
    shapes = [(1, HEADS, n, D_HEAD)] * 3 + [(33, D_HEAD)] * 2 + [(D_HEAD,)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    query, key, value, key_table, value_table, u = inputs
    used = inputs if contestant != "dot" else inputs[:-1]

    def run() -> object:
        output = relation_attention(
            *(query, key, value, positions),
            key_table=key_table,
            value_table=value_table,
            compatibility=None if contestant == "dot" else Additive(u),
        )
        return torch.autograd.grad(output.sum(), used)

    return run


def large(contestant: str) -> Pass:
    return sparse(contestant, nodes=100_000, edges=1_000_000)


CASES = {
    "sparse": sparse,
    "dense": dense,
    "dense attention": dense_attention,
    "additive": additive,
    "large": large,
}


def main() -> None:
    case, contestant = sys.argv[1:]
    torch.set_num_threads(2)
    if case in ("sparse", "large"):
        sparse(contestant, nodes=20, edges=50)()  # code and threads are there before we measure
    elif case != "additive":
        CASES[case](contestant, 1, 8)()
    else:
        additive(contestant, 32)()
    run = CASES[case](contestant)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    run()
    if case == "large":
        print(status("VmHWM"))
    else:
        print(max(0, status("VmHWM") - before))


if __name__ == "__main__":
    main()
