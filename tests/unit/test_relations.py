"""Labels and their meaning, by hand."""

import math

import pytest
import torch
from conftest import METHODS, OFFSET_METHODS, Inputs, assert_same
from torch.nn.functional import scaled_dot_product_attention

from edgewise import RelativePositions, attention_parts, relation_attention


def test_labels_count_from_the_left_and_clip() -> None:
    labels = RelativePositions(2).labels(4, 5)
    assert labels.tolist() == [[2, 3, 4, 4, 4], [1, 2, 3, 4, 4], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]


def test_an_offset_moves_the_queries() -> None:
    assert RelativePositions(2, query_offset=3).labels(1, 5).tolist() == [[0, 0, 1, 2, 3]]
    each = RelativePositions(1, query_offset=torch.tensor([0, 2])).labels(1, 3)
    assert each.tolist() == [[[1, 2, 2]], [[0, 0, 1]]]


def test_distance_zero_is_one_label() -> None:
    assert RelativePositions(0).labels(2, 3).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert RelativePositions(0).n_labels == 1


@pytest.mark.parametrize("method", ["reference", *METHODS, "auto"])
def test_two_positions_by_hand(method: str) -> None:
    # One feature, no content: the logits are q_i times the label's key, the output its value.
    query = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float64)
    nothing = torch.zeros_like(query)
    tables = {
        "key_table": torch.tensor([[0.0], [math.log(2)], [math.log(3)]], dtype=torch.float64),
        "value_table": torch.tensor([[10.0], [20.0], [30.0]], dtype=torch.float64),
    }
    output = relation_attention(
        query, nothing, nothing, RelativePositions(1), scale=1.0, method=method, **tables
    )
    # Query 0 sees labels 1, 2 with weights 2/5, 3/5; query 1 sees labels 0, 1 with 1/5, 4/5.
    expected = [[20 * 2 / 5 + 30 * 3 / 5], [10 * 1 / 5 + 20 * 4 / 5]]
    torch.testing.assert_close(output[0, 0], torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("method", [*METHODS, "auto", "reference"])
def test_labels_beyond_the_clipping_distance_are_shared(method: str) -> None:
    # With one more row at each end, equal to the old end, nothing changes.
    near = Inputs(2, 3, 9, 9, 4, RelativePositions(2))
    far = Inputs(2, 3, 9, 9, 4, RelativePositions(3))
    far.tensors = {
        name: torch.cat([x[:1], x, x[-1:]]) if name.endswith("table") else x
        for name, x in near.tensors.items()
    }
    far.grad = near.grad
    nearby, further = near.results(method), far.results(method)
    for name in ("output", "query", "key", "value"):
        torch.testing.assert_close(nearby[name], further[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", [*METHODS, "auto"])
@pytest.mark.parametrize("causal", [False, True])
def test_zero_tables_are_plain_attention(method: str, causal: bool) -> None:
    inputs = Inputs(2, 3, 13, 13, 5, RelativePositions(4), causal=causal)
    for name in ("key_table", "value_table"):
        inputs.tensors[name] = torch.zeros_like(inputs.tensors[name])
    q, k, v = (inputs.tensors[name] for name in ("query", "key", "value"))
    plain = scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(inputs.results(method)["output"], plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["gather", "sdpa", "auto", "reference"])
@pytest.mark.parametrize("causal", [False, True])
def test_without_relations_it_is_plain_attention_with_masks(method: str, causal: bool) -> None:
    mask = torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[1, 0, 3] = False
    inputs = Inputs(2, 3, 7, 7, 5, None, mask=mask, causal=causal)
    assert_same(inputs.results(method), inputs.results("reference"))
    assert not inputs.results(method)["output"][1, :, 3].any()


@pytest.mark.parametrize("method", [*OFFSET_METHODS, "auto", "reference"])
def test_moving_queries_and_keys_together_changes_nothing(method: str) -> None:
    still = Inputs(2, 3, 6, 11, 4, RelativePositions(2, query_offset=3))
    moved = Inputs(2, 3, 6, 16, 4, RelativePositions(2, query_offset=8))
    moved.tensors = dict(still.tensors)
    for name in ("key", "value"):
        before = torch.full((2, 3, 5, 4), 7.0, dtype=torch.float64)
        moved.tensors[name] = torch.cat([before, still.tensors[name]], dim=2)
    moved.mask = (torch.arange(16) >= 5)[None, None, None]
    torch.testing.assert_close(
        moved.results(method)["output"], still.results(method)["output"], rtol=1e-10, atol=1e-10
    )


def test_rows_of_positive_distances_get_no_gradient_under_causal() -> None:
    inputs = Inputs(2, 3, 9, 9, 4, RelativePositions(3), causal=True)
    for method in METHODS:
        results = inputs.results(method)
        for name in ("key_table", "value_table"):
            assert results[name].shape == (7, 4)
            assert not results[name][4:].any()
            assert results[name][:4].any()


def test_parts_add_up_to_what_attention_does() -> None:
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[2] = False
    relations = RelativePositions(2, query_offset=1)
    inputs = Inputs(2, 3, 5, 7, 4, relations, per_head=True, mask=mask, on_values=False)
    query, key, value = (inputs.tensors[name] for name in ("query", "key", "value"))
    content, relation, weights = attention_parts(
        query, key, relations, key_table=inputs.tensors["key_table"], mask=mask
    )
    torch.testing.assert_close(content, query @ key.mT / 2)
    edge_key = inputs.tensors["key_table"][:, relations.labels(5, 7)]
    expected = torch.einsum("bhid,hijd->bhij", query, edge_key) / 2
    torch.testing.assert_close(relation, expected)
    torch.testing.assert_close(weights @ value, inputs.output("reference"))
    assert not weights[:, :, 2].any()


def test_parts_of_plain_attention_have_no_relation() -> None:
    inputs = Inputs(1, 2, 4, 4, 3, None)
    parts = attention_parts(inputs.tensors["query"], inputs.tensors["key"], None, causal=True)
    assert not parts.relation.any()
    torch.testing.assert_close(parts.weights.sum(-1), torch.ones(1, 2, 4, dtype=torch.float64))
    assert not parts.weights.triu(1).any()


def test_importing_edgewise_loads_the_attention_library_alone() -> None:
    import subprocess
    import sys

    heavy = "['matplotlib', 'transformers', 'ctranslate2', 'sentencepiece', 'fastapi']"
    code = f"import sys, edgewise; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr
