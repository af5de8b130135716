"""How edges get their labels. An edge (i, j) has a label; its vectors are rows of two tables."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from edgewise.errors import ArgumentError


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
