"""Updates a second of the rows of an experiment, in turn on the same batches of one process."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from edgewise.data.batches import Batches, Position, updates
from edgewise.data.corpus import Corpus
from edgewise.model.initial import initialise
from edgewise.model.transformer import Transformer
from edgewise.reproduction.cells import Cell
from edgewise.reproduction.hardware import hardware
from edgewise.reproduction.study import Study
from edgewise.storage import write_json, write_text
from edgewise.training.memory import keep_freed_memory
from edgewise.training.trainer import Trainer

ROUNDS, WARM_UP = 20, 2


@dataclass(frozen=True)
class Speed:
    """Of one row."""

    row: str
    parameters: int
    seconds: float  # the median update
    steps_a_second: float
    against_first: float  # per cent


def measure_speed(
    cells: Mapping[str, Cell], corpus: Path, told: Callable[[int, int], None], rounds: int = ROUNDS
) -> list[Speed]:
    """The medians over `rounds` updates; nothing else should run meanwhile."""
    first = next(iter(cells.values()))
    if first.training.threads is not None:
        torch.set_num_threads(first.training.threads)
    keep_freed_memory()
    opened = Corpus(corpus)
    trainers = {}
    for name, cell in cells.items():
        model = Transformer(cell.model, opened.vocabulary.size)
        initialise(model, cell.training.seed)
        trainers[name] = Trainer(model, cell.training)
    batches = Batches(opened.train, first.training.batch_tokens, first.training.seed)
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
            if step > WARM_UP:
                seconds[name].append(time.perf_counter() - start)
        told(step, WARM_UP + rounds)
    middle = {name: median(times) for name, times in seconds.items()}
    base = middle[next(iter(cells))]
    return [
        Speed(
            row=name,
            parameters=sum(p.numel() for p in trainers[name].parameters.values()),
            seconds=value,
            steps_a_second=1 / value,
            against_first=100 * (base / value - 1),
        )
        for name, value in middle.items()
    ]


def write_speed_report(study: Study, pair: str, speeds: Sequence[Speed]) -> None:
    """Markdown and JSON, beside the paper's figures."""
    experiment, scale, path = study.experiment, study.scale, study.report_path
    figures = {row.name: row.paper.get(pair) for row in experiment.rows}
    about = f"{hardware()}; threads: {torch.get_num_threads()}"
    lines = [
        *(f"# {experiment.title}", "", experiment.finding, ""),
        *(f"At scale `{scale.name}`: {scale.title}, {pair}.", ""),
        "| | parameters | seconds an update | updates a second | paper | ours |",
        "|---|---|---|---|---|---|",
    ]
    for i, speed in enumerate(speeds):
        paper = figures.get(speed.row)
        ours = f"{speed.against_first:+.1f} %" if i else ""
        lines.append(
            f"| {speed.row} | {speed.parameters:,} | {speed.seconds:.3f} | "
            f"{speed.steps_a_second:.3f} | {'' if paper is None else f'{paper:+g} %'} | {ours} |"
        )
    lines += ["", f"Medians of {ROUNDS} updates each, in turn on the same batches. {about}.", ""]
    lines += ["## What differs", "", *(f"- {each}" for each in scale.differs)]
    lines += ["", f"`{study.command}`"]
    content = {"hardware": about, "rows": [asdict(speed) for speed in speeds]}
    write_json(path.with_suffix(".json"), content)
    write_text(path, "\n".join(lines) + "\n")
