"""What a backend is."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from edgewise.attention.inputs import AttentionInputs
from edgewise.attention.relations import RelativePositions, can_read_values


@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    name: for `method=`.
    supports: return why it cannot run these inputs ("has no dropout; got dropout=0.1"), or None.
    cost: return a relative cost; `auto` selects the lowest among those that support the inputs.
    run: return the output [batch, head, n_query, d_head].
    in_float32: whether `run` is given half precision as float32, and its output rounded.
    """

    name: str
    supports: Callable[[AttentionInputs], str | None]
    cost: Callable[[AttentionInputs], float]
    run: Callable[[AttentionInputs], Tensor]
    in_float32: bool = False


def why_not_dot_product(
    inputs: AttentionInputs, *, dropout: bool = True, cpu_only: bool = False
) -> str | None:
    """Return why a backend for the dot product cannot run, or None.

    dropout: whether the backend has dropout of attention weights.
    """
    if not inputs.is_dot_product:
        return f"supports only the dot product; got compatibility={named(inputs.compatibility)}"
    if cpu_only and inputs.query.device.type != "cpu":
        return f"supports only CPUs; got {inputs.query.device}"
    if not dropout and inputs.dropout > 0:
        return f"has no dropout of attention weights; got dropout={inputs.dropout}"
    return None


def why_not_positions(inputs: AttentionInputs) -> str | None:
    """Return why a backend for tables of several relative positions cannot run, or None."""
    relations = inputs.relations
    if not isinstance(relations, RelativePositions) or not inputs.has_tables:
        given = f"relations={named(relations)}" if inputs.has_tables else "no table"
        return f"needs RelativePositions and a key_table or value_table; got {given}"
    return "needs max_distance of 1 or more; got 0" if relations.max_distance == 0 else None


def has_hidden_nan(inputs: AttentionInputs, mask: Tensor | None) -> bool:
    """Return whether NaN or infinity of a key may reach queries that do not attend it.

    Fused kernels add -inf to masked logits, and a NaN logit stays NaN. Only on CPUs: elsewhere
    reading the values would take a synchronisation.
    """
    if mask is None or mask.shape[2] == 1 or not can_read_values(inputs.key):
        return False
    return not bool(inputs.key.isfinite().all())


def named(given: object) -> str:
    """Return the name of an argument's class, for messages."""
    return "None" if given is None else type(given).__name__
