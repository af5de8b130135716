"""How well a query and a key fit, other than by their product: the paper's future work.

    dot         e_ij = s q_i (k_j + a_ij)^T
    Additive    e_ij = sum_d u_d tanh(q_id + k_jd + a_ijd), unscaled
    Gated       e_ij = s sum_d q_id k_jd 2 sigmoid(a_ijd): with zero tables, the dot product

`edge_logits` is all three as written. It holds a vector for every edge that it is given, so the
paths give it some edges at a time.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from edgewise.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Additive:
    """e_ij = sum_d u_d tanh(q_id + k_jd + a_ijd); u is [d_head], or [head, d_head] for one a head.

    >>> Additive(torch.ones(4)).u.shape
    torch.Size([4])
    """

    u: Float[Tensor, "*head d_head"]

    def __post_init__(self) -> None:
        if not isinstance(self.u, Tensor) or self.u.dim() not in (1, 2):
            got = list(self.u.shape) if isinstance(self.u, Tensor) else type(self.u).__name__
            raise ArgumentError(f"u must be a tensor [d_head] or [head, d_head]; got {got}")


@dataclass(frozen=True)
class Gated:
    """e_ij = s sum_d q_id k_jd 2 sigmoid(a_ijd): an edge opens and closes features of the key."""


Compatibility = Additive | Gated


def edge_logits(
    compatibility: Compatibility | None,
    query: Float[Tensor, "*#edges d_head"],
    key: Float[Tensor, "*#edges d_head"],
    edge_key: Float[Tensor, "*#edges d_head"] | None,
    u: Float[Tensor, "*#edges d_head"] | None,
    scale: float,
) -> Float[Tensor, "*edges"]:
    """The logits of edges, all terms of one rank; no edge vectors are vectors of zeros.

    u is the vector of `Additive`, as it broadcasts with the others.
    """
    if isinstance(compatibility, Additive):
        assert u is not None
        total = query + key
        total = total if edge_key is None else total + edge_key
        if u.numel() == u.shape[-1]:
            return total.tanh() @ u.flatten()
        return (total.tanh() * u).sum(-1)
    if isinstance(compatibility, Gated):
        gated = key if edge_key is None else key * (2 * edge_key.sigmoid())
        return scale * (query * gated).sum(-1)
    keys = key if edge_key is None else key + edge_key
    return scale * (query * keys).sum(-1)


def edge_gradients(
    compatibility: Compatibility,
    query: Float[Tensor, "*#edges d_head"],
    key: Float[Tensor, "*#edges d_head"],
    edge_key: Float[Tensor, "*#edges d_head"] | None,
    u: Float[Tensor, "*#edges d_head"] | None,
    scale: float,
    grad: Float[Tensor, "*edges"],
) -> tuple[Tensor, ...]:
    """The gradients of `edge_logits`, of each edge: of query, key, edge_key and u, not yet summed.

    What has no gradient is an empty tensor.
    """
    empty = query.new_empty(0)
    if isinstance(compatibility, Additive):
        assert u is not None
        total = query + key
        total = (total if edge_key is None else total + edge_key).tanh_()
        of_u = total * grad[..., None]
        # d tanh = 1 - tanh^2
        of_total = total.square_().neg_().add_(1).mul_(grad[..., None]).mul_(u)
        return of_total, of_total, of_total, of_u
    grad = (scale * grad)[..., None]
    assert edge_key is not None  # without, it is the dot product
    half = edge_key.sigmoid()
    of_key = grad * query
    of_edge = of_key * key * (2 * half * (1 - half))
    half = 2 * half
    return half * key * grad, of_key * half, of_edge, empty


def vector_of(compatibility: Compatibility | None, rank: int) -> Float[Tensor, "..."] | None:
    """The u of `Additive` for edges [batch, head, ..., d_head] of this rank; None for others."""
    return spread_u(compatibility.u, rank) if isinstance(compatibility, Additive) else None


def spread_u(u: Float[Tensor, "*head d_head"], rank: int) -> Float[Tensor, "..."]:
    """As it broadcasts with [batch, head, ..., d_head]."""
    head = u.shape[0] if u.dim() == 2 else 1
    return u.view(1, head, *[1] * (rank - 3), u.shape[-1])


def in_dtype(compatibility: Compatibility, dtype: torch.dtype) -> Compatibility:
    """The same, with u of another precision."""
    if isinstance(compatibility, Additive):
        return Additive(compatibility.u.to(dtype))
    return compatibility
