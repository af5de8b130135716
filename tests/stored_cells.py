"""Results of cells whose quality is chosen: translations that lack each n-th word."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgewise.data.grammar import pairs
from edgewise.evaluation import SentenceStatistics
from edgewise.reproduction.cells import Cell, Changes
from edgewise.reproduction.experiments import read_experiment
from edgewise.reproduction.measurements import BLEU_COLUMNS, LOG_PROBABILITY, Measurements
from edgewise.reproduction.results import Result
from edgewise.reproduction.scales import read_scale
from edgewise.reproduction.study import Study

SOURCES, REFERENCES = zip(*pairs(60, seed=5), strict=True)
SIZES = {"test_2017_flickr": 40, "test_2017_mscoco": 25}  # of test sets; others have all 60


def spoilt(every: int) -> list[str]:
    """Return the references without each n-th word of all."""
    count, lines = 0, []
    for line in REFERENCES:
        words = []
        for word in line.split():
            count += 1
            if count % every:
                words.append(word)
        lines.append(" ".join(words))
    return lines


def measured(every: int, size: int = 60) -> Measurements:
    statistics = SentenceStatistics.of(spoilt(every)[:size], REFERENCES[:size])
    counts = statistics.counts[:, : len(BLEU_COLUMNS)].T
    words = np.array([len(line.split()) for line in REFERENCES[:size]])
    columns = {
        "source_words": np.array([len(line.split()) for line in SOURCES[:size]]),
        "target_words": words,
        **dict(zip(BLEU_COLUMNS, counts, strict=True)),
        LOG_PROBABILITY: np.round(-(words + np.arange(size) % 7) / every, 4),
        "reference_pieces": words + 1,
        "exact": (np.arange(size) % every == 0).astype(np.int64),
        "exact_with_length": (np.arange(size) % every <= 1).astype(np.int64),
    }
    return Measurements(columns, {"chrf": 50.0, "signature": statistics.signature})


def result(cell: Cell, every: int, corpus: str = "a") -> Result:
    return Result(
        asked=cell.asked(),
        corpus={"train.en": corpus},
        parameters=1234,
        updates=cell.budget,
        losses=[(200, 3.5)],
        tests={name: measured(every, SIZES.get(name, 60)) for name in cell.scale.tests},
        hardware="an abacus",
        about={},
    )


def study(name: str, out: Path, scale: str = "multi30k", **changes: int) -> Study:
    return Study(read_experiment(name), read_scale(scale), Changes(**changes), out)


def cells(of: Study) -> list[Cell]:
    return of.cells(of.pairs[:1], None, [1])


def store(of: Study, quality: Mapping[str, Sequence[int] | Mapping[int, int]]) -> None:
    """Store cells of rows: one for each figure, whose seeds are given or counted from 1."""
    pair = of.pairs[0]
    for row in of.rows(pair):
        figures = quality.get(row.name, ())
        by_seed = figures if isinstance(figures, Mapping) else dict(enumerate(figures, start=1))
        for seed, every in by_seed.items():
            cell = of.cell(row, pair, seed)
            result(cell, every).write(cell.result(of.out))
