"""Tails and windows hold every edge once, with the label that they claim."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from edgewise import RelativePositions
from edgewise.attention.backends.blockwise.partition import divide


@given(
    n_query=st.integers(1, 40),
    n_key=st.integers(1, 40),
    max_distance=st.integers(1, 12),
    offset=st.integers(-50, 50),
    causal=st.booleans(),
    block=st.integers(1, 9),
)
def test_every_edge_is_in_one_part_with_the_label_of_its_tail(
    n_query: int, n_key: int, max_distance: int, offset: int, causal: bool, block: int
) -> None:
    tails, windows = divide(n_query, n_key, max_distance, offset, causal, block)
    relations = RelativePositions(max_distance, query_offset=offset)
    labels = relations.labels(n_query, n_key)
    seen = torch.zeros(n_query, n_key, dtype=torch.int64)
    for tail in tails:
        part = (slice(tail.q0, tail.q1), slice(tail.k0, tail.k1))
        seen[part] += 1
        assert (labels[part] == (2 * max_distance if tail.label else 0)).all()
    for window in windows:
        assert window.q1 - window.q0 <= block
        seen[window.q0 : window.q1, window.k0 : window.k1] += 1
    if causal:
        visible = relations.distances(n_query, n_key) <= 0
        assert (seen[visible] == 1).all()
        assert not any(tail.label for tail in tails)
    else:
        assert (seen == 1).all()


def test_long_sequences_have_few_parts() -> None:
    tails, windows = divide(16384, 16384, 16, 0, False, 256)
    assert len(windows) == 64
    assert len(tails) == 2 * (64 - 1)
