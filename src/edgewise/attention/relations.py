"""How edges get their vectors. Most have a label, and their vectors are rows of two tables."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from edgewise.attention.edge_list import EdgeList
from edgewise.errors import ArgumentError

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


@dataclass(frozen=True, eq=False)
class RelativePositions:
    """Label an edge by the clipped distance from query to key: l = clip(j - i, k) + k.

    Query row i stands at position i + query_offset, key column j at position j. The offset is an
    int, or an int64 tensor with one offset for each sentence of the batch.

    >>> RelativePositions(max_distance=1).labels(2, 3).tolist()
    [[1, 2, 2], [0, 1, 2]]
    """

    max_distance: int
    query_offset: int | Int64[Tensor, " batch"] = 0

    def __post_init__(self) -> None:
        if isinstance(self.max_distance, bool) or not isinstance(self.max_distance, int):
            raise ArgumentError(f"max_distance must be an int; got {self.max_distance!r}")
        if self.max_distance < 0:
            raise ArgumentError(
                f"max_distance must be 0 or more; got {self.max_distance} "
                "(0 is one label for every edge; for plain attention pass relations=None)"
            )
        offset = self.query_offset
        if isinstance(offset, Tensor):
            if offset.dtype != torch.int64 or offset.dim() != 1:
                raise ArgumentError(
                    "query_offset must be an int or an int64 tensor [batch]; "
                    f"got {offset.dtype} {list(offset.shape)}"
                )
        elif isinstance(offset, bool) or not isinstance(offset, int):
            raise ArgumentError(f"query_offset must be an int or an int64 tensor; got {offset!r}")

    @property
    def n_labels(self) -> int:
        return 2 * self.max_distance + 1

    def distances(
        self, n_query: int, n_key: int, device: torch.device | None = None
    ) -> Int64[Tensor, "*batch n_query n_key"]:
        """j - i of every edge, unclipped; with a batch dimension if the offset has one."""
        queries = torch.arange(n_query, device=device)
        keys = torch.arange(n_key, device=device)
        offset = self.query_offset
        if isinstance(offset, Tensor):
            queries = queries + offset.to(device)[:, None]
        else:
            queries = queries + offset
        return keys - queries[..., None]

    def labels(
        self, n_query: int, n_key: int, device: torch.device | None = None
    ) -> Int64[Tensor, "*batch n_query n_key"]:
        """The label of every edge, a row of the tables."""
        k = self.max_distance
        return self.distances(n_query, n_key, device).clamp(-k, k) + k


@dataclass(frozen=True, eq=False)
class EdgeLabels:
    """A label for every edge, of a graph in which every node may attend to every other.

    labels: int [n_query, n_key], or [batch, n_query, n_key] for a graph of each item. -1: the edge
        adds no vector, and is attended all the same; what may be attended is the mask's to say.

    >>> EdgeLabels(torch.tensor([[0, 3], [-1, 0]])).n_labels
    4
    """

    labels: Int[Tensor, "*batch n_query n_key"]
    n_labels: int = field(init=False, repr=False)
    has_unlabelled: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        labels = self.labels
        if not isinstance(labels, Tensor):
            raise ArgumentError(f"labels must be a tensor; got {type(labels).__name__}")
        if labels.dtype not in INTEGERS:
            names = ", ".join(str(each).removeprefix("torch.") for each in INTEGERS)
            raise ArgumentError(f"labels must be of an int type ({names}); got {labels.dtype}")
        if labels.dim() not in (2, 3):
            raise ArgumentError(
                "labels must be [n_query, n_key] or [batch, n_query, n_key]; "
                f"got {list(labels.shape)}"
            )
        least = int(labels.min()) if labels.numel() else 0
        if least < -1:
            raise ArgumentError(f"labels must be -1 (no vector) or more; got {least}")
        # A copy: what was checked is what is used.
        object.__setattr__(self, "labels", labels.to(torch.int64, copy=True))
        object.__setattr__(self, "n_labels", int(labels.max()) + 1 if labels.numel() else 0)
        object.__setattr__(self, "has_unlabelled", least < 0)

    @classmethod
    def over(
        cls, positions: RelativePositions, labels: Int[Tensor, "*batch n_query n_key"]
    ) -> "EdgeLabels":
        """A graph over a sequence: an edge with a label has that, any other its distance.

        The first 2k + 1 rows of a table are the distances, then come the labels of the graph.

        >>> parse = torch.tensor([[-1, 0], [-1, -1]])
        >>> EdgeLabels.over(RelativePositions(1), parse).labels.tolist()
        [[1, 3], [0, 1]]
        """
        if not isinstance(positions, RelativePositions):
            raise ArgumentError(
                f"positions must be RelativePositions; got {type(positions).__name__}"
            )
        graph = cls(labels).labels
        distances = positions.labels(graph.shape[-2], graph.shape[-1], graph.device)
        if graph.dim() == distances.dim() == 3 and len(graph) != len(distances):
            raise ArgumentError(
                f"query_offset must be one for each of the {len(graph)} items of labels; "
                f"got {len(distances)}"
            )
        return cls(torch.where(graph < 0, distances, graph + positions.n_labels))


@dataclass(frozen=True, eq=False)
class EdgeVectors:
    """Any a^K and a^V, the paper's general form; either may be None.

    [n_query, n_key, d_head] for all, [batch, n_query, n_key, d_head] for each item, or
    [batch or 1, head or 1, n_query, n_key, d_head]. The tables of the call must be None.
    """

    edge_key: Float[Tensor, "*any n_query n_key d_head"] | None
    edge_value: Float[Tensor, "*any n_query n_key d_head"] | None

    def __post_init__(self) -> None:
        if self.edge_key is None and self.edge_value is None:
            raise ArgumentError(
                "EdgeVectors needs edge_key or edge_value; got None and None "
                "(relations=None is plain attention)"
            )
        for name in ("edge_key", "edge_value"):
            vectors = getattr(self, name)
            if vectors is None:
                continue
            if isinstance(vectors, Tensor) and not vectors.is_floating_point():
                raise ArgumentError(f"{name} must be of a float type; got {vectors.dtype}")
            if not isinstance(vectors, Tensor) or vectors.dim() not in (3, 4, 5):
                got = list(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
                raise ArgumentError(
                    f"{name} must be [n_query, n_key, d_head], with a batch before it, or with "
                    f"batch and head; got {got}"
                )


Relations = RelativePositions | EdgeLabels | EdgeList | EdgeVectors


def labels_of(
    relations: RelativePositions | EdgeLabels,
    n_query: int,
    n_key: int,
    device: torch.device | None = None,
) -> Int64[Tensor, "*batch n_query n_key"]:
    """The label of every edge, -1 for none."""
    if isinstance(relations, EdgeLabels):
        return relations.labels
    return relations.labels(n_query, n_key, device)


def of_full_rank(
    vectors: Float[Tensor, "*any n_query n_key d_head"],
) -> Float[Tensor, "#batch #head n_query n_key d_head"]:
    """Those of `EdgeVectors`, of full rank."""
    if vectors.dim() == 5:
        return vectors
    return vectors[:, None] if vectors.dim() == 4 else vectors[None, None]
