"""Intervals, tests and corrections of reports: a true null hypothesis is rarely rejected."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from selection import long_except

from edgewise.reproduction.measurements import METRICS, Sample
from edgewise.reproduction.statistics import (
    Difference,
    Estimate,
    difference,
    estimate,
    holm,
    student_quantile,
    with_holm_correction,
)

SENTENCES = 100


def sample(values: np.ndarray) -> Sample:
    """Return a sample of sentences whose mean is the metric."""
    return Sample(METRICS["log-probability"], np.stack([values, np.ones_like(values)], axis=1))


def null_rows(
    generator: np.random.Generator, seeds: int, deviations: tuple[float, float], sentence: float
) -> list[dict[int, Sample]]:
    """Return two rows with the same expected score.

    deviations: of each row over seeds. sentence: deviation of what a sentence adds to one row. Each
    sentence also has a part that both rows share, and one for each cell.
    """
    shared = generator.normal(0, 3, SENTENCES)
    return [
        {
            seed: sample(
                shared + own + generator.normal(0, deviation) + generator.normal(0, 1, SENTENCES)
            )
            for seed in range(seeds)
        }
        for deviation in deviations
        for own in (generator.normal(0, sentence, SENTENCES),)
    ]


CONDITIONS = [
    (seeds, deviations, sentence)
    for seeds in (2, 3, 5)
    for deviations in ((0.0, 0.0), (0.2, 0.2), (0.02, 0.4), (1.0, 1.0))
    for sentence in (0.0, 1.0, 4.0)
]
OFTEN = [(3, (0.2, 0.2), 1.0), (5, (0.02, 0.4), 4.0), (3, (0.0, 0.0), 4.0), (5, (1.0, 1.0), 0.0)]


@pytest.mark.parametrize("condition", long_except(OFTEN, CONDITIONS), ids=str)
def test_a_true_null_hypothesis_is_rejected_in_at_most_6_percent_of_cases(
    condition: tuple[int, tuple[float, float], float],
) -> None:
    seeds, deviations, sentence = condition
    generator = np.random.default_rng(1)
    rejected, count = 0, 1500 if condition in OFTEN else 6000
    for _ in range(count):
        row, against = null_rows(generator, seeds, deviations, sentence)
        found = Estimate.from_samples(
            [row[seed].value - against[seed].value for seed in row],
            np.stack([row[seed].resampled() - against[seed].resampled() for seed in row]),
        )
        low, high = found.interval()
        rejected += not low <= 0 <= high
    assert rejected / count <= 0.06


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
def test_the_interval_covers_the_truth_for_every_share_of_the_variance_over_seeds(
    seeds: int, share: float
) -> None:
    # Means and variances are drawn from their distributions: as many sentences as one likes.
    generator, count = np.random.default_rng(2), 20_000
    means = generator.normal(0, 1, count)
    over_seeds = share * generator.chisquare(seeds - 1, count) / (seeds - 1)
    half = [
        Estimate((0.0,) * seeds, seed, 1 - share).half_width(0.025) for seed in over_seeds.tolist()
    ]
    assert (np.abs(means) > half).mean() <= 0.054  # 5 % and twice the error of the simulation


def test_pairing_by_seed_and_sentence_removes_what_the_rows_share() -> None:
    generator = np.random.default_rng(3)
    shared, of_seed = generator.normal(0, 3, SENTENCES), generator.normal(0, 2, 3)
    row = {seed: sample(shared + of_seed[seed] + 0.5) for seed in range(3)}
    against = {seed: sample(shared + of_seed[seed]) for seed in range(3)}
    found = difference(row, against)
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert np.ptp(found.interval) < 1e-6
    assert found.p_value < 1e-6
    assert np.ptp(estimate(row).interval()) > 1
    # Cells of other seeds are no pairs.
    turned = {seed: against[(seed + 1) % 3] for seed in range(3)}
    wide = difference(row, turned)
    assert wide is not None and np.ptp(wide.interval) > 1


def test_only_common_seeds_are_compared() -> None:
    generator = np.random.default_rng(4)
    cells = [sample(generator.normal(0, 1, SENTENCES)) for _ in range(4)]
    row, against = {1: cells[0], 2: cells[1]}, {2: cells[2], 3: cells[3]}
    found = difference(row, against)
    assert found is not None and found.seeds == 1
    assert found.value == pytest.approx(cells[1].value - cells[2].value)
    assert difference({1: cells[0]}, {2: cells[1]}) is None


def test_with_one_seed_the_interval_is_that_of_the_sentences() -> None:
    values = np.random.default_rng(5).normal(0, 1, SENTENCES)
    found = estimate({1: sample(values)})
    assert found.deviation is None
    low, high = found.interval()
    half = 1.96 * values.std() / math.sqrt(SENTENCES)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert (high + low) / 2 == pytest.approx(values.mean())


def test_seeds_widen_the_interval() -> None:
    values = np.random.default_rng(6).normal(0, 1, SENTENCES)
    alone = estimate({1: sample(values)})
    same = estimate({seed: sample(values) for seed in range(3)})
    several = estimate({seed: sample(values + seed) for seed in range(3)})
    assert np.ptp(same.interval()) == pytest.approx(np.ptp(alone.interval()))
    assert several.mean == pytest.approx(values.mean() + 1)
    assert several.deviation == pytest.approx(1)
    # Student's quantile with 2 degrees of freedom is 4.303.
    assert np.ptp(several.interval()) > 2 * 4.303 * math.sqrt(1 / 3)


def test_p_is_below_5_percent_where_the_interval_leaves_out_0() -> None:
    generator = np.random.default_rng(7)
    decisions = set()
    for _ in range(40):
        row, against = null_rows(generator, 3, (0.3, 0.3), 1.0)
        found = difference(row, against)
        assert found is not None
        low, high = found.interval
        decisions.add(found.p_value < 0.05)
        assert (found.p_value < 0.05) == (low > 0 or high < 0)
        assert 0 <= found.p_value <= 1
    same = difference(row, row)
    assert same is not None and (same.value, same.p_value) == (0, 1)
    assert False in decisions


def test_equivalence_is_found_where_the_90_percent_interval_is_within_the_margin() -> None:
    generator = np.random.default_rng(8)
    found = set()
    for margin in (0.3, 0.6, 1.2, 2.4):
        for _ in range(8):
            row, against = null_rows(generator, 3, (0.1, 0.1), 1.0)
            tested = difference(row, against, margin)
            values = [row[seed].value - against[seed].value for seed in row]
            resampled = [row[seed].resampled() - against[seed].resampled() for seed in row]
            low, high = Estimate.from_samples(values, np.stack(resampled)).interval(0.1)
            assert tested is not None and tested.equivalence is not None
            is_equivalent = tested.equivalence < 0.05
            assert is_equivalent == (-margin < low and high < margin)
            found.add(is_equivalent)
    assert found == {True, False}
    assert difference(row, against).equivalence is None  # type: ignore[union-attr]


def test_equivalence_of_rows_that_differ_by_the_margin_is_rarely_found() -> None:
    generator, count, found = np.random.default_rng(9), 200, 0
    for _ in range(count):
        row, against = null_rows(generator, 3, (0.2, 0.2), 1.0)
        row = {seed: sample(cell.statistics[:, 0] + 0.5) for seed, cell in row.items()}
        tested = difference(row, against, margin=0.5)
        assert tested is not None and tested.equivalence is not None
        found += tested.equivalence < 0.05
    assert found / count <= 0.08  # 5 %, and twice the error of the simulation


@pytest.mark.parametrize(
    ("tail", "freedom", "expected"),
    # Tables of Student's distribution.
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.303),
        (0.025, 4, 2.776),
        (0.05, 2, 2.920),
        (0.005, 3, 5.841),
        (0.025, 30, 2.042),
        (0.5, 3, 0.0),
    ],
)
def test_quantiles_of_students_distribution(tail: float, freedom: int, expected: float) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(expected, abs=5e-4)


def test_students_distribution_approaches_the_normal() -> None:
    normal = NormalDist().inv_cdf(0.99)
    assert student_quantile(0.01, 2000) == pytest.approx(normal, rel=2e-3)


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_differences_of_a_table_are_corrected_and_gaps_stay() -> None:
    def found(p_value: float, equivalence: float | None) -> Difference:
        return Difference(1.0, (0.0, 2.0), p_value, equivalence, 3)

    one, gap, other = with_holm_correction([found(0.01, None), None, found(0.03, 0.04)])
    assert gap is None and one is not None and other is not None
    assert (one.p_value, one.equivalence) == (0.02, None)
    assert (other.p_value, other.equivalence) == (0.03, 0.04)


def test_a_share_of_0_or_1_in_all_sentences_is_not_certain() -> None:
    none, all_ = (
        Sample(METRICS["exact match"], np.stack([np.full(50, x), np.ones(50)], axis=1))
        for x in (0.0, 1.0)
    )
    # The rule of three: up to 3 / n are compatible with none of n.
    assert estimate({1: none}).interval()[1] == pytest.approx(3 / 50, rel=1e-3)
    several = estimate(dict.fromkeys(range(5), all_))
    assert several.interval()[0] == pytest.approx(1 - 3 / 50, rel=1e-3)
    same = difference({1: none, 2: none}, {1: none, 2: none}, margin=0.05)
    assert same is not None and same.p_value == 1
    assert same.equivalence is not None and 0 < same.equivalence < 0.5


def test_differences_of_one_seed_take_no_part_in_the_correction() -> None:
    one_seed = Difference(9.0, (8.0, 10.0), 1e-9, 0.9, 1)
    tested = Difference(1.0, (0.0, 2.0), 0.03, 0.04, 3)
    assert with_holm_correction([one_seed, tested]) == [one_seed, tested]
