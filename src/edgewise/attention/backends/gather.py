"""Gather and scatter by label, on any device; by matrix products for `EdgeVectors`."""

from edgewise.attention.backends.base import Backend, named
from edgewise.attention.composite import attention
from edgewise.attention.inputs import AttentionInputs


def supports(inputs: AttentionInputs) -> str | None:
    if inputs.relations is not None and not inputs.relations.is_dense:
        return (
            f"needs an edge between all queries and keys; got relations={named(inputs.relations)}"
        )
    if not inputs.is_dot_product:
        return f"computes the dot product; got compatibility={named(inputs.compatibility)}"
    return None


BACKEND = Backend("gather", supports, cost=lambda inputs: 1.5, run=attention)
