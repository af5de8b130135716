"""Compatibility functions: the logit e_ij of a query and a key.

    dot product e_ij = s q_i (k_j + a_ij)^T, equation 4
    Additive    e_ij = sum_d u_d tanh(q_id + k_jd + a_ijd), unscaled
    Gated       e_ij = s sum_d q_id k_jd 2 sigmoid(a_ijd): with zero tables, the dot product

The last two are among the paper's future work. docs/attention.md shows how to write another.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.attention import check

Ends = Float[Tensor, "*#edges d_head"]  # a vector at an end of each edge
Logits = Float[Tensor, "*edges"]


class Compatibility:
    """The interface that backends call. Subclasses are frozen dataclasses with `eq=False`.

    Fields are tensors, which a layer learns: `parameter_shapes` has the shapes that it creates.
    """

    is_linear_in_query: ClassVar[bool] = False  # a scale can be multiplied with the queries

    @classmethod
    def parameter_shapes(cls, heads: int, d_head: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each field in a layer with these sizes."""
        return {}

    def logits(self, query: Ends, key: Ends, edge_key: Ends | None, scale: float) -> Logits:
        """Return e_ij of some edges, by differentiable operations.

        All arguments are [batch, head, …, d_head] and broadcast; edge_key None means zeros.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define logits")

    def simplified(self, *, has_edge_keys: bool) -> "Compatibility":
        """Return an equivalent compatibility that may be cheaper, if there are no a^K."""
        return self

    def check(self, query: Tensor) -> None:
        """Raise ArgumentError unless the fields fit these queries."""

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Compatibility":
        """Return the compatibility with each field replaced by `function` of it."""
        return type(self)(*(function(getattr(self, field.name)) for field in fields(self)))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class DotProduct(Compatibility):
    """e_ij = s q_i (k_j + a_ij)^T: what `compatibility=None` stands for."""

    is_linear_in_query: ClassVar[bool] = True

    def logits(self, query: Ends, key: Ends, edge_key: Ends | None, scale: float) -> Logits:
        keys = key if edge_key is None else key + edge_key
        return scale * (query * keys).sum(-1)


@dataclass(frozen=True, eq=False)
class Additive(Compatibility):
    """e_ij = sum_d u_d tanh(q_id + k_jd + a_ijd); u is [d_head], or [head, d_head].

    >>> Additive(torch.ones(4)).u.shape
    torch.Size([4])
    """

    u: Float[Tensor, "*head d_head"]

    def __post_init__(self) -> None:
        check.tensor("u", self.u, "a float tensor [d_head] or [head, d_head]", check.FLOATS, 1, 2)

    @classmethod
    def parameter_shapes(cls, heads: int, d_head: int) -> dict[str, tuple[int, ...]]:
        return {"u": (heads, d_head)}

    def logits(self, query: Ends, key: Ends, edge_key: Ends | None, scale: float) -> Logits:
        # tanh(x) = 2 sigmoid(2x) - 1; on CPUs PyTorch's tanh takes nine times as long.
        total, u = 2 * query + 2 * key, self.u
        total = (total if edge_key is None else torch.add(total, edge_key, alpha=2)).sigmoid_()
        if u.dim() == 1:
            return 2 * (total @ u) - u.sum()
        u = u.view(len(u), *[1] * (query.dim() - 3), u.shape[1])
        return 2 * (total * u).sum(-1) - u.sum(-1)

    def check(self, query: Tensor) -> None:
        _, heads, _, d_head = query.shape
        check.shape("u", self.u, "{} or, with one per head, {}", (d_head,), (heads, d_head))
        check.like_query("u", self.u, query)


@dataclass(frozen=True, eq=False)
class Gated(Compatibility):
    """e_ij = s sum_d q_id k_jd 2 sigmoid(a_ijd): edges multiply features of keys by 0 to 2."""

    is_linear_in_query: ClassVar[bool] = True

    def logits(self, query: Ends, key: Ends, edge_key: Ends | None, scale: float) -> Logits:
        gated = key if edge_key is None else key * (2 * edge_key.sigmoid())
        return scale * (query * gated).sum(-1)

    def simplified(self, *, has_edge_keys: bool) -> Compatibility:
        return self if has_edge_keys else DotProduct()  # 2 sigmoid(0) = 1
