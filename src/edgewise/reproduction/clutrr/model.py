"""A small Transformer that reads a labelled graph and answers a question about two of its nodes.

Nodes have no names. All that tells them apart is whether they are asked about and their edges: by
these alone or, with `content`, also by an embedding of the labels of each node's own edges.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from edgewise.attention import Additive, Gated, RelationAttention
from edgewise.reproduction.clutrr.questions import Encoded
from edgewise.reproduction.clutrr.settings import GraphModelSettings

COMPATIBILITIES: dict[str, type[Additive] | type[Gated] | None] = {
    "dot": None,
    "additive": Additive,
    "gated": Gated,
}


class GraphLayer(nn.Module):
    """Attention along edges, both ways, and to oneself; then a feed-forward layer. Post-norm."""

    def __init__(self, settings: GraphModelSettings, n_labels: int) -> None:
        super().__init__()
        d_model = settings.d_model
        self.attention = RelationAttention(
            d_model,
            settings.heads,
            n_labels=n_labels,
            on_keys=settings.on_keys,
            on_values=settings.on_values,
            compatibility=COMPATIBILITIES[settings.compatibility],
        )
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, settings.d_ff), nn.ReLU(), nn.Linear(settings.d_ff, d_model)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(2))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Float[Tensor, "1 node d_model"], questions: Encoded) -> Tensor:
        attended = self.attention(x, relations=questions.graph)
        x = self.norms[0](x + self.dropout(attended))
        x = self.norms[1](x + self.dropout(self.feed_forward(x)))
        return x


class GraphTransformer(nn.Module):
    """Layers over the graph, and an answer from what the two nodes have become."""

    def __init__(self, settings: GraphModelSettings, n_labels: int, n_answers: int) -> None:
        super().__init__()
        self.role = nn.Embedding(3, settings.d_model)  # another, asked of, asked about
        self.content = nn.Embedding(n_labels, settings.d_model) if settings.content else None
        self.layers = nn.ModuleList(GraphLayer(settings, n_labels) for _ in range(settings.layers))
        self.answer = nn.Linear(2 * settings.d_model, n_answers)

    def forward(self, questions: Encoded) -> Float[Tensor, "question n_answer"]:
        """The logit of each answer."""
        graph = questions.graph
        assert graph.n_nodes is not None
        roles = torch.zeros(graph.n_nodes, dtype=torch.int64)
        roles[questions.of], roles[questions.to] = 1, 2
        x: Tensor = self.role(roles)
        if self.content is not None:
            x = x.index_add(0, graph.query_index, self.content(graph.labels))
        x = x[None]
        for layer in self.layers:
            x = layer(x, questions)
        asked = torch.cat((x[0, questions.of], x[0, questions.to]), dim=-1)
        result: Tensor = self.answer(asked)
        return result
