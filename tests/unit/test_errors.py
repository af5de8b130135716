"""What is refused, and what the message says: setting, expected, received, remedy."""

import math
from typing import Any

import pytest
import torch
from conftest import Inputs, assert_same

from edgewise import RelationAttention, RelativePositions, attention_parts
from edgewise.attention import fused, reference
from edgewise.errors import ArgumentError, EdgewiseError

pytestmark = pytest.mark.unhooked  # the hook would raise first

# batch 2, 3 heads, 5 queries, 7 keys, d_head 4, 5 labels
INPUTS = Inputs(2, 3, 5, 7, 4, RelativePositions(2), dtype=torch.float32)
NAMES = ("query", "key", "value", "key_table", "value_table")
FLOATS = "float32, float64, bfloat16 or float16"


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


def test_an_argument_error_is_an_edgewise_error_and_a_value_error() -> None:
    assert issubclass(ArgumentError, EdgewiseError)
    assert issubclass(ArgumentError, ValueError)


REFUSED = {
    "a query of rank 3": (
        {"query": ones(3, 5, 4)},
        r"query must be \[batch, head, n, d_head\]; got \[3, 5, 4\]",
    ),
    "a key of rank 5": (
        {"key": ones(1, 2, 3, 7, 4)},
        r"key must be \[batch, head, n, d_head\]; got \[1, 2, 3, 7, 4\]",
    ),
    "a value of rank 2": (
        {"value": ones(7, 4)},
        r"value must be \[batch, head, n, d_head\]; got \[7, 4\]",
    ),
    "a query that is no tensor": ({"query": [1.0]}, "query must be a tensor; got list"),
    "a key that is no tensor": ({"key": None}, "key must be a tensor; got NoneType"),
    "integer queries": (
        {"query": ones(2, 3, 5, 4).long()},
        f"query must be {FLOATS}; got torch.int64",
    ),
    "complex values": (
        {"value": ones(2, 3, 7, 4, dtype=torch.complex64)},
        f"value must be {FLOATS}; got torch.complex64",
    ),
    "a key of another batch": (
        {"key": ones(6, 3, 7, 4)},
        r"key must have the query's batch, head and d_head, \[2, 3, n_key, 4\]; "
        r"got \[6, 3, 7, 4\]",
    ),
    "a key of other heads": ({"key": ones(2, 1, 7, 4)}, r"\[2, 3, n_key, 4\]; got \[2, 1, 7, 4\]"),
    "a key of another d_head": (
        {"key": ones(2, 3, 7, 8)},
        r"\[2, 3, n_key, 4\]; got \[2, 3, 7, 8\]",
    ),
    "a d_head of 0": (
        {"query": ones(2, 3, 5, 0), "key": ones(2, 3, 7, 0), "value": ones(2, 3, 7, 0)},
        "query must have a d_head of 1 or more; got 0",
    ),
    "fewer values than keys": (
        {"value": ones(2, 3, 6, 4)},
        r"value must have the key's shape, \[2, 3, 7, 4\]; got \[2, 3, 6, 4\]",
    ),
    "relations of another type": (
        {"relations": 2},
        "relations must be RelativePositions, EdgeLabels, EdgeList, EdgeVectors or None; got int",
    ),
    "offsets for another batch": (
        {"relations": RelativePositions(2, query_offset=torch.tensor([1, 2, 3]))},
        r"query_offset must have one offset for each sentence, \[2\]; got \[3\]",
    ),
    "a table without relations": (
        {"relations": None, "value_table": None},
        r"key_table needs relations .* got relations=None \(RelativePositions\(max_distance\)",
    ),
    "a table that is no tensor": (
        {"value_table": [0.0]},
        "value_table must be a tensor; got list",
    ),
    "a table of the wrong length": (
        {"key_table": ones(6, 4)},
        r"key_table must be \[5, 4\] or, a table for each head, \[3, 5, 4\] "
        r"\(max_distance 2 has 5 labels\); got \[6, 4\]",
    ),
    "a table of another d_head": (
        {"value_table": ones(5, 8)},
        r"value_table must be \[5, 4\].* got \[5, 8\]",
    ),
    "a table for too many heads": (
        {"value_table": ones(6, 5, 4)},
        r"value_table must be .* \[3, 5, 4\] .*; got \[6, 5, 4\]",
    ),
    "a mask of floats": (
        {"mask": torch.zeros(5, 7)},
        r"mask must be bool, True where .*; got torch.float32 \(an additive mask .* mask == 0\)",
    ),
    "a mask that is no tensor": ({"mask": True}, "mask must be a bool tensor; got bool"),
    "a padding mask without its inner dimensions": (
        {"mask": ones(2, 7).bool()},
        r"mask must be \[n_query, n_key\], here \[5, 7\], .* here \[2, 3, 5, 7\]; got \[2, 7\] "
        r"\(a padding mask \[batch, n_key\] is mask\[:, None, None, :\]\)",
    ),
    "a mask of rank 3": ({"mask": ones(2, 5, 7).bool()}, r"got \[2, 5, 7\]"),
    "a mask of the wrong size": ({"mask": ones(2, 3, 5, 6).bool()}, r"got \[2, 3, 5, 6\]"),
    "causal without relations, not square": (
        {"relations": None, "key_table": None, "value_table": None, "causal": True},
        r"needs as many queries as keys; got 5 and 7 \(RelativePositions\(k, query_offset=",
    ),
    "a dropout of 1": ({"dropout": 1.0}, r"dropout must be in \[0, 1\); got 1.0"),
    "a dropout below 0": ({"dropout": -0.1}, r"dropout must be in \[0, 1\); got -0.1"),
    "a dropout of NaN": ({"dropout": math.nan}, r"dropout must be in \[0, 1\); got nan"),
    "a scale of NaN": ({"scale": math.nan}, "scale must be a finite number or None; got nan"),
    "an infinite scale": ({"scale": math.inf}, "scale must be a finite number or None; got inf"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_computed_is_refused(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ArgumentError, match=message):
        INPUTS.output(**changes)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_dtype_other_than_the_query_s_is_refused(name: str) -> None:
    message = (
        rf"{name} must have the query's dtype, torch.float32; got torch.float64 "
        rf"\({name}.to\(query.dtype\) converts it\)"
    )
    with pytest.raises(ArgumentError, match=message):
        INPUTS.output(**{name: INPUTS.tensors[name].double()})


@pytest.mark.parametrize("name", [*NAMES[1:], "mask"])
def test_a_device_other_than_the_query_s_is_refused(name: str) -> None:
    given = {**INPUTS.tensors, "mask": ones(5, 7).bool()}
    with pytest.raises(ArgumentError, match=f"{name} must be on the query's device, cpu; got meta"):
        INPUTS.output(**{name: given[name].to("meta")})


def test_the_definition_and_the_parts_refuse_it_too() -> None:
    query, key, value = (INPUTS.tensors[name] for name in NAMES[:3])
    with pytest.raises(ArgumentError, match=r"key_table must be \[5, 4\]"):
        reference.relation_attention(query, key, value, INPUTS.relations, key_table=ones(6, 4))
    with pytest.raises(ArgumentError, match=r"key_table must be \[5, 4\]"):
        attention_parts(query, key, INPUTS.relations, key_table=ones(6, 4))


@pytest.mark.parametrize(
    ("distance", "message"),
    [
        (-1, r"max_distance must be 0 or more; got -1 .* for plain attention pass relations=None"),
        (True, "max_distance must be an int; got True"),
        (2.0, "max_distance must be an int; got 2.0"),
        (None, "max_distance must be an int; got None"),
    ],
)
def test_a_distance_that_is_no_count_is_refused(distance: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RelativePositions(distance)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (ones(2).int(), r"an int or an int64 tensor \[batch\]; got torch.int32 \[2\]"),
        (ones(2, 1).long(), r"an int or an int64 tensor \[batch\]; got torch.int64 \[2, 1\]"),
        (torch.tensor(3), r"an int or an int64 tensor \[batch\]; got torch.int64 \[\]"),
        (1.5, "query_offset must be an int or an int64 tensor; got 1.5"),
        (True, "query_offset must be an int or an int64 tensor; got True"),
    ],
)
def test_an_offset_that_is_no_position_is_refused(offset: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RelativePositions(2, query_offset=offset)


def test_an_unknown_method_is_refused_with_the_names_of_all() -> None:
    message = "method must be one of auto, reference, dense, blockwise, sparse; got 'flash'"
    with pytest.raises(ArgumentError, match=message):
        INPUTS.output("flash")


def test_blockwise_refuses_dropout_and_auto_drops() -> None:
    message = r"'blockwise' has no dropout .* got dropout=0.5 \(method='auto' takes another way\)"
    with pytest.raises(ArgumentError, match=message):
        INPUTS.output("blockwise", dropout=0.5)
    long = Inputs(1, 2, 400, 400, 3, RelativePositions(4))
    dropped, again = long.output(dropout=0.5), long.output(dropout=0.5)
    assert dropped.isfinite().all()
    assert not torch.equal(dropped, again)


def test_blockwise_refuses_an_offset_for_each_sentence_and_auto_takes_it() -> None:
    each = RelativePositions(4, query_offset=torch.tensor([1, -2]))
    inputs = Inputs(2, 1, 400, 390, 3, each)
    with pytest.raises(ArgumentError, match="'blockwise' takes one query_offset for all sentences"):
        inputs.output("blockwise")
    assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.parametrize("n", [9, 400])
def test_without_the_fused_kernels_blockwise_is_refused_and_auto_is_dense(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "KNOWN", False)
    for relations in (RelativePositions(4), RelativePositions(0), None):
        inputs = Inputs(1, 2, n, n, 3, relations)
        with pytest.raises(ArgumentError, match="needs PyTorch's fused attention for the CPU"):
            inputs.output("blockwise")
        assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_model": 0}, "d_model and heads must be 1 or more; got d_model=0, heads=3"),
        ({"heads": 0}, "d_model and heads must be 1 or more; got d_model=12, heads=0"),
        ({"heads": 5}, "a multiple of heads unless d_head is given; got d_model=12, heads=5"),
        ({"d_head": 0}, "d_head must be 1 or more; got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\); got 1.0"),
        ({"max_distance": -2}, "max_distance must be 0 or more; got -2"),
        ({"max_distance": 1.5}, "max_distance must be an int; got 1.5"),
    ],
)
def test_settings_of_no_layer_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RelationAttention(**{"d_model": 12, "heads": 3, **settings})


@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 11), (2, 3, 5, 12)])
def test_a_layer_refuses_inputs_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"x must be \[batch, n, 12\]; got \["):
        RelationAttention(12, 3, max_distance=2)(ones(*shape))


def test_a_layer_refuses_a_mask_between_positions() -> None:
    message = r"mask must be \[batch, n_key\], here \[2, 5\], or 4-D; got \[5, 5\]"
    with pytest.raises(ArgumentError, match=message):
        RelationAttention(12, 3, max_distance=2)(ones(2, 5, 12), mask=ones(5, 5).bool())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": -1}, "batch must be 0 or more; got -1"),
        ({"batch": 2, "max_length": -3}, "max_length must be 0 or more; got -3"),
    ],
)
def test_a_state_of_negative_size_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RelationAttention(12, 3).new_state(**sizes)


@torch.no_grad()
def test_a_state_refuses_another_batch() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    message = r"x must have the state's batch, 2; got 4 \(state.reorder selects sentences\)"
    with pytest.raises(ArgumentError, match=message):
        layer(ones(4, 5, 12), state=layer.new_state(2))


@torch.no_grad()
def test_a_state_refuses_keys_of_another_dtype() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    state = layer.new_state(2)
    layer(ones(2, 5, 12), state=state)
    message = "like the state's, torch.float32 on cpu; got torch.float64 on cpu"
    with pytest.raises(ArgumentError, match=message):
        layer.double()(ones(2, 1, 12).double(), state=state)


@torch.no_grad()
def test_a_full_state_refuses_more() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    state = layer.new_state(2, max_length=6)
    layer(ones(2, 5, 12), state=state)
    message = r"holds max_length=6 positions; got 5 \+ 2 \(new_state\(batch, max_length=None\) "
    with pytest.raises(ArgumentError, match=message):
        layer(ones(2, 2, 12), state=state)
    assert layer(ones(2, 1, 12), state=state).shape == (2, 1, 12)  # what it refused is not in it


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (ones(2), r"index must be an int tensor \[new_batch\]; got torch.float32 \[2\]"),
        (ones(2).bool(), r"index must be an int tensor \[new_batch\]; got torch.bool \[2\]"),
        (ones(1, 2).long(), r"index must be an int tensor \[new_batch\]; got torch.int64 \[1, 2\]"),
        (torch.tensor([0, 3]), "index must be of sentences 0 to 2; got 0 to 3"),
        (torch.tensor([-1, 1]), "index must be of sentences 0 to 2; got -1 to 1"),
    ],
)
def test_an_index_of_no_sentence_is_refused(index: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        RelationAttention(12, 3).new_state(3).reorder(index)
