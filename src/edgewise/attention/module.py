"""Relation-aware self-attention as a layer: projections, tables, and the cache of a decoder."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from edgewise.attention import check
from edgewise.attention.api import relation_attention
from edgewise.attention.backends import check_method
from edgewise.attention.backends.base import named
from edgewise.attention.cache import AttentionState
from edgewise.attention.compatibility import Compatibility, DotProduct
from edgewise.attention.inputs import check_mask
from edgewise.attention.relations import Relation, RelativePositions
from edgewise.errors import ArgumentError

Sequences = Float[Tensor, "batch n d_model"]


class RelationAttention(nn.Module):
    """Multi-head self-attention with relative positions or a graph (section 3 of the paper).

    d_model, heads, d_head: d_head is d_model / heads by default.
    max_distance: the clipping distance k of relative positions.
    n_labels: number of edge labels of graphs, which are given at each call. Without n_labels and
        max_distance there are no tables: attention is plain, or by `EdgeVectors` or `EdgeList`.
    on_keys, on_values: whether the layer has a table of a^K and of a^V (`EdgeVectors` bring their
        own).
    per_head: a table per head instead of one for all heads.
    dropout: probability of dropping an attention weight, in training.
    bias: whether the projections have one.
    compatibility: the class `Additive`, whose u is then a parameter per head, or `Gated`.
    method: the backend, as in `relation_attention`.

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
        compatibility: type[Compatibility] | None = None,
        method: str = "auto",
    ) -> None:
        super().__init__()
        self.d_model, self.heads, self.dropout, self.per_head = d_model, heads, dropout, per_head
        self.max_distance, self.n_labels, self.method = max_distance, n_labels, method
        self.compatibility = compatibility
        self._check_settings(d_head)
        self.d_head = d_model // heads if d_head is None else d_head
        inner = heads * self.d_head
        self.query, self.key, self.value = (nn.Linear(d_model, inner, bias=bias) for _ in range(3))
        self.output = nn.Linear(inner, d_model, bias=bias)
        if max_distance is not None:
            n_labels = RelativePositions(max_distance).n_labels
        sizes = (n_labels or 0, self.d_head)
        shape = (heads, *sizes) if per_head else sizes
        self.key_table, self.value_table = (
            nn.Parameter(torch.empty(shape)) if is_used and n_labels is not None else None
            for is_used in (on_keys, on_values)
        )
        self.register_parameter("u", None)  # for all compatibilities; Additive has one
        for name, size in self._compatibility_shapes().items():
            self.register_parameter(name, nn.Parameter(torch.empty(size)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all weights by Glorot's uniform distribution; biases are zero.

        The number of rows and columns is that of one head's table; a vector is a matrix of one row.
        """
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        tables = [(x, x.shape[-2]) for x in (self.key_table, self.value_table) if x is not None]
        vectors = [(getattr(self, name), 1) for name in self._compatibility_shapes()]
        for parameter, rows in (*tables, *vectors):
            bound = math.sqrt(6 / (rows + parameter.shape[-1]))
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self,
        x: Sequences,
        mask: Bool[Tensor, "..."] | None = None,
        causal: bool = False,
        state: AttentionState | None = None,
        relations: Relation | None = None,
    ) -> Sequences:
        """Return the layer's output for each position of x.

        mask: bool [batch, n_key], True = token, or 4-D as in `relation_attention`.
        causal: a position attends to itself and to those before.
        state: from `new_state`, for decoding: x is the next positions of the sequences in the
            state, to which it is added. Attention is causal, and n_key is the length of all.
        relations: the edges between the positions of x. A layer with n_labels needs `EdgeLabels` or
            an `EdgeList`; one with max_distance takes none; one with neither takes `EdgeVectors`,
            an `EdgeList` or None. Not together with `state`.
        """
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ArgumentError(f"x must be [batch, n, {self.d_model}]; got {list(x.shape)}")
        self._check_relations(relations, state)
        query, key, value = self.project(x)
        offset = 0 if state is None else state.length
        n_key = offset + x.shape[1]
        mask = check_mask(mask, query, n_key, is_padding=True)
        if state is not None:
            causal = True
            key, value = state.append(key, value)
        if relations is None:
            # Without tables the relation only positions the queries.
            relations = RelativePositions(self.max_distance or 0, query_offset=offset)
        compatibility = None
        if self.compatibility is not None:
            fields = {x: getattr(self, x).to(query.dtype) for x in self._compatibility_shapes()}
            compatibility = self.compatibility(**fields)
        tables = self.key_table, self.value_table  # in the dtype that autocast chose for the query
        key_table, value_table = (None if x is None else x.to(query.dtype) for x in tables)
        try:
            output = relation_attention(
                *(query, key, value, relations),
                key_table=key_table,
                value_table=value_table,
                mask=mask,
                causal=causal,
                dropout=self.dropout if self.training else 0.0,
                compatibility=compatibility,
                method=self.method,
            )
        except BaseException:
            if state is not None:
                state.truncate(offset)
            raise
        return self.merge(output)

    def project(self, x: Sequences) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of x, each [batch, head, n, d_head]."""
        query, key, value = (
            layer(x).view(*x.shape[:2], self.heads, self.d_head).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        return query, key, value

    def merge(self, output: Float[Tensor, "batch head n d_head"]) -> Sequences:
        """Return the output projection of all heads."""
        result: Tensor = self.output(output.transpose(1, 2).flatten(2))
        return result

    def new_state(self, batch: int, max_length: int | None = None) -> AttentionState:
        """Return an empty cache for `batch` sequences; it grows unless max_length is given."""
        return AttentionState(batch, self.heads, self.d_head, max_length, like=self.key.weight)

    def extra_repr(self) -> str:
        labels = "max_distance" if self.n_labels is None else "n_labels"
        names = "d_model", "heads", "d_head", labels, "per_head", "dropout"
        shown = [f"{name}={getattr(self, name)}" for name in names]
        tables = {"keys": self.key_table, "values": self.value_table}
        if where := " and ".join(name for name, table in tables.items() if table is not None):
            shown.append(f"on {where}")
        if self.compatibility is not None:
            shown.append(self.compatibility.__name__)
        return ", ".join(shown)

    def _check_settings(self, d_head: int | None) -> None:
        """Raise ArgumentError for invalid sizes, dropout, method, labels or compatibility."""
        check_method(self.method)
        check.dropout(self.dropout)
        d_model, heads, kind = self.d_model, self.heads, self.compatibility
        if d_model < 1 or heads < 1 or (d_head is None and d_model % heads != 0):
            raise ArgumentError(
                "d_model and heads must be 1 or more, d_model a multiple of heads unless d_head is "
                f"given; got d_model={d_model}, heads={heads}"
            )
        if self.max_distance is not None and self.n_labels is not None:
            raise ArgumentError(
                f"give max_distance or n_labels, not both; got {self.max_distance} and "
                f"{self.n_labels} (EdgeLabels.from_graph_and_positions combines them)"
            )
        for name, size in (("d_head", d_head), ("n_labels", self.n_labels)):
            if size is not None and size < 1:
                raise ArgumentError(f"{name} must be 1 or more; got {size}")
        if kind is not None and not (isinstance(kind, type) and issubclass(kind, Compatibility)):
            raise ArgumentError(
                f"compatibility must be a class, Additive or Gated, or None; got {kind!r} "
                "(the layer creates its parameters)"
            )

    def _check_relations(self, relations: Relation | None, state: AttentionState | None) -> None:
        """Raise ArgumentError for relations that the layer has no tables for."""
        if relations is not None:
            expected = "EdgeLabels, EdgeList, EdgeVectors or None"
            check.type_of("relations", relations, expected, Relation)
        if state is not None and (relations is not None or self.n_labels is not None):
            raise ArgumentError("state takes no relations and no n_labels (call without state)")
        has_labels = relations is not None and relations.has_labels
        if self.n_labels is not None:
            fits = has_labels and not isinstance(relations, RelativePositions)
            expected = "EdgeLabels(...) or EdgeList(...) at each call"
        elif self.max_distance is not None:
            fits, expected = relations is None, "None"
        else:
            fits = relations is None or not (has_labels and relations.is_dense)
            expected = "EdgeList, EdgeVectors or None"
        if not fits:
            raise ArgumentError(
                f"relations must be {expected} in a layer with max_distance={self.max_distance} "
                f"and n_labels={self.n_labels}; got relations={named(relations)} "
                "(max_distance is for positions, n_labels for graphs; for both, "
                "EdgeLabels.from_graph_and_positions)"
            )
        n_labels = None if relations is None else relations.n_labels
        if n_labels is not None and self.n_labels is not None and n_labels > self.n_labels:
            raise ArgumentError(
                f"labels must be below n_labels of the layer, {self.n_labels}; got {n_labels - 1}"
            )

    def _compatibility_shapes(self) -> dict[str, tuple[int, ...]]:
        return (self.compatibility or DotProduct).parameter_shapes(self.heads, self.d_head)
