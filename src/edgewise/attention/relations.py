"""Relations: how the edge from query i to key j gets its vectors a^K_ij and a^V_ij.

Most relations give every edge a label, and the vectors are rows of two tables. A new relation is a
subclass of `Relation`; docs/attention.md shows one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from edgewise.attention import check
from edgewise.attention.private import is_plain, is_transforming, register_pytree
from edgewise.attention.shapes import EdgeVectorTensor, Labels
from edgewise.errors import ArgumentError

Positions = Int64[Tensor, "*batch n_query"]
Vectors = Float[Tensor, "*any n_query n_key d_head"]

TABLE = "{} or, with a table per head, {}"


class Relation:
    """The interface that backends call. Subclasses are frozen dataclasses with `eq=False`.

    They are pytrees whose leaves are the tensors in their fields.
    """

    has_labels: ClassVar[bool] = True  # vectors are rows of tables
    is_dense: ClassVar[bool] = True  # there is an edge from every query to every key
    sets_positions: ClassVar[bool] = False  # `query_positions` may differ from 0, 1, 2, …
    n_labels: int | None = None  # None: not known
    has_unlabelled: bool = False  # edges may have label -1, which adds no vector

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register_pytree(cls, _flatten, cls._unflatten)

    def labels_between(self, n_query: int, n_key: int, device: torch.device) -> Labels:
        """Return the label of every edge, -1 for none."""
        raise NotImplementedError(f"{type(self).__name__} has no label for every edge")

    def vectors(self, name: str) -> EdgeVectorTensor | None:
        """Return `edge_key` or `edge_value` of every edge; only without labels."""
        return None

    def query_positions(self, n_query: int, device: torch.device | None = None) -> Positions:
        """Return the position of each query, for causal masks; the position of key j is j."""
        return torch.arange(n_query, device=device)

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise ArgumentError unless the relation fits these queries and keys."""

    def check_table(self, name: str, table: Tensor, query: Tensor) -> None:
        """Raise ArgumentError unless a table has a row for every label."""
        _, heads, _, d_head = query.shape
        check.shape(name, table, TABLE, ("label", d_head), (heads, "label", d_head))
        rows = table.shape[-2]
        if self.n_labels is not None and rows < self.n_labels:
            largest = self.n_labels - 1
            raise ArgumentError(f"labels must be below the rows of {name}, {rows}; got {largest}")

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> Any:
        """Return the relation with each of its tensors replaced by `function` of it."""
        fields = {x: function(y) if isinstance(y, Tensor) else y for x, y in vars(self).items()}
        return self._unflatten(fields.values(), (fields.keys(), ()))

    def to(self, device: torch.device | str) -> Any:
        """Return the relation with its tensors on another device."""
        return self.map_tensors(lambda x: x.to(device))

    @classmethod
    def _unflatten(cls, leaves: Iterable[Any], context: Any) -> Any:
        """Return a relation with these fields, unchecked; others have their defaults."""
        relation, (names, rest) = object.__new__(cls), context
        vars(relation).update((*zip(names, leaves, strict=True), *rest))
        return relation


def _flatten(relation: Relation) -> tuple[list[Any], Any]:
    """Return the tensors of a relation, and their names with the other arguments it was made of.

    What was read from values is left out: it differs between the inputs of an exported program.
    """
    content = vars(relation)
    names = tuple(name for name, value in content.items() if isinstance(value, Tensor))
    rest = [field.name for field in fields(relation) if field.init and field.name not in names]  # type: ignore[arg-type]
    return [content[name] for name in names], (names, tuple((x, content[x]) for x in rest))


def can_read_values(x: Tensor) -> bool:
    """Return whether values can be read without a synchronisation or a graph break."""
    is_traced = torch.compiler.is_compiling() or is_transforming()
    return x.device.type == "cpu" and is_plain(x) and not is_traced


@dataclass(frozen=True, eq=False)
class RelativePositions(Relation):
    """Label an edge by the clipped distance from query to key: clip(j - i, -k, k) + k.

    max_distance: the clipping distance k; 0 is one label for all edges.
    query_offset: query row i is at position i + query_offset, key column j at position j. An int,
        or an int64 tensor with one offset per sequence of the batch.

    >>> RelativePositions(max_distance=1).labels(2, 3).tolist()
    [[1, 2, 2], [0, 1, 2]]
    """

    sets_positions: ClassVar[bool] = True
    max_distance: int
    query_offset: int | Int64[Tensor, " batch"] = 0

    def __post_init__(self) -> None:
        k, offset = self.max_distance, self.query_offset
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ArgumentError(
                f"max_distance must be an int, 0 or more; got {k!r} "
                "(0 is one label for every edge; for plain attention pass relations=None)"
            )
        if isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
            expected = "an int or an int64 tensor [batch]"
            check.tensor("query_offset", offset, expected, (torch.int64,), 1)

    @property
    def n_labels(self) -> int:  # type: ignore[override]
        return 2 * self.max_distance + 1

    def distances(self, n_query: int, n_key: int, device: torch.device | None = None) -> Labels:
        """Return j - i of every edge, unclipped; with a batch dimension if the offset has one."""
        queries = self.query_positions(n_query, device)
        return torch.arange(n_key, device=device) - queries[..., None]

    def labels(self, n_query: int, n_key: int, device: torch.device | None = None) -> Labels:
        """Return the label of every edge, a row of the tables."""
        k = self.max_distance
        return self.distances(n_query, n_key, device).clamp(-k, k) + k

    labels_between = labels

    def query_positions(self, n_query: int, device: torch.device | None = None) -> Positions:
        offset = self.query_offset
        shift = offset.to(device)[:, None] if isinstance(offset, Tensor) else offset
        return torch.arange(n_query, device=device) + shift

    def check(self, query: Tensor, key: Tensor) -> None:
        if isinstance(self.query_offset, Tensor):
            expected = "one offset per sequence, {}"
            check.shape("query_offset", self.query_offset, expected, (query.shape[0],))

    def check_table(self, name: str, table: Tensor, query: Tensor) -> None:
        (_, heads, _, d_head), rows = query.shape, self.n_labels
        shapes = (rows, d_head), (heads, rows, d_head)
        if table.shape not in shapes:
            expected = f"{TABLE} (max_distance {self.max_distance} has {rows} labels)"
            check.shape(name, table, expected, *shapes)


@dataclass(frozen=True, eq=False)
class EdgeLabels(Relation):
    """A label for every edge of a graph in which every node may attend to every other.

    labels: int [n_query, n_key], or [batch, n_query, n_key] for one graph per item. An edge with
        label -1 adds no vector and is attended to all the same: use a mask to hide edges.
    n_labels: the number of labels; by default the largest label plus one. Pass it on a GPU, where
        computing it waits for the GPU, inside torch.compile, and for inputs of torch.export, whose
        labels may differ from those it is traced with. Labels are checked on CPUs only.

    >>> EdgeLabels(torch.tensor([[0, 3], [-1, 0]])).n_labels
    4
    """

    labels: Labels
    n_labels: int | None = None
    has_unlabelled: bool = field(init=False, repr=False, default=True)

    def __post_init__(self) -> None:
        labels, fields = self.labels, vars(self)  # fields: it is frozen
        shapes = "[n_query, n_key] or [batch, n_query, n_key]"
        expected = f"an int8, int16, int32, int64 or uint8 tensor {shapes}"
        check.tensor("labels", labels, expected, check.INTEGERS, 2, 3)
        fields["labels"] = labels.clone()  # what was checked is what is used
        is_read = can_read_values(labels)
        if is_read:
            smallest = int(labels.min()) if labels.numel() else 0
            if smallest < -1:
                raise ArgumentError(f"labels must be -1 (no vector) or more; got {smallest}")
            fields["has_unlabelled"] = smallest < 0
        if is_read or (self.n_labels is None and not torch.compiler.is_compiling()):
            largest = int(labels.max()) if labels.numel() else -1
            if self.n_labels is None:
                fields["n_labels"] = largest + 1
            elif largest >= self.n_labels:
                raise ArgumentError(f"labels must be below n_labels={self.n_labels}; got {largest}")

    @classmethod
    def from_graph_and_positions(
        cls, labels: Labels, positions: RelativePositions, n_labels: int | None = None
    ) -> "EdgeLabels":
        """Return labels in which edges without one, -1, are labelled by their clipped distance.

        The first 2k + 1 rows of a table are the distances, followed by the n_labels of the graph.

        >>> parse = torch.tensor([[-1, 0], [-1, -1]])
        >>> EdgeLabels.from_graph_and_positions(parse, RelativePositions(1)).labels.tolist()
        [[1, 3], [0, 1]]
        """
        check.type_of("positions", positions, "RelativePositions", RelativePositions)
        given = cls(labels, n_labels)
        graph, count = given.labels.long(), given.n_labels
        distances = positions.labels(graph.shape[-2], graph.shape[-1], graph.device)
        if graph.dim() == distances.dim() == 3 and len(graph) != len(distances):
            expected = f"one offset for each of the {len(graph)} items of labels"
            raise ArgumentError(f"query_offset must have {expected}; got {len(distances)}")
        count = None if count is None else count + positions.n_labels
        return cls(torch.where(graph < 0, distances, graph + positions.n_labels), count)

    def labels_between(self, n_query: int, n_key: int, device: torch.device) -> Labels:
        return self.labels

    def check(self, query: Tensor, key: Tensor) -> None:
        (batch, _, n_query, _), n_key = query.shape, key.shape[2]
        expected = "a row per query and a column per key, {}, or one such matrix per item, {}"
        shapes = (n_query, n_key), (batch, n_query, n_key)
        check.shape("labels", self.labels, expected, *shapes)
        check.device("labels", self.labels, query)


@dataclass(frozen=True, eq=False)
class EdgeVectors(Relation):
    """Arbitrary a^K and a^V, the paper's general form; either may be None.

    [n_query, n_key, d_head] for all items, [batch, n_query, n_key, d_head] for each, or
    [batch or 1, head or 1, n_query, n_key, d_head]. Tables cannot be given in addition.
    """

    has_labels: ClassVar[bool] = False
    edge_key: Vectors | None
    edge_value: Vectors | None

    def __post_init__(self) -> None:
        if self.edge_key is None and self.edge_value is None:
            raise ArgumentError(
                "EdgeVectors needs edge_key or edge_value; got None (plain attention: no relations)"
            )
        expected = "a float tensor [n_query, n_key, d_head], with batch, or batch and head, before"
        for name, vectors in self._given():
            check.tensor(name, vectors, expected, check.FLOATS, 3, 4, 5)

    def vectors(self, name: str) -> EdgeVectorTensor | None:
        vectors: Tensor | None = getattr(self, name)
        if vectors is None or vectors.dim() == 5:
            return vectors
        return vectors[:, None] if vectors.dim() == 4 else vectors[None, None]

    def check(self, query: Tensor, key: Tensor) -> None:
        batch, heads, n_query, d_head = query.shape
        last = n_query, key.shape[2], d_head
        expected = "{}, {}, or {} with sizes of 1 for batch and head"
        shared = ((1, heads), (batch, 1), (1, 1))
        shapes = last, (batch, *last), (batch, heads, *last), *((*x, *last) for x in shared)
        for name, vectors in self._given():
            check.shape(name, vectors, expected, *shapes)
            check.like_query(name, vectors, query)

    def _given(self) -> list[tuple[str, Vectors]]:
        given = (("edge_key", self.edge_key), ("edge_value", self.edge_value))
        return [(name, vectors) for name, vectors in given if vectors is not None]
