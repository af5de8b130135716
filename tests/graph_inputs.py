"""Random inputs of `relation_attention` with every kind of relation, compatibility and mask."""

from contextlib import suppress

import torch
from torch import Tensor

from edgewise import (
    Additive,
    EdgeLabels,
    EdgeList,
    EdgeVectors,
    Gated,
    RelativePositions,
    relation_attention,
)
from edgewise.attention import backends
from edgewise.errors import ArgumentError

RELATIONS = (
    *("none", "positions", "labels", "labels of each item", "edge list"),
    *("vectors", "vectors of each item", "vectors of each head", "vectors of each item and head"),
)
COMPATIBILITIES = ("dot", "additive", "additive, a vector for each head", "gated")
MASKS = ("none", "random", "padding", "causal")
N_LABELS = 6


class GraphInputs:
    """Made from a seed; leaves are the tensors that have a gradient."""

    def __init__(
        self,
        relations: str,
        compatibility: str = "dot",
        mask: str = "none",
        *,
        batch: int = 2,
        heads: int = 3,
        n_query: int = 5,
        n_key: int = 7,
        d_head: int = 4,
        edges: int = 13,
        on_keys: bool = True,
        on_values: bool = True,
        per_head: bool = False,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        n_key = n_query if mask == "causal" else n_key

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

        def index(end: int, *shape: int, least: int = 0) -> Tensor:
            return torch.randint(least, max(end, least + 1), shape, generator=generator)

        self.kind, self.compatibility, self.causal = relations, compatibility, mask == "causal"
        self.leaves = {"query": random(batch, heads, n_query, d_head)}
        self.leaves["key"], self.leaves["value"] = (
            random(batch, heads, n_key, d_head) for _ in range(2)
        )
        labelled = relations in ("positions", "labels", "labels of each item", "edge list")
        vectors = {
            "vectors": (n_query, n_key, d_head),
            "vectors of each item": (batch, n_query, n_key, d_head),
            "vectors of each head": (1, heads, n_query, n_key, d_head),
            "vectors of each item and head": (batch, heads, n_query, n_key, d_head),
        }
        for name, on in (("key", on_keys), ("value", on_values)):
            if labelled and on:
                rows = 2 * 2 + 1 if relations == "positions" else N_LABELS
                shape = (heads, rows, d_head) if per_head else (rows, d_head)
                self.leaves[f"{name}_table"] = random(*shape)
            elif relations in vectors and on:
                self.leaves[f"edge_{name}"] = random(*vectors[relations])
        if compatibility.startswith("additive"):
            self.leaves["u"] = (
                random(heads, d_head) if "each head" in compatibility else random(d_head)
            )
        items = (batch,) if relations == "labels of each item" else ()
        self.labels = index(N_LABELS, *items, n_query, n_key, least=-1)
        # The last query has no edge.
        self.edges = (
            index(n_query - 1, edges),
            index(n_key, edges),
            index(N_LABELS, edges, least=-1),
        )
        self.mask = None
        if mask == "random":
            self.mask = torch.rand(batch, heads, n_query, n_key, generator=generator) < 0.5
        elif mask == "padding":
            lengths = torch.randint(0, n_key + 1, (batch, 1), generator=generator)
            self.mask = (torch.arange(n_key) < lengths)[:, None, None, :]
        self.grad = random(batch, heads, n_query, d_head)

    def relations(self, leaves: dict[str, Tensor]) -> object:
        if self.kind == "positions":
            return RelativePositions(2)
        if self.kind.startswith("labels"):
            return EdgeLabels(self.labels)
        if self.kind == "edge list":
            return EdgeList(*self.edges)
        if self.kind.startswith("vectors"):
            return EdgeVectors(leaves.get("edge_key"), leaves.get("edge_value"))
        return None

    def output(
        self, method: str = "auto", leaves: dict[str, Tensor] | None = None, **changes
    ) -> Tensor:
        leaves = leaves or self.leaves
        compatibility: object = None
        if self.compatibility == "gated":
            compatibility = Gated()
        elif "u" in leaves:
            compatibility = Additive(leaves["u"])
        arguments = {
            name: leaves.get(name) for name in ("query", "key", "value", "key_table", "value_table")
        }
        arguments |= {
            "relations": self.relations(leaves),
            "mask": self.mask,
            "causal": self.causal,
            "compatibility": compatibility,
            "method": method,
        }
        return relation_attention(**arguments | changes)

    def methods(self) -> list[str]:
        """Return "auto" and every backend that supports these inputs, but for the definition."""
        found = ["auto"]
        for method in backends.method_names():
            if method not in ("auto", "reference"):
                with suppress(ArgumentError):
                    self.output(method)
                    found.append(method)
        return found

    def results(self, method: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The output and the gradient of every leaf."""
        leaves = {
            name: x.to(dtype or x.dtype, copy=True).requires_grad_()
            for name, x in self.leaves.items()
        }
        output = self.output(method, leaves)
        grads = torch.autograd.grad(
            output, list(leaves.values()), self.grad.to(output.dtype), materialize_grads=True
        )
        return {"output": output.detach(), **dict(zip(leaves, grads, strict=True))}
