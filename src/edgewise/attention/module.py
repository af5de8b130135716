"""Relation-aware self-attention as a layer: projections, tables, and the state of a decoder."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from edgewise.attention.arguments import check_mask
from edgewise.attention.compatibility import Additive, Compatibility, Gated
from edgewise.attention.edge_list import EdgeList
from edgewise.attention.functional import relation_attention
from edgewise.attention.relations import EdgeLabels, EdgeVectors, Relations, RelativePositions
from edgewise.attention.state import AttentionState
from edgewise.errors import ArgumentError


class RelationAttention(nn.Module):
    """Multi-head self-attention with relative positions or a graph (section 3 of the paper).

    d_model, heads, d_head: d_head is d_model / heads unless given.
    max_distance: the clipping distance k of relative positions.
    n_labels: of the edges of a graph, which is given at each call. Neither is plain attention.
    on_keys, on_values: whether the edge vectors a^K and a^V are used.
    per_head: a table for each head; else one table for all heads.
    dropout: on the attention weights, in training.
    bias: whether the projections have one.
    compatibility: `Additive`, whose vector of each head is then learnt, or `Gated`.

    >>> attention = RelationAttention(d_model=512, heads=8, max_distance=16)
    >>> attention(torch.randn(2, 10, 512)).shape
    torch.Size([2, 10, 512])
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        max_distance: int | None = None,
        n_labels: int | None = None,
        d_head: int | None = None,
        on_keys: bool = True,
        on_values: bool = True,
        per_head: bool = False,
        dropout: float = 0.0,
        bias: bool = False,
        compatibility: type[Additive] | type[Gated] | None = None,
    ) -> None:
        super().__init__()
        if d_model < 1 or heads < 1:
            raise ArgumentError(
                f"d_model and heads must be 1 or more; got d_model={d_model}, heads={heads}"
            )
        if d_head is None and d_model % heads != 0:
            raise ArgumentError(
                f"d_model must be a multiple of heads unless d_head is given; "
                f"got d_model={d_model}, heads={heads}"
            )
        if d_head is not None and d_head < 1:
            raise ArgumentError(f"d_head must be 1 or more; got {d_head}")
        if not 0.0 <= dropout < 1.0:
            raise ArgumentError(f"dropout must be in [0, 1); got {dropout}")
        if max_distance is not None and n_labels is not None:
            raise ArgumentError(
                f"give max_distance or n_labels, not both; got {max_distance} and {n_labels} "
                "(EdgeLabels.over makes labels of a graph and of distances)"
            )
        if n_labels is not None and n_labels < 1:
            raise ArgumentError(f"n_labels must be 1 or more; got {n_labels}")
        if compatibility not in (None, Additive, Gated):
            raise ArgumentError(
                f"compatibility must be Additive, Gated or None; got {compatibility!r} "
                "(the class: a layer has its own u)"
            )
        self.d_model, self.heads, self.dropout, self.per_head = d_model, heads, dropout, per_head
        self.d_head = d_model // heads if d_head is None else d_head
        self.max_distance, self.n_labels, self.compatibility = max_distance, n_labels, compatibility
        inner = heads * self.d_head
        self.query = nn.Linear(d_model, inner, bias=bias)
        self.key = nn.Linear(d_model, inner, bias=bias)
        self.value = nn.Linear(d_model, inner, bias=bias)
        self.output = nn.Linear(inner, d_model, bias=bias)
        self.key_table: nn.Parameter | None = None
        self.value_table: nn.Parameter | None = None
        if max_distance is not None:
            n_labels = RelativePositions(max_distance).n_labels
        if n_labels is not None:
            shape = (heads, n_labels, self.d_head) if per_head else (n_labels, self.d_head)
            if on_keys:
                self.key_table = nn.Parameter(torch.empty(shape))
            if on_values:
                self.value_table = nn.Parameter(torch.empty(shape))
        self.u = (
            nn.Parameter(torch.empty(heads, self.d_head)) if compatibility is Additive else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform for projections and, each head's by itself, for tables."""
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for table in (self.key_table, self.value_table):
            if table is not None:
                bound = math.sqrt(6 / (table.shape[-2] + table.shape[-1]))
                nn.init.uniform_(table, -bound, bound)
        if self.u is not None:
            bound = math.sqrt(6 / (1 + self.d_head))
            nn.init.uniform_(self.u, -bound, bound)

    def forward(
        self,
        x: Float[Tensor, "batch n d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        state: AttentionState | None = None,
        relations: Relations | None = None,
    ) -> Float[Tensor, "batch n d_model"]:
        """Each position of x attends to those the mask allows.

        mask: bool [batch, n_key], True = token, or 4-D as in `relation_attention`.
        state: of `new_state`; x continues the sequence it holds, and attends causally to that and
            to itself. n_key is then the length of all, and the state is updated in place.
        relations: with n_labels, `EdgeLabels` or an `EdgeList` of the rows of x; a layer without
            tables takes `EdgeVectors` too.
        """
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ArgumentError(f"x must be [batch, n, {self.d_model}]; got {list(x.shape)}")
        relations = self._relations(relations, state)
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        offset = 0 if state is None else state.length
        mask = self._mask(mask, x, n_key=offset + x.shape[1])
        if state is not None:
            causal = True
            key, value = state.append(key, value)
        if relations is None:
            # Without tables the relation only says where the queries stand.
            relations = RelativePositions(self.max_distance or 0, query_offset=offset)
        output = relation_attention(
            query,
            key,
            value,
            relations,
            key_table=self._table(self.key_table, query),
            value_table=self._table(self.value_table, query),
            mask=mask,
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            compatibility=self._compatibility(query),
        )
        result: Tensor = self.output(output.transpose(1, 2).flatten(2))
        return result

    def new_state(self, batch: int, max_length: int | None = None) -> AttentionState:
        """An empty state for `batch` sequences; the buffer grows unless max_length is given."""
        weight = self.key.weight
        return AttentionState(
            batch, self.heads, self.d_head, max_length, weight.dtype, weight.device
        )

    def extra_repr(self) -> str:
        tables = [
            n for n, t in (("keys", self.key_table), ("values", self.value_table)) if t is not None
        ]
        where = f", on {' and '.join(tables)}" if tables else ""
        labels = f"max_distance={self.max_distance}"
        labels = labels if self.n_labels is None else f"n_labels={self.n_labels}"
        return (
            f"d_model={self.d_model}, heads={self.heads}, d_head={self.d_head}, "
            f"{labels}, per_head={self.per_head}, dropout={self.dropout}{where}"
            f"{'' if self.compatibility is None else f', {self.compatibility.__name__}'}"
        )

    def _heads(self, x: Float[Tensor, "batch n inner"]) -> Float[Tensor, "batch head n d_head"]:
        return x.view(*x.shape[:2], self.heads, self.d_head).transpose(1, 2)

    def _relations(
        self, relations: Relations | None, state: AttentionState | None
    ) -> Relations | None:
        """Those of the call, refused where the layer has tables for others."""
        if relations is not None and not isinstance(
            relations, RelativePositions | EdgeLabels | EdgeList | EdgeVectors
        ):
            raise ArgumentError(
                "relations must be EdgeLabels, EdgeList, EdgeVectors or None; "
                f"got {type(relations).__name__}"
            )
        got = "None" if relations is None else type(relations).__name__
        if isinstance(relations, RelativePositions):
            raise ArgumentError(
                "a layer has its relative positions itself, RelationAttention(..., "
                "max_distance=...); got relations=RelativePositions"
            )
        if state is not None and (relations is not None or self.n_labels is not None):
            raise ArgumentError("a state is of a sequence; a graph is given whole: leave one out")
        if self.n_labels is not None and not isinstance(relations, EdgeLabels | EdgeList):
            raise ArgumentError(
                "a layer with n_labels needs relations=EdgeLabels(...) or EdgeList(...) at each "
                f"call; got {got}"
            )
        if self.n_labels is None and isinstance(relations, EdgeLabels):
            raise ArgumentError("relations=EdgeLabels needs a layer with n_labels")
        if (
            self.n_labels is not None
            and isinstance(relations, EdgeLabels | EdgeList)
            and relations.n_labels > self.n_labels
        ):
            raise ArgumentError(
                f"labels must be below n_labels of the layer, {self.n_labels}; "
                f"got {relations.n_labels - 1}"
            )
        if self.max_distance is not None and relations is not None:
            raise ArgumentError(
                f"relations={got} is for a layer without max_distance; this one has "
                f"max_distance={self.max_distance} (EdgeLabels.over has distances and a graph)"
            )
        return relations

    def _compatibility(self, query: Tensor) -> Compatibility | None:
        if self.u is not None:
            return Additive(self.u.to(query.dtype))
        return None if self.compatibility is None else Gated()

    def _mask(self, mask: Tensor | None, x: Tensor, n_key: int) -> Tensor | None:
        """A mask as 4-D, refused before a state is changed."""
        batch, n, _ = x.shape
        if isinstance(mask, Tensor) and mask.dim() == 2:
            if list(mask.shape) != [batch, n_key]:
                raise ArgumentError(
                    f"mask must be [batch, n_key], here [{batch}, {n_key}], or 4-D; "
                    f"got {list(mask.shape)}"
                )
            mask = mask[:, None, None, :]
        return check_mask(mask, (batch, self.heads, n, n_key), x.device)

    def _table(self, table: Tensor | None, query: Tensor) -> Tensor | None:
        """Under autocast the projections are of lower precision than the parameters."""
        return None if table is None else table.to(query.dtype)
