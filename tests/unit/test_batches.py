"""Batches: what is in them, how full they are, and an order that nothing but its seed decides."""

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages import raises
from numpy.typing import NDArray

from edgewise.data.batches import Batches, Epoch, Position, padded, updates
from edgewise.data.corpus import Part, Split, SplitWriter
from edgewise.errors import SettingError

Pairs = list[tuple[list[int], list[int]]]
LENGTHS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("splits")


def written(
    root: Path, tokens: NDArray[np.uint16], lengths: NDArray[np.int32], parts: list[Part]
) -> Split:
    folder = root / str(sum(1 for _ in root.iterdir()))
    with SplitWriter(folder, np.dtype(np.uint16)) as writer:
        writer.append(tokens, lengths)
    return Split(folder, "uint16", parts)


def of_lengths(
    root: Path, source: NDArray[np.int_], target: NDArray[np.int_], *weights: tuple[int, float]
) -> Split:
    """Pairs of these lengths; parts of so many pairs and such a weight."""
    lengths = np.stack([source, target], axis=1).ravel().astype(np.int32)
    parts = [Part("a", "b", pairs, weight) for pairs, weight in weights or [(len(source), 1.0)]]
    return written(root, np.full(lengths.sum(), 9, dtype=np.uint16), lengths, parts)


def of_pairs(root: Path, pairs: Pairs) -> Split:
    sides = [side for pair in pairs for side in pair]
    tokens = np.array([token for side in sides for token in side], dtype=np.uint16)
    lengths = np.array([len(side) for side in sides], dtype=np.int32)
    return written(root, tokens, lengths, [Part("a", "b", len(pairs), 1.0)])


def like_multi30k(count: int, seed: int = 0) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Lengths of about 14 tokens, from 5 to 45, the target's near the source's."""
    random = np.random.default_rng(seed)
    source = 14 * np.exp(0.33 * random.standard_normal(count))
    target = source * np.exp(0.16 * random.standard_normal(count))
    return tuple(side.round().clip(5, 45).astype(int) for side in (source, target))


def plan(epoch: Epoch) -> list[list[int]]:
    return [epoch[i].tolist() for i in range(len(epoch))]


@pytest.fixture(scope="module")
def split(root: Path) -> Split:
    return of_lengths(root, *like_multi30k(3000))


@given(lengths=LENGTHS, limit=st.integers(21, 90), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_batches_hold_every_pair_once_and_as_many_as_the_limit_allows(
    root: Path, lengths: list[tuple[int, int]], limit: int, seed: int, epoch: int
) -> None:
    source, target = (np.array(side) for side in zip(*lengths, strict=True))
    found = Batches(of_lengths(root, source, target), limit, seed).epoch(epoch)

    def fits(pairs: NDArray[np.int64]) -> bool:
        # 1 more than the tokens: END, which is computed as well.
        return all(len(pairs) * (side[pairs].max() + 1) <= limit for side in (source, target))

    batches = plan(found)
    assert sorted(pair for batch in batches for pair in batch) == list(range(len(lengths)))
    assert all(fits(np.array(batch)) for batch in batches)
    for begin, end in pairwise(found.bounds[:-1]):
        assert not fits(found.order[begin : end + 1])  # with the next pair
    assert Counter(map(tuple, batches)) == Counter(
        tuple(found.order[begin:end].tolist()) for begin, end in pairwise(found.bounds)
    )


def test_a_batch_may_be_as_large_as_the_limit_counting_the_ends(root: Path) -> None:
    lengths = np.full(12, 4)
    for limit, rows in ((5, 1), (9, 1), (10, 2), (19, 3), (20, 4)):
        for split in (
            of_lengths(root, lengths, np.full(12, 2)),
            of_lengths(root, np.full(12, 2), lengths),
        ):
            assert {len(batch) for batch in plan(Batches(split, limit, 0).epoch(0))} == {rows}


def test_the_order_is_a_function_of_seed_and_epoch(split: Split) -> None:
    in_turn, alone = Batches(split, 512, 7), Batches(split, 512, 7)
    plans = [plan(in_turn.epoch(number)) for number in range(4)]
    assert plan(alone.epoch(3)) == plans[3]
    assert plan(alone.epoch(0)) == plans[0]
    assert plan(in_turn.epoch(2)) == plans[2]
    others = [plan(Batches(split, 512, 8).epoch(number)) for number in range(4)]
    assert len({str(one) for one in [*plans, *others]}) == 8


def test_batches_of_an_epoch_are_not_sorted_by_length(split: Split) -> None:
    source, _ = split.lengths()
    longest = [int(source[batch].max()) for batch in plan(Batches(split, 512, 0).epoch(0))]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_pairs_of_equal_lengths_meet_others_in_each_epoch(root: Path) -> None:
    batches = Batches(of_lengths(root, np.full(60, 4), np.full(60, 6)), 35, 0)
    epochs = [{frozenset(batch) for batch in plan(batches.epoch(number))} for number in range(3)]
    assert [len(epoch) for epoch in epochs] == [12, 12, 12]
    assert not epochs[0] & epochs[1]
    assert not epochs[1] & epochs[2]


def test_a_weight_of_two_shows_each_pair_twice(root: Path) -> None:
    source, target = like_multi30k(70)
    batches = Batches(of_lengths(root, source, target, (30, 1.0), (40, 2.0)), 256, 0)
    for epoch in (0, 1):
        shown = Counter(pair for batch in plan(batches.epoch(epoch)) for pair in batch)
        assert shown == {i: 1 if i < 30 else 2 for i in range(70)}


def test_a_broken_weight_shows_that_part_of_the_pairs_once_more(root: Path) -> None:
    source, target = like_multi30k(9000)
    split = of_lengths(root, source, target, (4000, 0.5), (3000, 1.0), (2000, 2.25))
    batches = Batches(split, 4096, 0)
    shown = [np.bincount(batches.epoch(number).order, minlength=9000) for number in (0, 1)]
    for times in shown:
        half, once, often = times[:4000], times[4000:7000], times[7000:]
        assert set(half) == {0, 1}
        assert set(once) == {1}
        assert set(often) == {2, 3}
        # Five standard deviations of a binomial: 158 and 97.
        assert abs(half.sum() - 2000) < 158
        assert abs(often.sum() - 4500) < 97
    assert (shown[0] != shown[1]).any()  # other halves in other epochs
    again = np.bincount(Batches(split, 4096, 0).epoch(1).order, minlength=9000)
    np.testing.assert_array_equal(again, shown[1])


def test_batches_are_filled_with_tokens_not_padding(root: Path) -> None:
    batches = Batches(of_lengths(root, *like_multi30k(29_000)), 4096, 0)
    assert min(batches.fill(number) for number in (0, 1)) >= 0.92


def test_the_fill_is_that_of_the_arrays(root: Path) -> None:
    split = of_lengths(root, *like_multi30k(200))
    batches = Batches(split, 300, 0)
    epoch = batches.epoch(2)
    arrays = [batches.batch(epoch[i]) for i in range(len(epoch))]
    tokens = sum(batch.source_tokens + batch.target_tokens for batch in arrays)
    assert batches.fill(2) == tokens / sum(
        batch.source.size + batch.target.size for batch in arrays
    )
    assert 0.5 < batches.fill(2) < 1


def test_a_batch_by_hand(root: Path) -> None:
    pairs: Pairs = [([5, 6, 7], [8]), ([9], [10, 11, 12, 13]), ([14, 15], [16, 17])]
    batch = Batches(of_pairs(root, pairs), 99, 0).batch(np.array([2, 0, 1]))
    np.testing.assert_array_equal(batch.source, [[14, 15, 2, 0], [5, 6, 7, 2], [9, 2, 0, 0]])
    np.testing.assert_array_equal(
        batch.target, [[16, 17, 2, 0, 0], [8, 2, 0, 0, 0], [10, 11, 12, 13, 2]]
    )
    np.testing.assert_array_equal(
        batch.target_input, [[1, 16, 17, 0, 0], [1, 8, 0, 0, 0], [1, 10, 11, 12, 13]]
    )
    assert (batch.source_tokens, batch.target_tokens) == (9, 10)
    assert {x.dtype for x in (batch.source, batch.target, batch.target_input)} == {np.dtype("i8")}


def test_rows_are_padded_to_the_longest_with_its_end() -> None:
    np.testing.assert_array_equal(padded([[7, 8], [], [9]]), [[7, 8, 2], [2, 0, 0], [9, 2, 0]])


@pytest.mark.parametrize("longer", ["source", "target"])
def test_a_limit_below_the_longest_sentence_is_refused(root: Path, longer: str) -> None:
    lengths = np.array([3, 16, 5]), np.array([4, 7, 6])
    split = of_lengths(root, *(lengths if longer == "source" else lengths[::-1]))
    with raises(SettingError, "batch_tokens", 17, 16, "--max-tokens", 15):
        Batches(split, 16, 0)
    assert len(Batches(split, 17, 0).epoch(0)) == 3 - 1


@pytest.mark.parametrize("size", [1, 3, 5])
def test_updates_go_on_over_the_epochs_without_losing_or_repeating_a_batch(
    root: Path, size: int
) -> None:
    batches = Batches(of_lengths(root, *like_multi30k(40)), 128, 3)
    expected = [batch for number in range(4) for batch in plan(batches.epoch(number))]
    taken = []
    for pairs, position in updates(batches, Position(), size):
        assert len(pairs) == size
        taken += [batch.tolist() for batch in pairs.values()]
        before = sum(len(batches.epoch(number)) for number in range(position.epoch))
        assert len(taken) == before + position.index
        if len(taken) > len(expected) - size:
            break
    assert taken == expected[: len(taken)]
    assert position.epoch == 3


@pytest.mark.parametrize("size", [2, 3])
def test_training_goes_on_the_same_from_any_position(root: Path, size: int) -> None:
    split = of_lengths(root, *like_multi30k(40))

    def taken(start: Position, count: int) -> list[tuple[list[list[int]], Position]]:
        found = islice(updates(Batches(split, 128, 3), start, size), count)
        return [
            ([batch.tolist() for batch in pairs.values()], position) for pairs, position in found
        ]

    whole = taken(Position(), 20)
    assert whole[-1][1].epoch >= 2
    for i, (_, position) in enumerate(whole[:-1]):
        assert taken(position, 19 - i) == whole[i + 1 :]


def test_the_end_of_an_epoch_is_the_beginning_of_the_next(root: Path) -> None:
    batches = Batches(of_lengths(root, *like_multi30k(40)), 128, 3)
    end = Position(1, len(batches.epoch(1)))
    for start in (end, Position(2, 0)):
        taken, position = next(updates(batches, start, 1))
        ((at, first),) = taken.items()
        assert at == Position(2, 0)
        np.testing.assert_array_equal(first, batches.epoch(2)[0])
        assert position == Position(2, 1)


def test_an_epoch_that_shows_no_pair_is_passed_over(root: Path) -> None:
    split = of_lengths(root, np.array([4] * 3), np.array([3] * 3), (3, 0.4))
    batches = Batches(split, 99, 0)
    shown = [number for number in range(60) if len(batches.epoch(number))]
    assert 0 < len(shown) < 60
    found = [position.epoch for _, position in islice(updates(batches, Position(), 1), len(shown))]
    assert found == shown


def test_weights_that_show_less_than_a_pair_an_epoch_are_refused(root: Path) -> None:
    split = of_lengths(root, np.array([4] * 5), np.array([3] * 5), (5, 0.1))
    with raises(SettingError, "weights", 5, 0.1):
        Batches(split, 99, 0)
