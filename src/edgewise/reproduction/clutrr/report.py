"""What came out, as data and as Markdown: accuracy by hops, over seeds, beside what is possible.

Hops are edges of a graph. Where the two people are nearer than that, there is a short cut, so each
test is also reported without the questions that have one.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from edgewise.evaluation.bootstrap import RESAMPLES, SEED, Interval, interval
from edgewise.reproduction.clutrr.cells import Answers, GraphResult
from edgewise.reproduction.clutrr.settings import GraphExperiment, GraphSet
from edgewise.reproduction.statistics import Difference, of_drawn_seeds

LEAST_GRAPHS = 20  # for an interval
Results = Mapping[str, Sequence[GraphResult]]  # of each row, by seed


@dataclass(frozen=True)
class Accuracy:
    """Of a row, in one test."""

    values: tuple[float, ...]  # of each seed
    mean: float
    deviation: float | None
    interval: Interval | None  # 95 %, graphs and seeds drawn anew; None: too few graphs

    @classmethod
    def of(cls, seeds: Sequence[Answers]) -> "Accuracy":
        values = tuple(each.accuracy for each in seeds)
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        between = None
        if seeds[0].n_graphs >= LEAST_GRAPHS:
            low, high = interval(resampled(seeds, stream=0))
            between = (max(0.0, low), min(1.0, high))
        return cls(values, float(np.mean(values)), deviation, between)


@dataclass(frozen=True)
class TestReport:
    """The questions of one number of hops, all or those without a short cut."""

    hops: int
    is_trained: bool
    without_short_cuts: bool
    questions: int
    graphs: int
    best_possible: float | None  # None: no graph is asked about twice
    rows: dict[str, Accuracy]
    comparisons: dict[str, Difference | None]  # None: too few graphs


@dataclass(frozen=True)
class SetReport:
    """All there is of one set."""

    name: str
    title: str
    tests: tuple[TestReport, ...]
    seeds: dict[str, tuple[int, ...]]
    parameters: dict[str, int]
    hardware: tuple[str, ...]

    def part(self, *, without_short_cuts: bool) -> list[TestReport]:
        return [test for test in self.tests if test.without_short_cuts == without_short_cuts]


@dataclass(frozen=True)
class GraphReport:
    """The experiment."""

    experiment: GraphExperiment
    command: str
    sets: tuple[SetReport, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.model_dump(mode="json"),
            "command": self.command,
            "sets": [asdict(each) for each in self.sets],
        }


@functools.lru_cache(maxsize=64)
def drawn_graphs(count: int) -> Int[np.ndarray, "resample graph"]:
    """How often each graph is in each resample: the same for all rows."""
    return np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), RESAMPLES)


def resampled(seeds: Sequence[Answers], stream: int) -> Float[np.ndarray, "resample"]:
    """The mean accuracy of seeds drawn with replacement, on graphs drawn with replacement.

    Graphs, not questions: those with one graph have one answer. Which graphs depends on their
    number alone, which seeds on the stream.
    """
    graphs, count = seeds[0].graphs, seeds[0].n_graphs
    drawn = drawn_graphs(count)
    questions = np.bincount(graphs, minlength=count)
    of_seeds = [
        drawn @ np.bincount(graphs, each.correct, count) / np.maximum(1, drawn @ questions)
        for each in seeds
    ]
    return of_drawn_seeds(np.stack(of_seeds), stream)


def difference(row: Sequence[Answers], against: Sequence[Answers]) -> Difference | None:
    """Of two rows, by the same graphs; None if there are too few."""
    if row[0].n_graphs < LEAST_GRAPHS:
        return None
    drawn = resampled(row, stream=1) - resampled(against, stream=2)
    means = [float(np.mean([each.accuracy for each in side])) for side in (row, against)]
    return Difference.of(means[0] - means[1], drawn, min(len(row), len(against)) == 1)


def report_set(experiment: GraphExperiment, each: GraphSet, results: Results) -> SetReport:
    """The report of what is finished; at least one cell is."""
    done = [row.name for row in experiment.rows if results.get(row.name)]
    first = results[done[0]][0]
    tests = [_test(experiment, results, done, hops, False) for hops in sorted(first.tests)]
    tests += [
        _test(experiment, results, done, hops, True)
        for hops, test in sorted(first.tests.items())
        if 0 < (test.distances == hops).sum() < len(test.distances)
    ]
    return SetReport(
        name=each.name,
        title=each.title,
        tests=tuple(tests),
        seeds={row: tuple(int(r.asked["seed"]) for r in results[row]) for row in done},
        parameters={row: results[row][0].parameters for row in done},
        hardware=tuple(sorted({r.hardware for row in done for r in results[row]})),
    )


def _test(
    experiment: GraphExperiment,
    results: Results,
    done: Sequence[str],
    hops: int,
    without_short_cuts: bool,
) -> TestReport:
    def answers(row: str) -> list[Answers]:
        found = [result.tests[hops] for result in results[row]]
        return [x.part(x.distances == hops) for x in found] if without_short_cuts else found

    first = answers(done[0])[0]
    is_repeated = not without_short_cuts and first.n_graphs < len(first.graphs)
    return TestReport(
        hops=hops,
        is_trained=hops in results[done[0]][0].trained_hops,
        without_short_cuts=without_short_cuts,
        questions=len(first.graphs),
        graphs=first.n_graphs,
        best_possible=first.best_possible if is_repeated else None,
        rows={row: Accuracy.of(answers(row)) for row in done},
        comparisons={
            f"{c.row} minus {c.against}": difference(answers(c.row), answers(c.against))
            for c in experiment.compare
            if {c.row, c.against} <= set(done)
        },
    )


def markdown(report: GraphReport, picture: Path | None) -> str:
    """For people."""
    experiment = report.experiment
    lines = [f"# {experiment.title}", "", experiment.asks, ""]
    for each in report.sets:
        lines += [f"## Set {each.name}: {each.title}", ""]
        lines += _table(experiment, each, each.part(without_short_cuts=False))
        if shortened := each.part(without_short_cuts=True):
            lines += ["Of these, the questions whose two people are no nearer than the hops:", ""]
            lines += _table(experiment, each, shortened)
        lines += _comparisons(each.part(without_short_cuts=False))
        lines += [*(f"- Hardware: {name}" for name in each.hardware), ""]
    if picture is not None:
        lines += [f"![{experiment.title}]({picture.name})", ""]
    lines += [*EXPLANATION, "", f"`{report.command}`", ""]
    return "\n".join(lines)


EXPLANATION = (
    "Hops are the edges of a graph. ± is the standard deviation over seeds. Intervals of 95 % are",
    f"by {RESAMPLES:,} resamples of graphs, the same for both rows, and of seeds; where there are",
    f"fewer than {LEAST_GRAPHS} graphs there are none, and * says that a row has one seed. With",
    "three seeds such intervals are a little narrow, and one in twenty lies elsewhere by chance.",
    "Best possible is the most frequent answer to each graph that is asked about more",
    "than once: to some there are several.",
)


def _table(experiment: GraphExperiment, each: SetReport, tests: Sequence[TestReport]) -> list[str]:
    titles = {row.name: row.title for row in experiment.rows}
    heads = [f"{t.hops} hops" + ("" if t.is_trained else ", not trained") for t in tests]
    lines = [f"| accuracy | {' | '.join(heads)} | seeds | parameters |"]
    lines.append("|---" * (len(heads) + 3) + "|")
    for row, seeds in each.seeds.items():
        cells = " | ".join(_accuracy(test.rows[row]) for test in tests)
        lines.append(f"| {titles[row]} | {cells} | {len(seeds)} | {each.parameters[row]:,} |")
    best = (t.best_possible for t in tests)
    possible = " | ".join("" if value is None else f"{value:.3f}" for value in best)
    counts = " | ".join(f"{t.questions}, {t.graphs}" for t in tests)
    if any(t.best_possible is not None for t in tests):
        lines.append(f"| best possible | {possible} | | |")
    return [*lines, f"| questions, graphs | {counts} | | |", ""]


def _comparisons(tests: Sequence[TestReport]) -> list[str]:
    tests = [t for t in tests if t.graphs >= LEAST_GRAPHS]
    if not tests or not tests[0].comparisons:
        return []
    lines = [f"| difference | {' | '.join(f'{t.hops} hops' for t in tests)} |"]
    lines.append("|---" * (len(tests) + 1) + "|")
    for name in tests[0].comparisons:
        cells = " | ".join(_difference(test.comparisons[name]) for test in tests)
        lines.append(f"| {name} | {cells} |")
    return [*lines, ""]


def _accuracy(accuracy: Accuracy) -> str:
    around = "" if accuracy.deviation is None else f" ± {accuracy.deviation:.3f}"
    return f"{accuracy.mean:.3f}{around}"


def _difference(found: Difference | None) -> str:
    if found is None:
        return ""
    low, high = found.interval
    return f"{found.value:+.3f} ({low:+.3f} to {high:+.3f}){'*' if found.one_seed else ''}"
