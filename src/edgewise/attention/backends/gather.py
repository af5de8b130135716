"""Gather and scatter by label, on any device; by matrix products for `EdgeVectors`."""

from edgewise.attention.backends.base import Backend, named, why_not_dot_product
from edgewise.attention.composite import attention
from edgewise.attention.inputs import AttentionInputs


def supports(inputs: AttentionInputs) -> str | None:
    relations = inputs.relations
    if relations is not None and not relations.is_dense:
        return f"needs an edge between all queries and keys; got relations={named(relations)}"
    return why_not_dot_product(inputs)


BACKEND = Backend("gather", supports, cost=lambda inputs: 1.5, run=attention)
