"""Updates per second of the rows of an experiment, interleaved on the same batches."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from edgewise.data.batches import Batches, Position, updates
from edgewise.data.corpus import Corpus
from edgewise.evaluation.bootstrap import RESAMPLES, SEED, Interval, interval
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.provenance import commit, hardware
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.study import Study
from edgewise.storage import write_json, write_text
from edgewise.training.memory import keep_freed_memory
from edgewise.training.trainer import Trainer

ROUNDS, WARM_UP = 300, 10


@dataclass(frozen=True)
class Speed:
    """The speed of one row."""

    row: str
    parameters: int
    seconds: float  # of the median update
    against_first: float  # per cent of updates per second; median over batches
    interval: Interval  # of against_first, 95 %, by bootstrap over batches


def measure_speed(
    cells: Mapping[str, Cell],
    corpus: Path,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Speed]:
    """Time `rounds` updates of each row, in random order on each batch; nothing else may run."""
    first = next(iter(cells.values()))
    if first.threads is not None:
        torch.set_num_threads(first.threads)
    keep_freed_memory()
    opened = Corpus(corpus)
    trainers = {}
    for name, cell in cells.items():
        assert isinstance(cell.model, ModelSettings)
        model = Transformer(cell.model, opened.vocabulary.size)
        initialise(model, cell.seed)
        trainers[name] = Trainer(model, cell.training)
    batches = Batches(opened.train, first.training.batch_tokens, first.seed)
    seconds: dict[str, list[float]] = {name: [] for name in cells}
    order, draw = list(cells), random.Random(0)
    taken = updates(batches, Position(), first.training.batches)
    for step in range(1, WARM_UP + rounds + 1):
        indices, _ = next(taken)
        update = [batches.batch(pairs) for pairs in indices.values()]
        draw.shuffle(order)
        for name in order:
            start = time.perf_counter()
            trainers[name].update(step, update)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if step > WARM_UP:
                seconds[name].append(time.perf_counter() - start)
        progress(step, WARM_UP + rounds)
    times = {name: np.array(values) for name, values in seconds.items()}
    base = times[next(iter(cells))]
    drawn = np.random.default_rng(SEED).integers(rounds, size=(RESAMPLES, rounds))
    return [
        Speed(
            row=name,
            parameters=sum(p.numel() for p in trainers[name].parameters.values()),
            seconds=float(np.median(values)),
            against_first=float(np.median(ratios)),
            interval=interval(np.median(ratios[drawn], axis=1)),
        )
        for name, values in times.items()
        for ratios in (100 * (base / values - 1),)
    ]


EXPLANATION = (
    "updates each, in random order on the same batches. Medians; the difference is the median over "
    "batches of the ratio of the two times, its interval by bootstrap."
)


def write_speed_report(study: Study, pair: str, speeds: Sequence[Speed], rounds: int) -> None:
    """Write Markdown and JSON, beside the paper's figures."""
    experiment, scale, path = study.experiment, study.scale, study.report_path
    figures = {row.name: row.paper.get(pair) for row in experiment.rows}
    about = f"{hardware()}; threads: {torch.get_num_threads()}"
    lines = [
        *(f"# {experiment.title}", "", experiment.finding, ""),
        *(f"At scale `{scale.name}`: {scale.title}, {pair}.", ""),
        "| | parameters | seconds per update | updates per second | paper | ours | 95 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for i, speed in enumerate(speeds):
        paper, (low, high) = figures.get(speed.row), speed.interval
        ours = f"{speed.against_first:+.1f} % | {low:+.1f} to {high:+.1f} %" if i else " | "
        lines.append(
            f"| {speed.row} | {speed.parameters:,} | {speed.seconds:.3f} | "
            f"{1 / speed.seconds:.3f} | {'' if paper is None else f'{paper:+g} %'} | {ours} |"
        )
    lines += ["", f"{rounds} {EXPLANATION}", "", f"- Hardware: {about}", "", "## What differs", ""]
    lines += [*(f"- {each}" for each in scale.differs), "", f"`{study.command}`", ""]
    content = {"hardware": about, "commit": commit(), "rounds": rounds}
    write_json(path.with_suffix(".json"), content | {"rows": [asdict(speed) for speed in speeds]})
    write_text(path, "\n".join(lines))
