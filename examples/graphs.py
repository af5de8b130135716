"""Labelled graphs at work: from networkx and PyTorch Geometric, many at once, and over a sentence.

    python examples/graphs.py

Needs networkx and torch_geometric (`pip install 'edgewise[bench]'`).
"""

import networkx
import torch
from torch_geometric.data import Batch, Data

from edgewise import EdgeLabels, EdgeList, RelationAttention, RelativePositions

FAMILY = (("Anna", "Ben", "son"), ("Ben", "Clara", "sister"), ("Anna", "David", "husband"))
LABELS = ("son", "sister", "husband")


def from_networkx(graph: networkx.MultiDiGraph) -> tuple[EdgeList, list[str]]:
    """An edge u -> v lets v look at u; its attribute "label" is a row of the tables."""
    nodes = list(graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    edges = list(graph.edges(data="label"))
    sources, targets, labels = (
        torch.tensor([place[u] for u, _, _ in edges], dtype=torch.int64),
        torch.tensor([place[v] for _, v, _ in edges], dtype=torch.int64),
        torch.tensor([LABELS.index(label) for *_, label in edges], dtype=torch.int64),
    )
    return EdgeList(targets, sources, labels, n_nodes=len(nodes)), nodes


def from_pytorch_geometric(data: Data) -> EdgeList:
    """edge_index is [source, target], and messages flow from source to target."""
    source, target = data.edge_index
    return EdgeList(target, source, data.edge_type, n_nodes=data.num_nodes)


def main() -> None:
    torch.manual_seed(0)
    layer = RelationAttention(d_model=32, heads=4, n_labels=len(LABELS)).eval()

    family = networkx.MultiDiGraph()
    for u, v, label in FAMILY:
        family.add_edge(u, v, label=label)
    edges, names = from_networkx(family)
    people = torch.randn(1, len(names), 32)
    output = layer(people, relations=edges)
    print(f"1. networkx: {len(names)} people, {len(FAMILY)} edges")
    for name, z in zip(names, output[0], strict=True):
        print(f"   {name:6} {'looks at nobody: zeros' if not z.any() else f'|z| {z.norm():.3f}'}")

    source = torch.tensor([names.index(u) for u, _, _ in FAMILY])
    target = torch.tensor([names.index(v) for _, v, _ in FAMILY])
    kinds = torch.tensor([LABELS.index(label) for *_, label in FAMILY])
    data = Data(edge_index=torch.stack((source, target)), edge_type=kinds, num_nodes=len(names))
    same = layer(people, relations=from_pytorch_geometric(data))
    print(f"2. PyTorch Geometric: the same to {(output - same).abs().max().item():.0e}")

    pair = torch.cat((people, people), dim=1)
    union = EdgeList.union([edges, edges])
    batch = from_pytorch_geometric(Batch.from_data_list([data, data]))
    alone = torch.cat((output, output), dim=1)
    print("3. Many graphs as one, each gets what it gets alone:")
    for name, relations in (("union", union), ("Batch of PyTorch Geometric", batch)):
        difference = (layer(pair, relations=relations) - alone).abs().max().item()
        print(f"   {name}: {relations.n_nodes} nodes, largest difference {difference:.0e}")

    words = ["she", "saw", "the", "old", "house"]
    parse = torch.full((5, 5), -1)
    for head, dependent, label in ((1, 0, 0), (1, 4, 1), (4, 2, 2), (4, 3, 2)):
        parse[dependent, head] = label  # the dependent looks at its head
    positions = RelativePositions(max_distance=2)
    both = EdgeLabels.from_graph_and_positions(parse, positions)
    reader = RelationAttention(d_model=32, heads=4, n_labels=positions.n_labels + 3)
    read = reader(torch.randn(1, 5, 32), relations=both)
    print(f"4. Words in order with a parse over them, {list(read.shape)}; labels of the edges:")
    for word, row in zip(words, both.labels.tolist(), strict=True):
        print(f"   {word:6} {row}  (0 to 4: distances; 5 subject, 6 object, 7 modifier)")


if __name__ == "__main__":
    main()
