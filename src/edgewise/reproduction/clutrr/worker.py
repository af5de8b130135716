"""One cell, in a process of its own: train, ask, store."""

import platform
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from edgewise.errors import DataError
from edgewise.reproduction.clutrr.cells import Answers, GraphCell, GraphResult
from edgewise.reproduction.clutrr.model import GraphTransformer
from edgewise.reproduction.clutrr.questions import Encoder, Question, QuestionSet, read_set
from edgewise.reproduction.clutrr.settings import GraphModelSettings, GraphTrainingSettings
from edgewise.reproduction.hardware import hardware
from edgewise.reproduction.worker import end_with
from edgewise.storage import read_json, write_json

WARM_UP = 0.1  # of the updates


def order(cell: GraphCell, data: Path, out: Path) -> Path:
    """Write what a worker is asked for; the folder of the cell."""
    folder = cell.work(out)
    folder.mkdir(parents=True, exist_ok=True)
    cell.result(out).parent.mkdir(parents=True, exist_ok=True)
    content = cell.asked() | {"data": str(data.absolute()), "out": str(out.absolute())}
    write_json(folder / "cell.json", content)
    return folder


def run_folder(folder: Path, parent: int | None = None) -> None:
    """Run the cell of a folder. parent: the process that this one is to end with."""
    if parent is not None:
        end_with(parent)
    content = read_json(folder / "cell.json")
    try:
        cell = GraphCell(
            content["set"],
            content["row"],
            content["seed"],
            GraphModelSettings(**content["model"]),
            GraphTrainingSettings(**content["training"]),
        )
        data, out = Path(content["data"]), Path(content["out"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder / 'cell.json'} is damaged: remove it") from None
    run_cell(cell, read_set(data)).write(cell.result(out))


def run_cell(cell: GraphCell, questions: QuestionSet) -> GraphResult:
    """Train and ask, in one thread: the same bits each time."""
    torch.set_num_threads(cell.threads)
    torch.manual_seed(cell.seed)
    start = time.monotonic()
    encoder = Encoder(questions)
    model = GraphTransformer(cell.model, encoder.n_labels, encoder.n_answers)
    train(model, encoder, questions.train, cell.training)
    trained = time.monotonic() - start
    return GraphResult(
        asked=cell.asked(),
        corpus=questions.files,
        trained_hops=questions.trained_hops,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        tests={hops: ask(model, encoder, test) for hops, test in questions.tests.items()},
        hardware=f"{hardware()}; threads a cell: {cell.threads}",
        about={
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "training_seconds": round(trained),
            "python": platform.python_version(),
            **{package: version(package) for package in ("edgewise", "torch")},
        },
    )


def train(
    model: GraphTransformer,
    encoder: Encoder,
    questions: Sequence[Question],
    settings: GraphTrainingSettings,
) -> None:
    """All epochs; nothing is chosen on the way."""
    graphs = [encoder.graph(question) for question in questions]
    updates = settings.epochs * -(-len(questions) // settings.batch)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda update: min((update + 1) / (WARM_UP * updates), (updates - update) / updates),
    )
    model.train()
    for _ in range(settings.epochs):
        for index in torch.randperm(len(questions)).split(settings.batch):
            chosen = index.tolist()
            batch = encoder.encode([questions[i] for i in chosen], [graphs[i] for i in chosen])
            loss = cross_entropy(model(batch), batch.answers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def ask(model: GraphTransformer, encoder: Encoder, questions: Sequence[Question]) -> Answers:
    """Whether the most likely answer is the right one."""
    model.eval()
    encoded = encoder.encode(questions)
    correct = model(encoded).argmax(-1) == encoded.answers
    places: dict[tuple[object, ...], int] = {}
    graphs = [places.setdefault(question.graph, len(places)) for question in questions]
    counts: dict[int, Counter[str]] = {}
    for graph, question in zip(graphs, questions, strict=True):
        counts.setdefault(graph, Counter())[question.answer] += 1
    best = sum(count.most_common(1)[0][1] for count in counts.values()) / len(questions)
    distances = np.array([question.distance for question in questions])
    return Answers(np.array(graphs), distances, correct.numpy(), best)
