"""What is refused, and what the message says: setting, expected, received, remedy."""

import math
from typing import Any

import pytest
import torch
from conftest import Inputs, assert_same
from messages import raises

from edgewise import RelationAttention, RelativePositions, attention_parts
from edgewise.attention import private
from edgewise.errors import ArgumentError, EdgewiseError

pytestmark = pytest.mark.unhooked  # the hook would raise first

# batch 2, 3 heads, 5 queries, 7 keys, d_head 4, 5 labels
INPUTS = Inputs(2, 3, 5, 7, 4, RelativePositions(2), dtype=torch.float32)
NAMES = ("query", "key", "value", "key_table", "value_table")
FLOATS = ("float32", "float64", "bfloat16", "float16")
RELATIONS = ("RelativePositions", "EdgeLabels", "EdgeList", "EdgeVectors")


def ones(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


def test_an_argument_error_is_an_edgewise_error_and_a_value_error() -> None:
    assert issubclass(ArgumentError, EdgewiseError)
    assert issubclass(ArgumentError, ValueError)


REFUSED = {
    "a query of rank 3": (
        {"query": ones(3, 5, 4)},
        ("query", "[batch, head, n, d_head]", "[3, 5, 4]"),
    ),
    "a key of rank 5": (
        {"key": ones(1, 2, 3, 7, 4)},
        ("key", "[batch, head, n, d_head]", "[1, 2, 3, 7, 4]"),
    ),
    "a value of rank 2": (
        {"value": ones(7, 4)},
        ("value", "[batch, head, n, d_head]", "[7, 4]"),
    ),
    "a query that is no tensor": ({"query": [1.0]}, ("query", "tensor", "list")),
    "a key that is no tensor": ({"key": None}, ("key", "tensor", "NoneType")),
    "integer queries": (
        {"query": ones(2, 3, 5, 4).long()},
        ("query", *FLOATS, "torch.int64"),
    ),
    "complex values": (
        {"value": ones(2, 3, 7, 4, dtype=torch.complex64)},
        ("value", *FLOATS, "torch.complex64"),
    ),
    "a key of another batch": (
        {"key": ones(6, 3, 7, 4)},
        ("key", "query", "[2, 3, n_key, 4]", "[6, 3, 7, 4]"),
    ),
    "a key of other heads": (
        {"key": ones(2, 1, 7, 4)},
        ("key", "[2, 3, n_key, 4]", "[2, 1, 7, 4]"),
    ),
    "a key of another d_head": (
        {"key": ones(2, 3, 7, 8)},
        ("key", "[2, 3, n_key, 4]", "[2, 3, 7, 8]"),
    ),
    "a d_head of 0": (
        {"query": ones(2, 3, 5, 0), "key": ones(2, 3, 7, 0), "value": ones(2, 3, 7, 0)},
        ("query", "d_head", 1, 0),
    ),
    "fewer values than keys": (
        {"value": ones(2, 3, 6, 4)},
        ("value", "key", "[2, 3, 7, 4]", "[2, 3, 6, 4]"),
    ),
    "relations of another type": (
        {"relations": 2},
        ("relations", *RELATIONS, "None", "int"),
    ),
    "offsets for another batch": (
        {"relations": RelativePositions(2, query_offset=torch.tensor([1, 2, 3]))},
        ("query_offset", "[2]", "[3]"),
    ),
    "a table without relations": (
        {"relations": None, "value_table": None},
        ("key_table", "relations=None", "RelativePositions(max_distance)"),
    ),
    "a table that is no tensor": (
        {"value_table": [0.0]},
        ("value_table", "tensor", "list"),
    ),
    "a table of the wrong length": (
        {"key_table": ones(6, 4)},
        ("key_table", "[5, 4]", "[3, 5, 4]", "max_distance", 2, 5, "[6, 4]"),
    ),
    "a table of another d_head": (
        {"value_table": ones(5, 8)},
        ("value_table", "[5, 4]", "[5, 8]"),
    ),
    "a table for too many heads": (
        {"value_table": ones(6, 5, 4)},
        ("value_table", "[3, 5, 4]", "[6, 5, 4]"),
    ),
    "a mask of floats": (
        {"mask": torch.zeros(5, 7)},
        ("mask", "bool", "True", "torch.float32", "mask == 0"),
    ),
    "a mask that is no tensor": ({"mask": True}, ("mask", "tensor", "bool")),
    "a padding mask without its inner dimensions": (
        {"mask": ones(2, 7).bool()},
        ("mask", "[5, 7]", "[2, 3, 5, 7]", "[2, 7]", "mask[:, None, None, :]"),
    ),
    "a mask of rank 3": (
        {"mask": ones(2, 5, 7).bool()},
        ("mask", "[2, 3, 5, 7]", "[2, 5, 7]"),
    ),
    "a mask of the wrong size": (
        {"mask": ones(2, 3, 5, 6).bool()},
        ("mask", "[2, 3, 5, 7]", "[2, 3, 5, 6]"),
    ),
    "causal without relations, not square": (
        {"relations": None, "key_table": None, "value_table": None, "causal": True},
        ("causal", 5, 7, "RelativePositions", "query_offset"),
    ),
    "a dropout of 1": ({"dropout": 1.0}, ("dropout", "[0, 1)", 1.0)),
    "a dropout below 0": ({"dropout": -0.1}, ("dropout", "[0, 1)", -0.1)),
    "a dropout of NaN": ({"dropout": math.nan}, ("dropout", "[0, 1)", "nan")),
    "a scale of NaN": ({"scale": math.nan}, ("scale", "finite", "None", "nan")),
    "an infinite scale": ({"scale": math.inf}, ("scale", "finite", "None", "inf")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_computed_is_refused(case: str) -> None:
    changes, facts = REFUSED[case]
    with raises(ArgumentError, *facts):
        INPUTS.output(**changes)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_dtype_other_than_the_query_s_is_refused(name: str) -> None:
    remedy = f"{name}.to(torch.float32)"
    with raises(ArgumentError, name, "dtype", "torch.float32", "torch.float64", remedy):
        INPUTS.output(**{name: INPUTS.tensors[name].double()})


@pytest.mark.parametrize("name", [*NAMES[1:], "mask"])
def test_a_device_other_than_the_query_s_is_refused(name: str) -> None:
    given = {**INPUTS.tensors, "mask": ones(5, 7).bool()}
    with raises(ArgumentError, name, "device", "cpu", "meta"):
        INPUTS.output(**{name: given[name].to("meta")})


def test_the_definition_and_the_parts_refuse_it_too() -> None:
    query, key = (INPUTS.tensors[name] for name in NAMES[:2])
    with raises(ArgumentError, "key_table", "[5, 4]", "[6, 4]"):
        INPUTS.output("reference", key_table=ones(6, 4))
    with raises(ArgumentError, "key_table", "[5, 4]", "[6, 4]"):
        attention_parts(query, key, INPUTS.relations, key_table=ones(6, 4))


@pytest.mark.parametrize(
    ("distance", "facts"),
    [
        (-1, ("max_distance", 0, -1, "relations=None")),
        (True, ("max_distance", "int", "True")),
        (2.0, ("max_distance", "int", 2.0)),
        (None, ("max_distance", "int", "None")),
    ],
)
def test_a_distance_that_is_no_count_is_refused(distance: Any, facts: tuple[Any, ...]) -> None:
    with raises(ArgumentError, *facts):
        RelativePositions(distance)


@pytest.mark.parametrize(
    ("offset", "facts"),
    [
        (ones(2).int(), ("int64", "[batch]", "torch.int32", "[2]")),
        (ones(2, 1).long(), ("int64", "[batch]", "torch.int64", "[2, 1]")),
        (torch.tensor(3), ("int64", "[batch]", "torch.int64", "[]")),
        (1.5, ("int", "int64", 1.5)),
        (True, ("int", "int64", "True")),
    ],
)
def test_an_offset_that_is_no_position_is_refused(offset: Any, facts: tuple[Any, ...]) -> None:
    with raises(ArgumentError, "query_offset", *facts):
        RelativePositions(2, query_offset=offset)


def test_an_unknown_method_is_refused_with_the_names_of_all() -> None:
    names = ("auto", "reference", "sdpa", "gather", "chunked_gather", "diagonal", "blockwise")
    with raises(ArgumentError, "method", *names, "sparse", "nonlinear", "flash"):
        INPUTS.output("flash")


def test_blockwise_refuses_dropout_and_auto_drops() -> None:
    with raises(ArgumentError, "method", "blockwise", "dropout", 0.5, "auto"):
        INPUTS.output("blockwise", dropout=0.5)
    long = Inputs(1, 2, 400, 400, 3, RelativePositions(4))
    dropped, again = long.output(dropout=0.5), long.output(dropout=0.5)
    assert dropped.isfinite().all()
    assert not torch.equal(dropped, again)


def test_blockwise_refuses_an_offset_for_each_sentence_and_auto_takes_it() -> None:
    each = RelativePositions(4, query_offset=torch.tensor([1, -2]))
    inputs = Inputs(2, 1, 400, 390, 3, each)
    with raises(ArgumentError, "method", "blockwise", "query_offset", "auto"):
        inputs.output("blockwise")
    assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.parametrize("n", [9, 400])
def test_without_the_fused_kernels_blockwise_is_refused_and_auto_takes_another(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "HAS_FLASH", False)
    inputs = Inputs(1, 2, n, n, 3, RelativePositions(4))
    with raises(ArgumentError, "method", "blockwise", "fused", torch.__version__, "cpu"):
        inputs.output("blockwise")
    assert_same(inputs.results("auto"), inputs.results("reference"))


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"d_model": 0}, ("d_model", 1, 0, "heads", 3)),
        ({"heads": 0}, ("d_model", 12, "heads", 1, 0)),
        ({"heads": 5}, ("d_model", 12, "heads", 5, "d_head")),
        ({"d_head": 0}, ("d_head", 1, 0)),
        ({"dropout": 1.0}, ("dropout", "[0, 1)", 1.0)),
        ({"max_distance": -2}, ("max_distance", 0, -2)),
        ({"max_distance": 1.5}, ("max_distance", "int", 1.5)),
    ],
)
def test_settings_of_no_layer_are_refused(
    settings: dict[str, Any], facts: tuple[object, ...]
) -> None:
    with raises(ArgumentError, *facts):
        RelationAttention(**{"d_model": 12, "heads": 3, **settings})


@pytest.mark.parametrize("shape", [(5, 12), (2, 5, 11), (2, 3, 5, 12)])
def test_a_layer_refuses_inputs_of_another_shape(shape: tuple[int, ...]) -> None:
    with raises(ArgumentError, "x", "[batch, n, 12]", list(shape)):
        RelationAttention(12, 3, max_distance=2)(ones(*shape))


def test_a_layer_refuses_a_mask_between_positions() -> None:
    with raises(ArgumentError, "mask", "[batch, n_key]", "[2, 5]", "[5, 5]"):
        RelationAttention(12, 3, max_distance=2)(ones(2, 5, 12), mask=ones(5, 5).bool())


@pytest.mark.parametrize(
    ("sizes", "facts"),
    [
        ({"batch": -1}, ("batch", 0, -1)),
        ({"batch": 2, "max_length": -3}, ("max_length", 0, -3)),
    ],
)
def test_a_state_of_negative_size_is_refused(
    sizes: dict[str, int], facts: tuple[object, ...]
) -> None:
    with raises(ArgumentError, *facts):
        RelationAttention(12, 3).new_state(**sizes)


@torch.no_grad()
def test_a_state_refuses_another_batch() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    with raises(ArgumentError, "x", "batch", 2, 4, "state.reorder"):
        layer(ones(4, 5, 12), state=layer.new_state(2))


@torch.no_grad()
def test_a_state_refuses_keys_of_another_dtype() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    state = layer.new_state(2)
    layer(ones(2, 5, 12), state=state)
    with raises(ArgumentError, "x", "state", "torch.float32", "torch.float64", "cpu"):
        layer.double()(ones(2, 1, 12).double(), state=state)


@torch.no_grad()
def test_a_full_state_refuses_more() -> None:
    layer = RelationAttention(12, 3, max_distance=2)
    state = layer.new_state(2, max_length=6)
    layer(ones(2, 5, 12), state=state)
    with raises(ArgumentError, "max_length", 6, 5, 2, "new_state", "max_length=None"):
        layer(ones(2, 2, 12), state=state)
    assert layer(ones(2, 1, 12), state=state).shape == (2, 1, 12)  # what it refused is not in it


@pytest.mark.parametrize(
    ("index", "facts"),
    [
        (ones(2), ("int", "[new_batch]", "torch.float32", "[2]")),
        (ones(2).bool(), ("int", "[new_batch]", "torch.bool", "[2]")),
        (ones(1, 2).long(), ("int", "[new_batch]", "torch.int64", "[1, 2]")),
        (torch.tensor([0, 3]), (0, 2, 3)),
        (torch.tensor([-1, 1]), (0, 2, -1, 1)),
    ],
)
def test_an_index_of_no_sentence_is_refused(index: torch.Tensor, facts: tuple[object, ...]) -> None:
    with raises(ArgumentError, "index", *facts):
        RelationAttention(12, 3).new_state(3).reorder(index)
